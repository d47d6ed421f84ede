"""What OpenClaw's gateway has and this one has none of: each is answered with an empty list, never with made-up data.

Its clients ask for these when they start, and take an unknown method for a fault. Some ask with a scope that lets them
do little here (`operator.pairing`): for these answers they need none.
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from backchannel.config.schedules import show_moment
from backchannel.gateway.ws.connections import Call, Method
from backchannel.version import __version__
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.shapes import Answer


class EmptyAnswer(Answer, frozen=True, kw_only=True, omit_defaults=False):
    """The base of an answer that is always the same."""


class NoPairs(EmptyAnswer, frozen=True, kw_only=True):
    pending: tuple[()] = ()
    paired: tuple[()] = ()


class NoQuestions(EmptyAnswer, frozen=True, kw_only=True):
    questions: tuple[()] = ()


class NoTasks(EmptyAnswer, frozen=True, kw_only=True):
    tasks: tuple[()] = ()


class NoEnvironments(EmptyAnswer, frozen=True, kw_only=True):
    environments: tuple[()] = ()


class NoSkills(EmptyAnswer, frozen=True, kw_only=True):
    skills: tuple[()] = ()


class NoPlugins(EmptyAnswer, frozen=True, kw_only=True):
    plugins: tuple[()] = ()
    diagnostics: tuple[()] = ()
    mutation_allowed: bool = False


class NoGrants(EmptyAnswer, frozen=True, kw_only=True):
    grants: tuple[()] = ()


class NoPluginsToGet(EmptyAnswer, frozen=True, kw_only=True):
    items: tuple[()] = ()


class NoSkillLibrary(EmptyAnswer, frozen=True, kw_only=True):
    entries: tuple[()] = ()


class NoUpdate(EmptyAnswer, frozen=True, kw_only=True):
    sentinel: None = None
    update_available: None = None


class NoBranches(EmptyAnswer, frozen=True, kw_only=True):
    branches: tuple[()] = ()


class NoCard(EmptyAnswer, frozen=True, kw_only=True):
    card: None = None


class NoVoices(EmptyAnswer, frozen=True, kw_only=True):
    ready: bool = False
    providers: tuple[()] = ()


class NoTalk(EmptyAnswer, frozen=True, kw_only=True):
    modes: tuple[()] = ()
    transports: tuple[()] = ()
    brains: tuple[()] = ()
    speech: NoVoices = NoVoices()
    transcription: NoVoices = NoVoices()
    realtime: NoVoices = NoVoices()


class RequestAcknowledged(EmptyAnswer, frozen=True, kw_only=True):
    ok: bool = True


class NoDescriptors(EmptyAnswer, frozen=True, kw_only=True):
    ok: bool = True
    descriptors: tuple[()] = ()


class NoProjects(EmptyAnswer, frozen=True, kw_only=True):
    projects: tuple[()] = ()


class NoWorktrees(EmptyAnswer, frozen=True, kw_only=True):
    worktrees: tuple[()] = ()


class NoTypes(EmptyAnswer, frozen=True, kw_only=True):
    by_type: dict[str, int] = field(default_factory=dict)


class NoResults(EmptyAnswer, frozen=True, kw_only=True):
    results: tuple[()] = ()


class NoArtifacts(EmptyAnswer, frozen=True, kw_only=True):
    artifacts: tuple[()] = ()


class NoProposals(EmptyAnswer, frozen=True, kw_only=True):
    schema: str = "openclaw.skill-workshop.proposals-manifest.v1"
    updated_at: str = show_moment(0)
    proposals: tuple[()] = ()


class NoAsides(EmptyAnswer, frozen=True, kw_only=True):
    exchanges: tuple[()] = ()


class NoUsageLog(EmptyAnswer, frozen=True, kw_only=True):
    logs: tuple[()] = ()


class OwnTheme(EmptyAnswer, frozen=True, kw_only=True):
    id: str = "claw"
    mode: str = "system"
    scope: str = "gateway"
    source: str = "builtin"


class NoThemes(EmptyAnswer, frozen=True, kw_only=True):
    current: OwnTheme = OwnTheme()
    theme: OwnTheme = OwnTheme()
    themes: tuple[()] = ()


class NoForm(EmptyAnswer, frozen=True, kw_only=True):
    type: str = "object"
    properties: dict[str, Any] = field(default_factory=dict)


class NoForms(EmptyAnswer, frozen=True, kw_only=True):
    schema: NoForm = NoForm()
    ui_hints: dict[str, Any] = field(default_factory=dict)
    version: str = __version__
    generated_at: str = show_moment(0)


class NoRecord(EmptyAnswer, frozen=True, kw_only=True):
    generated_at: str
    capacity: int = 0
    count: int = 0
    dropped: int = 0
    events: tuple[()] = ()
    summary: NoTypes = NoTypes()


async def diagnostics_stability(call: Call, params: SharedNoParams) -> NoRecord:
    """Shows a record that holds nothing: what went wrong is in `logs.tail`, `status` and the metrics."""
    return NoRecord(generated_at=show_moment(call.parts.clock.now_ms()))


def _always(name: str, answer: type[Any], said: str, why: str) -> Method[Any]:
    async def handler(call: Call, params: SharedNoParams) -> Any:
        return answer()

    handler.__doc__ = why
    handler.__annotations__["return"] = answer
    return Method(name, SharedNoParams, TokenScope.READ, handler, said, is_open=True)


_APPROVALS = "Lists nothing: every call that waits for an owner's word is in `plugin.approval.list`."

METHODS: tuple[Method[Any], ...] = (
    _always("node.pair.list", NoPairs, "`{pending, paired}`", "Lists nothing: a node is let in by its token."),
    _always("question.list", NoQuestions, "`{questions}`", "Lists nothing: agents here ask in their replies."),
    _always("tasks.list", NoTasks, "`{tasks}`", "Lists nothing: what goes on here are runs, as in `runs.list`."),
    _always("environments.list", NoEnvironments, "`{environments}`", "Lists nothing: runs are here, and nowhere else."),
    _always("skills.status", NoSkills, "`{skills}`", "Lists nothing: agents here have tools, and no skills."),
    _always("plugins.list", NoPlugins, "`{plugins, diagnostics, mutationAllowed}`", "Lists nothing: there are none."),
    _always("plugins.uiDescriptors", NoDescriptors, "`{ok, descriptors}`", "Lists nothing: there are no plugins."),
    _always("plugins.catalog.browse", NoPluginsToGet, "`{items}`", "Lists nothing: there are none to be had."),
    _always("skills.library.list", NoSkillLibrary, "`{entries}`", "Lists nothing: agents here have no skills."),
    _always(
        "update.status",
        NoUpdate,
        "`{sentinel, updateAvailable}`, both null",
        "Tells of no update: this gateway does not look for any, and is updated as it was installed.",
    ),
    _always("sessions.branches.list", NoBranches, "`{branches}`", "Lists nothing: a transcript has no branches here."),
    _always("progressCard.get", NoCard, "`{card}`, null", "Shows nothing: agents here keep no such card."),
    _always(
        "talk.catalog",
        NoTalk,
        "`{modes, transports, brains, speech, transcription, realtime}`, all empty",
        "Lists nothing: nobody is spoken to by voice here.",
    ),
    _always(
        "sessions.observer.visibility",
        RequestAcknowledged,
        "`{ok}`",
        "Takes note of nothing: what a client shows of sessions does not change what is done for it.",
    ),
    _always("projects.list", NoProjects, "`{projects}`", "Lists nothing: there are no projects here."),
    _always("worktrees.list", NoWorktrees, "`{worktrees}`", "Lists nothing: there are no worktrees here."),
    _always("skills.search", NoResults, "`{results}`", "Finds nothing: agents here have no skills."),
    _always(
        "skills.proposals.list",
        NoProposals,
        "`{schema, updatedAt, proposals}`",
        "Lists nothing: agents here have no skills.",
    ),
    _always("artifacts.list", NoArtifacts, "`{artifacts}`", "Lists nothing: what agents make is in their workspaces."),
    _always("sessions.companion.state", NoAsides, "`{exchanges}`", "Lists nothing: there is no chat beside the chat."),
    _always("sessions.usage.logs", NoUsageLog, "`{logs}`", "Lists nothing: what was said is in `chat.history`."),
    _always(
        "themes.list",
        NoThemes,
        "`{current {id, mode, scope}, theme, themes}`",
        "Lists nothing: how a page looks is not kept here.",
    ),
    _always(
        "config.schema",
        NoForms,
        "`{schema, uiHints, version, generatedAt}`, without a property",
        "Describes no form: settings are changed in the configuration, and shown by `config.get`.",
    ),
    Method(
        "diagnostics.stability",
        SharedNoParams,
        TokenScope.READ,
        diagnostics_stability,
        "`{generatedAt, capacity, count, dropped, events, summary {byType}}`, all zero or empty but the time",
        is_open=True,
    ),
    _always("exec.approval.list", list, "`[]`", _APPROVALS),
    _always(
        "exec.approval.grants.list",
        NoGrants,
        "`{grants}`",
        "Lists nothing: what was allowed for good holds for a tool in a session, until that is reset.",
    ),
    _always("openclaw.approval.list", list, "`[]`", _APPROVALS),
    _always("last-heartbeat", type(None), "`null`", "Tells of no heartbeat: agents here wake by cron jobs."),
)
