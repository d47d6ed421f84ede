"""`sessions_spawn`: a sub-agent for one task, whose result comes back by itself."""

from __future__ import annotations

import math
import re
import uuid
from typing import Annotated, Literal

from msgspec import Meta

from backchannel.config.agents import AgentSettings
from backchannel.core.caller_keys import CallerKeys
from backchannel.core.contracts import ThinkingLevel
from backchannel.core.flows.flow import FlowRefused as NotSpawned
from backchannel.core.flows.spawn import may_spawn
from backchannel.core.flows.spawn_values import Spawn, SpawnAsk, SpawnRules
from backchannel.core.keys import SessionKey, normalise_agent_id
from backchannel.core.policy.visibility import is_sandboxed, sees
from backchannel.core.runs import FlowCall, function_model
from backchannel.errors import BudgetExceeded, InvalidRequest, LabelInUse, SessionNotFound, UnknownAgent, UnknownModel
from backchannel.tools.base import Caller, Parts, SessionTool, name_flow
from backchannel.tools.targets import RefusedAnswer
from backchannel.wire.shapes import NAME, NAME_LIMIT, Answer, Params

_LABEL = re.compile(NAME)

LONGEST_WAIT_S = 100 * 365 * 24 * 3600.0


class SpawnParams(Params, frozen=True, kw_only=True):
    task: Annotated[str, Meta(min_length=1, description="What to do, in full: the sub-agent sees nothing else.")]
    label: Annotated[
        Annotated[str, Meta(min_length=1, max_length=NAME_LIMIT)] | None,
        Meta(description="A short name, by which it can also be addressed."),
    ] = None
    agent_id: Annotated[
        str | None, Meta(description="Under which agent: an `id` from agents_list. Default: yours.")
    ] = None
    model: Annotated[str | None, Meta(description="Its model, as `provider/model`. Default: the agent's.")] = None
    thinking: Annotated[ThinkingLevel | None, Meta(description="How much it thinks, where its model can.")] = None
    run_timeout_seconds: Annotated[
        float, Meta(ge=0, le=604_800, description="The longest that it may work. 0 is no limit.")
    ] = 0
    cleanup: Annotated[
        Literal["delete", "keep"],
        Meta(description="`delete` archives it as soon as its result has arrived; `keep` leaves it for a while."),
    ] = "keep"


class SpawnAccepted(Answer, frozen=True, kw_only=True, omit_defaults=False):
    status: str
    run_id: str
    child_session_key: str
    model: str


