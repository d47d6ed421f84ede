"""The published definition that each answer and each event must fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """A definition, and where in the answer what it defines stands; `*` is each of a list."""

    definition: str
    path: tuple[str, ...] = ()


FRAMES: Mapping[str, str] = {"req": "RequestFrame", "res": "ResponseFrame", "event": "EventFrame"}

ANSWERS: Mapping[str, tuple[Shape, ...]] = {
    "connect": (Shape("HelloOk"),),
    "agents.list": (Shape("AgentsListResult"),),
    "agents.files.list": (Shape("AgentsFilesListResult"),),
    "agent.identity.get": (Shape("AgentIdentityResult"),),
    "models.list": (Shape("ModelsListResult"),),
    "commands.list": (Shape("CommandsListResult"),),
    "chat.metadata": (Shape("ModelChoice", ("models", "*")), Shape("CommandEntry", ("commands", "*"))),
    "chat.history": (Shape("SessionRow", ("sessionInfo",)),),
    "chat.startup": (Shape("SessionRow", ("sessionInfo",)),),
    "sessions.list": (Shape("SessionRow", ("sessions", "*")),),
    "sessions.describe": (Shape("SessionRow", ("session",)),),
    "sessions.create": (Shape("SessionsCreateResult"), Shape("SessionRow", ("entry",))),
    "sessions.patch": (Shape("SessionRow", ("entry",)),),
    "sessions.reset": (Shape("SessionRow", ("entry",)),),
    "sessions.resolve": (Shape("SessionsResolveResult"),),
    "sessions.delete": (Shape("SessionsDeleteResult"),),
    "sessions.search": (Shape("SessionsSearchResult"),),
    "cron.list": (Shape("CronJob", ("jobs", "*")),),
    "cron.get": (Shape("CronJob"),),
    "cron.add": (Shape("CronAddResult"),),
    "cron.update": (Shape("CronJob"),),
    "cron.runs": (Shape("CronRunLogEntry", ("entries", "*")),),
    "approval.get": (Shape("ApprovalGetResult"),),
    "approval.history": (Shape("ApprovalHistoryResult"),),
    "approval.resolve": (Shape("ApprovalResolveResult"),),
    "channels.status": (Shape("ChannelsStatusResult"),),
    "environments.list": (Shape("EnvironmentsListResult"),),
    "exec.approval.grants.list": (Shape("ExecApprovalGrantsListResult"),),
    "logs.tail": (Shape("LogsTailResult"),),
    "node.event": (Shape("NodeEventResult"),),
    "plugins.list": (Shape("PluginsListResult"),),
    "plugins.uiDescriptors": (Shape("PluginsUiDescriptorsResult"),),
    "progressCard.get": (Shape("ProgressCardGetResult"),),
    "projects.list": (Shape("ProjectsListResult"),),
    "question.list": (Shape("QuestionListResult"),),
    "sessions.branches.list": (Shape("SessionsBranchesListResult"),),
    "sessions.observer.visibility": (Shape("SessionsObserverVisibilityResult"),),
    "system-presence": (Shape("PresenceEntry", ("*",)),),
    "talk.catalog": (Shape("TalkCatalogResult"),),
    "tasks.list": (Shape("TasksListResult"),),
    "tools.catalog": (Shape("ToolsCatalogResult"),),
    "tools.effective": (Shape("ToolsEffectiveResult"),),
    "tools.invoke": (Shape("ToolsInvokeResult"),),
    "update.status": (Shape("UpdateStatusResult"),),
    "worktrees.list": (Shape("WorktreesListResult"),),
    "artifacts.list": (Shape("ArtifactsListResult"),),
    "channels.pairing.list": (Shape("ChannelsPairingListResult"),),
    "channels.pairing.approve": (Shape("ChannelsPairingApproveResult"),),
    "channels.pairing.dismiss": (Shape("ChannelsPairingDismissResult"),),
    "config.schema": (Shape("ConfigSchemaResponse"),),
    "exec.approvals.get": (Shape("ExecApprovalsSnapshot"),),
    "sessions.companion.state": (Shape("SessionsCompanionStateResult"),),
    "skills.proposals.list": (Shape("SkillsProposalsListResult"),),
    "skills.search": (Shape("SkillsSearchResult"),),
    "system.info": (Shape("SystemInfoResult"),),
}
"""Of the methods that both gateways have, those whose answers, or parts of them, have a published definition."""

EVENTS: Mapping[str, Shape] = {
    "agent": Shape("AgentEvent"),
    "sessions.changed": Shape("SessionRow", ("session",)),
    "tick": Shape("TickEvent"),
    "shutdown": Shape("ShutdownEvent"),
}

CHAT_STATES: Mapping[str, str] = {
    "status": "ChatStatusEvent",
    "delta": "ChatDeltaEvent",
    "final": "ChatFinalEvent",
    "aborted": "ChatAbortedEvent",
    "error": "ChatErrorEvent",
}
"""The event `chat` has a definition per state: one that says of none of five why it does not fit would say nothing."""


def params_of(method: str) -> str:
    """Name the definition of a method's parameters, which follows its name."""
    words = method.replace("-", ".").split(".")
    return "".join(word[0].upper() + word[1:] for word in words) + "Params"


def wanted() -> set[str]:
    """Name every definition that is looked at, besides those of parameters."""
    parts = {shape.definition for shapes in (*ANSWERS.values(), EVENTS.values()) for shape in shapes}
    return {"ErrorShape", *FRAMES.values(), *parts, *CHAT_STATES.values()}
