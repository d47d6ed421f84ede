"""The features of OpenClaw's clients that work here, and those that do not.

They are the table of `docs/how-to/use-openclaw-clients.md`.

A row is tried by the tests that have it as their mark, `@shows(client, what)`. One that does not work is expected
to fail, so that it is moved once it works.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that people do with a client."""

    client: str
    what: str
    why: str = ""
    """Why it does not work; empty where it does."""
    note: str = ""
    """What is said in place of a plain yes: what it needs, or does otherwise than people may expect."""

    @property
    def works(self) -> bool:
        return not self.why


ROWS: tuple[Row, ...] = (
    Row("gateway call", "every method that both gateways have"),
    Row("health", "`health`, `gateway health`"),
    Row("health", "`health` prints the gateway's agents and their number of sessions"),
    Row("status", "`status`"),
    Row(
        "status",
        "`gateway status`",
        note="yes, with `--url` and `--token`; without them it looks for OpenClaw's own gateway on this machine. "
        "Ignore its warning about another version",
    ),
    Row(
        "status",
        "`gateway probe`",
        note="yes; it also tries OpenClaw's own port and an SSH tunnel, and says that they failed",
    ),
    Row("status", "`gateway usage-cost`"),
    Row(
        "status",
        "`gateway stability`",
        note="an empty record; see the log, `backchannel status` and the metrics instead",
    ),
    Row(
        "agent",
        "`--agent`, `--session-key`, `--thinking`",
        note="yes; if the gateway is killed meanwhile, the command fails, and the reply is in the session after "
        "the restart",
    ),
    Row("agent", "`--session-id`"),
    Row("agent", "`--to`"),
    Row(
        "agent",
        "`--deliver`",
        note="yes; if nobody has written from a chat, there is no place to deliver to, and `backchannel deliveries"
        " list` says so",
    ),
    Row("sessions", "`sessions archive`", note="yes; the main session of an agent can only be reset"),
    Row(
        "sessions",
        "`sessions compact`",
        note="yes; it summarises the older part for the model, and the transcript stays whole",
    ),
    Row("channels", "`channels status`"),
    Row("models", "`models list`"),
    Row("cron", "`cron list`"),
    Row("cron", "`cron add`, `cron rm`"),
    Row("cron", "`cron add` in all forms of schedules, `cron edit`, `cron show`"),
    Row("cron", "`cron show` says where a reply goes"),
    Row("cron", "`cron status`, `cron run`, `cron runs`"),
    Row("cron", "`cron disable`, `cron enable`"),
    Row("system", "`system presence`, `system heartbeat last`"),
    Row("system", "`system event`"),
    Row("logs", "`logs`, with `--follow`, `--json`, `--limit`"),
    Row("nodes", "`nodes list`, `nodes status`"),
    Row("nodes", "`nodes describe`", note="yes: what the node reports; commands of a node cannot be called here"),
    Row("devices", "`devices list`"),
    Row("devices", "`devices remove`, `devices revoke`"),
    Row("approvals", "`approvals pending`, `approvals resolve`"),
    Row(
        "approvals",
        "`approvals get`",
        note="with `--gateway`: which agents have the tool `exec`, and whether calls need approval; change it in "
        "the configuration",
    ),
    Row("skills", "`skills list`"),
    Row(
        "message",
        "`message send`",
        note="yes, if the channel is named like its platform, such as `telegram` or `slack`; OpenClaw refuses "
        "names that it does not know, such as `desk`",
    ),
    Row("tui", "the history of a session"),
    Row(
        "tui",
        "`openclaw resume` of a session, by its key or its label",
        note="yes; a label that is part of another session's title is ambiguous",
    ),
    Row("tui", "a streamed reply"),
    Row("tui", "Esc and `/abort`"),
    Row("tui", "what agents say to each other meanwhile"),
    Row("tui", "the report of a sub-agent"),
    Row("tui", "reloading the history: no duplicates"),
    Row("tui", "a tool call, and the text before and after it"),
    Row("tui", "a note injected into the session"),
    Row("tui", "two clients on one session, one opened during a reply"),
    Row("tui", "`/sessions`, `/agents`, `/models`"),
    Row("tui", "`/model`, `/think`, `/verbose`", note="yes; `/verbose full` is the same as `on`"),
    Row("tui", "`/reasoning`, `/usage`, `/trace`, `/elevated`, `/fast`", note="accepted, without effect"),
    Row("tui", "`/status`, `/commands`"),
    Row("tui", "`/gateway-status`"),
    Row("tui", "a tool call that waits for permission"),
    Row("tui", "`/new`"),
    Row("tui", "a new session"),
    Row("tui", "`kill -9` of the gateway in the middle of a reply"),
    Row("acp", "a prompt, and its streamed reply"),
    Row("acp", "a tool call, and the text before and after it"),
    Row("acp", "an image in a prompt"),
    Row(
        "acp",
        "a tool call that waits for permission",
        note="not shown: the editor gets nothing until somebody answers elsewhere; then the reply continues",
    ),
    Row("acp", "cancelling"),
    Row("acp", "listing and loading sessions", note="yes; with `--session`, loading any session shows that one"),
    Row("acp", "what agents said to each other"),
    Row("acp", "a mode of the session"),
    Row("acp", "`kill -9` of the gateway in the middle of a reply"),
    Row("acp", "a reply that is stopped while the connection is lost"),
    Row("Control UI", "logging in, and the list of sessions"),
    Row("Control UI", "a conversation: its history, a message, its reply"),
    Row("Control UI", "aborting a run"),
    Row("Control UI", "searching messages"),
    Row("Control UI", "a tool call that waits for permission"),
    Row("Control UI", "a tool call, and the text before and after it"),
    Row("Control UI", "the report of a sub-agent"),
    Row("Control UI", "reloading the page: no duplicates"),
    Row("Control UI", "staying logged in after a reload"),
    Row("Control UI", "opening and reloading any of its addresses"),
    Row("Control UI", "agents, automations, plugins, systems, logs, approvals, updates, skills"),
    Row(
        "Control UI",
        "usage, activity, and settings: devices, channels, appearance, gateway, security and the like",
        note="shown; the page cannot change settings or set up a channel: use the configuration. Below your channels "
        "it always offers eight platforms, which this gateway refuses to set up. What Security says about the policy "
        "for commands is a default of the page",
    ),
    Row(
        "Control UI",
        "the other pages of settings",
        "this gateway does not have these features, such as web search, memory and GitHub accounts",
    ),
    Row("Control UI", "another origin is refused"),
    Row("mcp serve", "listing and reading conversations"),
    Row("mcp serve", "sending to a conversation"),
    Row("mcp serve", "listing and answering approvals"),
    Row(
        "node",
        "`node run` connects, and `nodes status` shows it",
        note="yes, with `--host` and `--port`",
    ),
    Row("library", "`@openclaw/gateway-client`: the handshake, a message, the events of its run"),
    Row("library", "a tool call: its events in order, with its result"),
)


def row(client: str, what: str) -> Row:
    """Find a row."""
    return next(each for each in ROWS if (each.client, each.what) == (client, what))


def shows(client: str, what: str) -> pytest.MarkDecorator:
    """Mark a test as one that tries a row."""
    row(client, what)  # there is one
    return pytest.mark.shows(client, what)


def table() -> str:
    """Write the table as the page has it; `python -m tests.interop.openclaw.rows` prints it."""
    lines = [f"| {each.client} | {each.what} | {_verdict(each)} |" for each in ROWS]
    return "\n".join(["| client | what | works |", "|---|---|---|", *lines]) + "\n"


def _verdict(row: Row) -> str:
    return row.note or "yes" if row.works else f"no: {row.why}"


if __name__ == "__main__":
    print(table(), end="")