class SessionsSpawn(SessionTool):
    """Starts a sub-agent."""

    name = "sessions_spawn"
    description = (
        "Start a sub-agent on a task of its own and go on at once: it works beside you, in a session of its own. Do "
        "not wait for it or ask about it; when it is done its result is posted to your chat and to this conversation. "
        "`agents_list` shows under which agents you may start one."
    )
    params = SpawnParams
    scope = "write"
    outcomes = (
        ("accepted, at once", '`{status: "accepted", runId, childSessionKey, model}`'),
        (
            "unknown agent or model, a label in use",
            '`{status: "error", error}`; nothing was created',
        ),
        (
            "from a sub-agent, an agent that is not allowed, out of the sandbox, too many children, chain limit",
            '`{status: "forbidden", error}`; nothing was created',
        ),
    )
    examples = (
        ("hand work over", {"task": "Read the three reports in /srv/reports and name their common causes."}),
        (
            "with a name, a limit and its own agent",
            {
                "task": "Check every link of the handbook.",
                "label": "links",
                "agentId": "research",
                "runTimeoutSeconds": 600,
                "cleanup": "delete",
            },
        ),
    )

    async def run(self, caller: Caller, params: SpawnParams) -> SpawnAccepted | RefusedAnswer:
        self._check(params)
        call = name_flow(caller, self.name, "child", params)
        # Whatever has changed since the same call was made first, its sub-agent stays its sub-agent.
        spawn = await self._parts.store.repeat_spawn(call) or await self._open(caller, params, call)
        if isinstance(spawn, RefusedAnswer):
            return spawn
        return SpawnAccepted(
            status="accepted",
            run_id=spawn.child_run,
            child_session_key=CallerKeys(self._parts.scheme, caller.key).show(spawn.child),
            model=spawn.model,
        )

    def _check(self, params: SpawnParams) -> None:
        """Check what the schema does not say, since not every provider of models can read it there.

        Raises:
            InvalidRequest
        """
        if not params.task.strip():
            raise InvalidRequest(f"{self.name}: task: it is empty", param="task")
        if params.label is not None and not _LABEL.search(params.label):
            error = f"{params.label!r} is blank or has control characters: a label is a name on one line"
            raise InvalidRequest(f"{self.name}: label: {error}", param="label")

    async def _open(self, caller: Caller, params: SpawnParams, call: FlowCall) -> Spawn | RefusedAnswer:
        requester = caller.key or self._parts.scheme.main(self._parts.agents.default_id)
        try:
            agent = self._agent(requester, params.agent_id)
            decision = may_spawn(
                requester,
                agent.id,
                self._parts.agents.get(requester.agent).spawns_under,
                leaves_sandbox=not stays_in_sandbox(self._parts, caller, agent.id),
            )
            if not decision.allowed:
                return RefusedAnswer(status="forbidden", error=decision.reason)
            model = self._model(agent, params.model)
            opened = await self._parts.store.open_spawn(
                self._ask(call, requester, agent, params, model), self._parts.config.session.agent_to_agent
            )
        except LabelInUse as error:
            return RefusedAnswer(status="error", error=await self._taken(caller, error))
        except (BudgetExceeded, UnknownAgent, UnknownModel, SessionNotFound) as error:
            return RefusedAnswer(status="error", error=error.message)
        if isinstance(opened, NotSpawned):
            return RefusedAnswer(status="forbidden", error=opened.decision.reason)
        return opened

    async def _taken(self, caller: Caller, error: LabelInUse) -> str:
        """Say whose a label is, unless the caller must not learn that such a session exists."""
        viewer, holder = self._parts.viewer(caller), str(error.details["sessionKey"])
        session = await self._parts.store.session(holder)
        seen = sees(viewer, SessionKey.stored(holder), session.spawned_by if session else None)
        if viewer.hides_existence and not seen.allowed:
            return "this label is in use: choose another"
        return error.message

    def _agent(self, requester: SessionKey, written: str | None) -> AgentSettings:
        """Look up the agent that is to work.

        Raises:
            UnknownAgent: it is not configured.
        """
        return self._parts.agents.get(requester.agent if written is None else normalise_agent_id(written))

    def _model(self, agent: AgentSettings, written: str | None) -> str:
        """Choose the model: the parameter, else what sub-agents of this agent use. A function is its own.

        Raises:
            UnknownModel: it is not there, or cannot be used as things are.
        """
        if self._parts.agents.is_function(agent.id):
            if written is not None:
                raise UnknownModel(f"the agent {agent.id!r} is a function and takes no model: leave model out")
            return function_model(agent.id)
        model = agent.subagent_model if written is None else written
        self._parts.models.check(model)
        return model

    def _ask(
        self, call: FlowCall, requester: SessionKey, agent: AgentSettings, params: SpawnParams, model: str
    ) -> SpawnAsk:
        is_agents_own = model == agent.model or self._parts.agents.is_function(agent.id)
        return SpawnAsk(
            call=call,
            requester=requester,
            child=SessionKey.subagent(agent.id, str(uuid.UUID(call.flow_id))),
            task=params.task,
            rules=self._rules(params),
            max_children=self._parts.config.agents.defaults.subagents.max_children,
            label=params.label,
            model=model,
            session_model=None if is_agents_own else model,
            thinking=params.thinking,
            timeout_s=params.run_timeout_seconds,
        )

    def _rules(self, params: SpawnParams) -> SpawnRules:
        settings, chain = self._parts.config.agents.defaults.subagents, self._parts.config.session.agent_to_agent
        return SpawnRules(
            deletes=params.cleanup == "delete",
            archive_after_ms=_wait_ms(settings.archive_after_minutes * 60),
            wakes=settings.announce == "wake",
            wake_after_ms=_wait_ms(settings.wake_after_seconds),
            max_hops=chain.max_hops,
            max_chain_runs=chain.max_chain_runs,
        )


def stays_in_sandbox(parts: Parts, caller: Caller, agent_id: str) -> bool:
    """Whether a spawn would not lead out of the caller's sandbox: the agent's sub-agents run sandboxed too."""
    if not parts.viewer(caller).is_sandboxed:
        return True
    child = SessionKey.subagent(agent_id, "child")
    return agent_id in parts.agents.ids() and is_sandboxed(child, parts.scheme, parts.agents.get(agent_id).sandbox_mode)


def _wait_ms(seconds: float) -> int | None:
    """Read how long to wait: 0 is no end, anything above is at least a moment, and no time is out of reach."""
    return math.ceil(min(seconds, LONGEST_WAIT_S) * 1000) or None
