"""Empty answers: OpenClaw's methods for things that this gateway does not have.

Its clients call them at start and treat an unknown method as a fault. Some ask with a scope that permits little here
(`operator.pairing`), so these methods need no scope.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backchannel.config.schedules import show_moment
from backchannel.gateway.calls import Call, Method
from backchannel.version import __version__
from backchannel.wire.frames import SharedNoParams, TokenScope

_NO_VOICE = {"ready": False, "providers": []}
_THEME = {"id": "claw", "mode": "system", "scope": "gateway", "source": "builtin"}
_IN_PLUGIN_LIST = "Lists nothing: `plugin.approval.list` has every call that waits for an approval."
_NO_SKILLS = "Lists nothing: agents here have tools and no skills."
_NO_WIZARD = "Nothing is set up from here. Channels are under `channels` in the gateway's configuration."

EMPTY_ANSWERS: Mapping[str, tuple[Any, str]] = {
    "node.pair.list": ({"pending": [], "paired": []}, "Lists nothing: a node connects with a token."),
    "question.list": ({"questions": []}, "Lists nothing: agents here ask in their replies."),
    "tasks.list": ({"tasks": []}, "Lists nothing: work here is runs, see `runs.list`."),
    "environments.list": ({"environments": []}, "Lists nothing: runs work only on the gateway's machine."),
    "skills.status": ({"skills": []}, _NO_SKILLS),
    "plugins.list": (
        {"plugins": [], "diagnostics": [], "mutationAllowed": False},
        "Lists nothing: there are no plugins here.",
    ),
    "plugins.uiDescriptors": ({"ok": True, "descriptors": []}, "Lists nothing: there are no plugins here."),
    "plugins.catalog.browse": ({"items": []}, "Lists nothing: no plugin can be installed here."),
    "skills.library.list": ({"entries": []}, _NO_SKILLS),
    "update.status": (
        {"sentinel": None, "updateAvailable": None},
        "Reports no update: this gateway does not look for updates.",
    ),
    "sessions.branches.list": ({"branches": []}, "Lists nothing: transcripts have no branches here."),
    "progressCard.get": ({"card": None}, "Shows nothing: agents here keep no progress card."),
    "talk.catalog": (
        {
            "modes": [],
            "transports": [],
            "brains": [],
            "speech": _NO_VOICE,
            "transcription": _NO_VOICE,
            "realtime": _NO_VOICE,
        },
        "Lists nothing: there is no voice here.",
    ),
    "sessions.observer.visibility": ({"ok": True}, "Does nothing: events do not depend on what a client shows."),
    "projects.list": ({"projects": []}, "Lists nothing: there are no projects here."),
    "worktrees.list": ({"worktrees": []}, "Lists nothing: there are no worktrees here."),
    "skills.search": ({"results": []}, "Finds nothing: agents here have tools and no skills."),
    "skills.proposals.list": (
        {
            "schema": "openclaw.skill-workshop.proposals-manifest.v1",
            "updatedAt": show_moment(0),
            "proposals": [],
        },
        _NO_SKILLS,
    ),
    "artifacts.list": ({"artifacts": []}, "Lists nothing: the files that agents make are in their workspaces."),
    "sessions.companion.state": ({"exchanges": []}, "Lists nothing: there is no second chat beside a chat."),
    "sessions.usage.logs": ({"logs": []}, "Lists nothing: `chat.history` has what was said."),
    "themes.list": (
        {"current": _THEME, "theme": _THEME, "themes": []},
        "Lists nothing: the gateway stores no themes.",
    ),
    "config.schema": (
        {
            "schema": {"type": "object", "properties": {}},
            "uiHints": {},
            "version": __version__,
            "generatedAt": show_moment(0),
        },
        "Describes no form: settings are changed in the configuration, and `config.get` shows them.",
    ),
    "wizard.start": (
        {"sessionId": "none", "done": True, "status": "error", "error": _NO_WIZARD},
        "Sets up nothing, and says where channels are configured: the Control UI offers all platforms that it knows.",
    ),
    "exec.approval.list": ([], _IN_PLUGIN_LIST),
    "exec.approval.grants.list": (
        {"grants": []},
        "Lists nothing: `allow-always` holds for a tool in a session, until the session is reset.",
    ),
    "openclaw.approval.list": ([], _IN_PLUGIN_LIST),
    "last-heartbeat": (None, "Reports no heartbeat: cron jobs wake agents here."),
}
"""The answer of each method, and why it is empty."""


class EmptyMethod(Method[SharedNoParams, Any]):
    """A method with one fixed answer."""

    def __init__(self, name: str, answer: Any, why: str) -> None:
        async def handler(call: Call, params: SharedNoParams) -> Any:
            return answer

        handler.__doc__ = why
        super().__init__(name, TokenScope.READ, handler, is_open=True)
        self.fixed = answer


METHODS = [EmptyMethod(name, answer, why) for name, (answer, why) in EMPTY_ANSWERS.items()]
