"""Kept conversations: transcripts as models were last shown them, and the cache of all.

It is only a cache. A transcript never changes but at its end, so what is kept stays right. A fact brings each message
that this process appends. A gap between two places tells of a message that another process has appended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from backchannel.core.contracts import MessageEncoder
from backchannel.core.facts import MessageAppended
from backchannel.core.messages import ImageBlock, Message, Role
from backchannel.core.requests import Conversation, Line, OutOfOrder, View
from backchannel.core.run_order import in_order, settled_places
from backchannel.core.runs import TranscriptHead

MOST_KEPT_BYTES = 64 * 1024 * 1024
"""Of all conversations together."""
_MESSAGE_BYTES = 800
"""What a message is taken to need besides its text."""
_CONVERSATION_BYTES = 3_500
"""What a conversation is taken to need besides its messages."""


class KeptConversation:
    """One transcript as a model was last shown it."""

    def __init__(
        self,
        lines: list[Line],
        head: TranscriptHead | None = None,
        summary: Message | None = None,
        *,
        begins: int = 0,
        is_whole: bool = True,
    ) -> None:
        """Begin with the lines from the cut on. Without a head, the transcript is new."""
        self.head = head
        self.begins = begins
        """The place of the first message that was read."""
        self.is_whole = is_whole
        """Whether that is the cut; else there was too much to read."""
        self.conversation: Conversation | None = None
        self.encoder: str | None = None
        self.asked_by: str | None = None
        """The run that has its own part last, though others came after it."""
        self.body = bytearray()
        """The closed steps, encoded."""
        self.messages: list[Message] = []
        """The closed steps, for a model that has no encoder."""
        self.picture_sizes: list[int] = []
        """In bytes, of the pictures in closed steps."""
        self.size = _CONVERSATION_BYTES + sum(_size_of(message) for _, message in lines)
        """About how many bytes of memory it needs."""
        self._summary = summary
        self._lines = lines
        self._next_seq = lines[-1][0] + 1 if lines else begins
        self._length = self._next_seq if head is None else head.next_seq

    @property
    def waiting(self) -> int:
        """How many messages are not folded yet."""
        return len(self._lines)

    @property
    def gap(self) -> tuple[int, int]:
        """The places of messages that exist and are not here."""
        return self._next_seq, self._length

    def appended(self, seq: int, message: Message) -> None:
        """Take note of a message that was appended."""
        self._length = max(self._length, seq + 1)
        if seq == self._next_seq:
            self.fill([(seq, message)])

    def started(self, head: TranscriptHead) -> bool:
        """Take note of the transcript's row at the start of a run; False if its cut is another one."""
        if (None if self.head is None else self.head.cut) != head.cut:
            return False
        self.head, self._length = head, max(self._length, head.next_seq)
        return True

    def fill(self, lines: Sequence[Line]) -> None:
        """Add messages at the end."""
        self._lines += lines
        self.size += sum(_size_of(message) for _, message in lines)
        self._next_seq = lines[-1][0] + 1 if lines else self._next_seq

    def is_for(self, view: View, encoder: str | None, run_id: str) -> bool:
        """Tell whether the next request of a run can extend what is kept."""
        if self.conversation is None:
            return True
        return self.conversation.view == view and self.encoder == encoder and self.asked_by in (None, run_id)

    def fold(self, view: View, encoder: str | None, run_id: str, question: str | None) -> bool:
        """Fold the messages that wait; False if the run's part would not stand last, as a whole and in order.

        `question` is the id of the message that the run answers. It may be before the cut.
        """
        if self.conversation is None:
            if question is not None and all(message.id != question for _, message in self._lines):
                return False
            self.conversation, self.encoder = Conversation(view, self._summary), encoder
        lines, self._lines = self._lines, []
        try:
            for seq, message in lines:
                self.conversation.add(seq, message)
        except OutOfOrder:
            return False
        return self.conversation.newest_run == run_id

    def fold_in_order(self, view: View, encoder: str | None, run_id: str, own: Sequence[Line]) -> None:
        """Fold all messages with the run's part last; `own` are the lines of that part before the cut."""
        lines = dict([*own, *self._lines])  # a question before the cut is in both
        ordered = in_order(list(lines.items()), run_id)
        self.conversation = Conversation(view, self._summary, settled_places(ordered))
        self.encoder, self.asked_by = encoder, run_id
        for seq, message in ordered:
            self.conversation.add(seq, message)
        self._lines = []

    def keep(self, steps: Sequence[Sequence[Message]], encoder: MessageEncoder | None) -> None:
        """Keep closed steps in the form that the model takes."""
        for step in steps:
            if encoder is None:
                self.messages += step
            elif encoded := encoder.encode(step):
                self.body += b"," + encoded if self.body else encoded
            self.size += sum(map(_picture_bytes, step))


def _size_of(message: Message) -> int:
    return _MESSAGE_BYTES + len(message.text)


def _picture_bytes(message: Message) -> int:
    return sum(len(block.data or "") for block in message.content if isinstance(block, ImageBlock))


class ConversationCache:
    """Kept conversations by session id. Their size together is bounded: the least recently used go."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, KeptConversation] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._size = 0
        self._most_bytes = MOST_KEPT_BYTES

    def get(self, session_id: str) -> KeptConversation | None:
        return self._kept.get(session_id)

    def put(self, session_id: str, kept: KeptConversation) -> None:
        """Keep a conversation, or note its new size. The least recently used ones go."""
        self._kept[session_id] = kept
        self._kept.move_to_end(session_id)
        self._size += kept.size - self._sizes.get(session_id, 0)
        self._sizes[session_id] = kept.size
        while self._size > self._most_bytes and len(self._kept) > 1:
            self.drop(next(iter(self._kept)))

    def drop(self, session_id: str) -> None:
        self._kept.pop(session_id, None)
        self._size -= self._sizes.pop(session_id, 0)

    def clear(self) -> None:
        self._kept.clear()
        self._sizes.clear()
        self._size = 0

    def appended(self, fact: MessageAppended) -> None:
        """Take note of a message that this process appended; the first one of a transcript is kept at once."""
        message = fact.message
        if (kept := self._kept.get(fact.session_id)) is not None:
            kept.appended(fact.seq, message)
            self.put(fact.session_id, kept)
        elif fact.seq == 0 and message.role is Role.USER and message.run_id is not None:
            self.put(fact.session_id, KeptConversation([(0, message)]))
