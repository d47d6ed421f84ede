"""What of OpenClaw's clients works here, and what does not: the table of `docs/how-to/use-openclaw-clients.md`.

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
    Row("gateway call", "every method of OpenClaw's that this gateway has"),
    Row("health", "`health`, `gateway health`"),
    Row("health", "`health` prints the agents of the gateway and how many sessions they have"),
    Row("status", "`status`"),
    Row(
        "status",
        "`gateway status`",
        note="yes, with `--url` and `--token`: else it looks for OpenClaw's own gateway on this machine; that it warns "
        "of another version is no harm",
    ),
    Row(
        "status",
        "`gateway probe`",
        note="yes; it also tries OpenClaw's own port on this machine and a tunnel over SSH, and says that they failed",
    ),
    Row("status", "`gateway usage-cost`"),
    Row(
        "status",
        "`gateway stability`",
        note="an empty record, as none is kept here: the log, `backchannel status` and the metrics tell what went "
        "wrong",
    ),
    Row(
        "agent",
        "`--agent`, `--session-key`, `--thinking`",
        note="yes; if the gateway is killed meanwhile, the command ends with an error, and the reply is in the session "
        "when the gateway is back",
    ),
    Row("agent", "`--session-id`"),
    Row("agent", "`--to`"),
    Row(
        "agent",
        "`--deliver`",
        note="yes; where nobody has written from a chat, there is none to deliver to, and `backchannel deliveries "
        "list` says so",
    ),
    Row("sessions", "`sessions archive`", note="yes; the main session of an agent can only be reset"),
    Row(
        "sessions",
        "`sessions compact`",
        note="taken, and changes nothing: transcripts are kept whole, and what no longer fits the model's context is "
        "left out of its request alone",
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
    Row("nodes", "`nodes describe`", note="yes: what the node says of itself; no command of a node can be called here"),
    Row("devices", "`devices list`"),
    Row("devices", "`devices remove`, `devices revoke`"),
    Row("approvals", "`approvals pending`, `approvals resolve`"),
    Row(
        "approvals",
        "`approvals get`",
        note="with `--gateway`: which agents have the tool `exec`, and whether they have to ask; it is changed in the "
        "configuration",
    ),
    Row("skills", "`skills list`"),
    Row(
        "message",
        "`message send`",
        note="yes, where the channel has a name that OpenClaw knows, such as `telegram` or `slack`: it refuses any "
        "other, such as `desk`, before it asks the gateway, so name the channel as the platform is named",
    ),
    Row("tui", "the history of a session"),
    Row(
        "tui",
        "`openclaw resume` of a session, by its key or its label",
        note="yes; a label that is part of other sessions' titles is ambiguous to it",
    ),
    Row("tui", "a reply as it is written"),
    Row("tui", "Esc and `/abort`"),
    Row("tui", "what agents say to each other meanwhile"),
    Row("tui", "the report of a sub-agent"),
    Row("tui", "reading the history again: nothing twice"),
    Row("tui", "a call of a tool, and what is said before and after it"),
    Row("tui", "a note that is put into the session"),
    Row("tui", "two on one session, one of them opened in the middle of a reply"),
    Row("tui", "`/sessions`, `/agents`, `/models`"),
    Row("tui", "`/model`, `/think`, `/verbose`", note="yes; `/verbose full` is the same as `on`"),
    Row("tui", "`/reasoning`, `/usage`, `/trace`, `/elevated`, `/fast`", note="taken, and changes nothing here"),
    Row("tui", "`/status`, `/commands`"),
    Row("tui", "`/gateway-status`"),
    Row("tui", "a tool call that waits for permission"),
    Row("tui", "`/new`"),
    Row("tui", "a session that is new"),
    Row("tui", "`kill -9` of the gateway in the middle of a reply"),
    Row("acp", "a prompt, and its reply as it is written"),
    Row("acp", "a call of a tool, and what is said before and after it"),
    Row("acp", "an image in a prompt"),
    Row(
        "acp",
        "a tool call that waits for permission",
        note="not shown: the editor hears nothing until somebody answers it elsewhere; then the reply goes on",
    ),
    Row("acp", "cancelling"),
    Row("acp", "listing and loading sessions", note="yes; with `--session`, loading any shows that one"),
    Row("acp", "what agents said to each other"),
    Row("acp", "a mode of the session"),
    Row("acp", "`kill -9` of the gateway in the middle of a reply"),
    Row("acp", "a reply that is stopped while the connection is lost"),
    Row("Control UI", "logging in, and the list of sessions"),
    Row("Control UI", "a conversation: its history, a message, its reply"),
    Row("Control UI", "aborting a run"),
    Row("Control UI", "searching what was said"),
    Row("Control UI", "a tool call that waits for permission"),
    Row("Control UI", "a call of a tool, and what is said before and after it"),
    Row("Control UI", "the report of a sub-agent"),
    Row("Control UI", "loading the page anew: nothing twice"),
    Row("Control UI", "staying logged in when the page is loaded anew"),
    Row("Control UI", "opening it, and loading it anew, at any of its addresses"),
    Row("Control UI", "agents, automations, plugins, systems, logs, approvals, updates, skills"),
    Row(
        "Control UI",
        "usage, activity, and settings: devices, channels, appearance, gateway, security and the like",
        note="shown, with what there is here: settings are changed in the configuration, and what the page offers to "
        "set up, such as a channel, is not. What Security says of the policy for commands is a default of the page",
    ),
    Row(
        "Control UI",
        "the other pages of settings",
        "they are about what is not here, such as web search, memory and accounts at GitHub",
    ),
    Row("Control UI", "another origin is told that it is not allowed"),
    Row("mcp serve", "listing and reading conversations"),
    Row("mcp serve", "sending to a conversation"),
    Row("mcp serve", "approvals that wait, and answering them"),
    Row(
        "node",
        "`node run` connects, and `nodes status` shows it",
        note="yes, with `--host` and `--port`",
    ),
    Row("library", "`@openclaw/gateway-client`: the handshake, a message, the events of its run"),
    Row("library", "a call of a tool: its events in their order, with what it returned"),
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
