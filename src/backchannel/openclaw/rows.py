"""Sessions, replies and waiting messages in the shapes of OpenClaw's clients.

Clients of both kinds read them: the gateway's methods and events have no other row for a session.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Raw

from backchannel.wire.rows import SessionFields
from backchannel.wire.shapes import Answer, doc


class SessionRow(SessionFields, frozen=True, kw_only=True):
    """A session, as methods and events show it to operators, in the words of OpenClaw's gateway."""

    kind: Annotated[str, doc("`group`; `global`, with `session.scope` global, for main sessions; else `direct`.")]
    classification: Annotated[str, doc("`main`, `group`, `cron`, `hook`, `node` or `other`: the `kind` of the tools.")]
    created_at: Annotated[int, doc("When it was made, in milliseconds since 1970.")]
    has_active_run: Annotated[bool, doc("Whether a run of it is not over.")]
    active_run_ids: Annotated[list[str], doc("Those runs, the first ones of very many, in their order.")]
    status: Annotated[
        str | None,
        doc(
            "`running` or `queued`, else how the last run of its transcript ended: `done`, `failed`, `timeout` or "
            "`killed`, which is aborted."
        ),
    ] = None
    archived: Annotated[bool, doc("Whether it is archived.")] = False
    total_tokens_fresh: Annotated[bool, doc("Whether `totalTokens` is known: it is that of the last reply.")] = False
    input_tokens: Annotated[int | None, doc("What its models were sent in all.")] = None
    output_tokens: Annotated[int | None, doc("What they replied in all.")] = None
    estimated_cost_usd: Annotated[float | None, doc("What that cost, where the prices are known.")] = None
    last_message_preview: Annotated[str | None, doc("Only in `sessions.list`, when asked for.")] = None
    derived_title: Annotated[
        str | None, doc("Its label, else its name, else what was said first; only in `sessions.list`, when asked for.")
    ] = None

    @property
    def activity(self) -> str:
        """What it does now, as the tools say it."""
        return self.status if self.status and self.has_active_run else "idle"


class TerminalReply(Answer, frozen=True, kw_only=True, omit_defaults=False):
    """A reply in the form that clients look for after a reconnect."""

    disposition: str = "visible"
    text: str


class InFlightRun(Answer, frozen=True, kw_only=True, omit_defaults=False):
    """A run at work, and its text so far; empty if nobody has listened."""

    run_id: str
    text: str


class PendingInput(Answer, frozen=True, kw_only=True):
    """A message that was accepted and is not yet in the transcript."""

    id: str
    state: str
    message: Raw
    accepted_at: int
    run_id: str | None = None


class PendingInputs(Answer, frozen=True, kw_only=True):
    """The waiting messages, as its clients read them; the first ones of many."""

    items: list[PendingInput]
    total: int
