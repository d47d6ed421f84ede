"""What a chat is told beside the replies to it: results of sub-agents, announces, what a woken agent has to say.

Events tell that there is something; what it is stands in the receipts and runs of the session. Each is shown once.
"""

from __future__ import annotations

from backchannel.cli.client import ANSWER_S, CallFailed, Client, Link, NoGateway, Payload
from backchannel.cli.following import ends_step
from backchannel.cli.output import clock_time, say, say_dim, say_styled
from backchannel.core.control_words import is_silent

LISTED = 50
CHANNEL = "webchat"
BY_ITSELF = ("wake", "cron", "hook")
"""The runs in which a session speaks without having been spoken to; on webchat their replies have no receipt."""


class Posts:
    """What one session's chat is told, from now on and over restarts of the gateway."""

    def __init__(self, link: Link, session: str) -> None:
        self._link = link
        self._session = session
        self._watched: Client | None = None
        self._seen: set[str] | None = None

    def load(self) -> list[Payload]:
        """Give what is new since the last time, the oldest first; nothing while the gateway is away."""
        return self._ask(only_if_told=False)

    def load_if_told(self) -> list[Payload]:
        """The same, without a question to the gateway if it has told nothing."""
        return self._ask(only_if_told=True)

    def _ask(self, *, only_if_told: bool) -> list[Payload]:
        client = self._link.at_hand()
        if client is None:
            return []
        try:
            is_told = self._is_told(client)
            return self._fresh(client) if is_told or not only_if_told else []
        except NoGateway:
            self._link.lose()
        except CallFailed as refused:
            if refused.is_retryable:
                self._link.lose()
            elif refused.reason == "session_not_found":
                self._seen = self._seen or set()  # whatever is posted to a session that is to come is new
            # Otherwise the token may write and not read: it gets replies, and nothing else.
        return []

    def _is_told(self, client: Client) -> bool:
        """Whether something has ended in the session; a new connection may have missed that."""
        if client is not self._watched:
            _ask(client, "sessions.messages.subscribe", key=self._session)
            self._watched = client
            return True
        is_told = False
        while events := list(client.events(0)):
            is_told = is_told or any(map(ends_step, events))
        return is_told

    def _fresh(self, client: Client) -> list[Payload]:
        found = [*self._sent(client), *self._spoken(client)]
        fresh = [] if self._seen is None else [post for post in found if post["id"] not in self._seen]
        self._seen = (self._seen or set()) | {post["id"] for post in found}
        return sorted(fresh, key=lambda post: int(post["at"]))

    def _sent(self, client: Client) -> list[Payload]:
        listed = _ask(client, "deliveries.list", sessionKey=self._session, state="sent", limit=LISTED)
        return [
            {"id": receipt["id"], "at": receipt["updatedAt"], "text": receipt["text"]}
            for receipt in reversed(listed["deliveries"])
            if receipt.get("channel") == CHANNEL
        ]

    def _spoken(self, client: Client) -> list[Payload]:
        listed = _ask(client, "runs.list", sessionKey=self._session, states=["ok"], limit=LISTED)
        return [
            {"id": run["runId"], "at": run["endedAt"], "text": run["reply"]}
            for run in reversed(listed["runs"])
            if run["kind"] in BY_ITSELF and not is_silent(run.get("reply"))
        ]


def _ask(client: Client, method: str, **params: object) -> Payload:
    """Ask without a word about waiting, which would be written over the prompt."""
    return client.wait(client.ask(method, **params), ANSWER_S)


def show_post(post: Payload) -> None:
    """Print what the chat was told, and when."""
    say_styled("posted", end=" ", fg="cyan", bold=True)
    say_dim(clock_time(post["at"]))
    say(f"{post['text']}\n")
