"""A stand-in for Telegram: a real HTTP server that speaks the Bot API as its documents describe it, and no more.

    async with Telegram() as telegram:
        telegram.say("hello", sender=ANN)
        telegram.then("sendMessage", Fault(429, "Too Many Requests: retry after 5", retry_after=5))
        … a gateway with the channel `telegram.settings()` …
        await telegram.posted(1)

A request with a field that is not documented, or of another type, fails the test when the stand-in is closed. Updates
are kept until they are confirmed by a higher offset; a question is kept open until there is one; a second question
ends the first, as Telegram does it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, unquote

from tests.support.platform import Moment
from tests.support.servers import Break, Hang, LocalServer
from tests.support.telegram_html import BadMarkup, read_html
from tests.support.telegram_methods import complaint

TOKEN = "4242:a-token-of-the-tests-AAAAAAAAAAAAAAAAAAA"
BOT_ID = 4242
BOT_NAME = "Test_Bot"
ANN, BOB, EVE = 7, 8, 9
NAMES = {ANN: "Ann", BOB: "Bob", EVE: "Eve"}
GROUP = -1001
MAX_UNITS = 4096
WRITES = ("sendMessage", "sendPhoto", "sendDocument", "editMessageText", "deleteMessage")


@dataclass(frozen=True)
class Fault:
    """An error as an answer; `takes` does what was asked for all the same."""

    status: int
    description: str = "Internal Server Error"
    retry_after: Any = None
    migrate_to: int | None = None
    takes: bool = False
    body: str | None = None
    """What is answered in place of an error of Telegram: that of a proxy on the way."""


Told = Fault | Hang | Break


@dataclass
class Post:
    """A message of the bot, as people see it now."""

    message_id: int
    chat_id: int
    text: str
    sent: str
    """What was sent: with its markup."""
    is_html: bool
    thread_id: int | None
    reply_to: int | None
    file: tuple[str, str, bytes] | None = None
    """What was sent with it: the method, the name, the content."""
    buttons: dict[str, str] = field(default_factory=dict)
    """The values of its buttons, by their labels."""
    edits: list[str] = field(default_factory=list)
    """The texts that it had before."""
    is_deleted: bool = False


class Call(NamedTuple):
    method: str
    fields: dict[str, str]
    at: float


class Refusal(Exception):
    def __init__(self, status: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.status, self.description, self.parameters = status, description, parameters


class Telegram(LocalServer):
    """The server, one bot of it, and the people who write to that."""

    def __init__(self, token: str = TOKEN) -> None:
        super().__init__()
        self.token = token
        self.other_bots: dict[str, tuple[int, str]] = {}
        """More bots, by their tokens: id and name. All else is shared."""
        self.api_root = ""
        self.calls: list[Call] = []
        self.posts: list[Post] = []
        self.problems: list[str] = []
        self.menus: dict[str, list[str]] = {}
        self.webhook: dict[str, str] | None = None
        self.webhook_error: dict[str, Any] = {}
        """What went wrong last when Telegram posted: `last_error_date` and `last_error_message`."""
        self.files: dict[str, bytes] = {}
        self.chats: dict[int, dict[str, Any]] = {user: _private(user) for user in NAMES}
        self.chats[GROUP] = {"id": GROUP, "type": "supergroup", "title": "The group"}
        self.topics: set[tuple[int, int]] = set()
        self.updates: deque[dict[str, Any]] = deque()
        self.malformed: list[Any] = []
        """What is given with every answer to a question for updates, though it is none."""
        self.confirmed = 0
        """How many updates were confirmed."""
        self._told: defaultdict[str, deque[Told]] = defaultdict(deque)
        self._numbers: Counter[int] = Counter()
        self._update_id = 1000
        self._press_id = 0
        self.pressed: dict[str, str] = {}
        """What was answered to presses, by their ids."""
        self._changed = asyncio.Condition()
        self.call_count = 0
        """How often something was posted, edited or deleted, or was to be."""
        self.at_call: Callable[[int, Moment], Awaitable[None]] | None = None
        """Asked at each of these calls: before it is heard, when it is taken, and when it is answered."""
        self._is_over = False
        self._holder: asyncio.Event | None = None
        """Ends the question that is kept open."""

    def forget(self) -> None:
        """Begin anew: nobody has written anything, and no bot has asked for it."""
        self.posts.clear()
        self.calls.clear()
        self.updates.clear()
        self._told.clear()
        self.pressed.clear()
        self.call_count, self.at_call = 0, None

    def opened(self, port: int) -> None:
        self.api_root = f"http://127.0.0.1:{port}"

    async def __aexit__(self, *raised: object) -> None:
        await super().__aexit__(*raised)
        if raised[0] is None:
            assert not self.problems, self.problems

    async def __aenter__(self) -> Self:
        import_module("backchannel.channels.telegram.account")  # aiogram takes seconds, which no test is to wait for
        return await super().__aenter__()

    def settings(self, **more: Any) -> dict[str, Any]:
        """Make the settings of a channel that leads here."""
        return {"adapter": "telegram", "token": self.token, "apiRoot": self.api_root, "allowFrom": ["*"], **more}

    # What people do

    def say(self, text: str | None = None, *, sender: int = ANN, chat: int | None = None, **more: Any) -> int:
        """Write a message; returns its id. `more` are other fields of the message."""
        chat_id = sender if chat is None else chat
        message: dict[str, Any] = {
            "message_id": more.pop("message_id", None) or self._next_message(chat_id),
            "date": 1_700_000_000,
            "chat": self.chats[chat_id],
            "from": {"id": sender, "is_bot": False, "first_name": NAMES.get(sender, "Somebody")},
            **({} if text is None else {"text": text}),
            **more,
        }
        self.update(message=message)
        return int(message["message_id"])

    def press(self, post: Post, value: str, *, sender: int = ANN) -> str:
        """Press a button under a message of the bot, perhaps just before it is gone; returns the id of the press."""
        self._press_id += 1
        id = f"press-{self._press_id}"
        message = {**self._shown(post), "message_thread_id": post.thread_id, "is_topic_message": bool(post.thread_id)}
        user = {"id": sender, "is_bot": False, "first_name": NAMES.get(sender, "Somebody")}
        known = {name: value for name, value in message.items() if value is not None}
        self.update(callback_query={"id": id, "from": user, "message": known, "chat_instance": "c", "data": value})
        return id

    def update(self, **kind: Any) -> dict[str, Any]:
        """Make an update of any kind."""
        self._update_id += 1
        made = {"update_id": self._update_id, **kind}
        self.updates.append(made)
        self._wake()
        return made

    def then(self, method: str, *told: Told) -> None:
        """Say what becomes of the next calls of a method."""
        self._told[method].extend(told)

    def delete(self, post: Post) -> None:
        """Delete a message of the bot, as a person can."""
        post.is_deleted = True

    def time_over(self) -> None:
        """Let the time of the question that is kept open be over."""
        self._is_over = True
        self._wake()

    def begin_anew(self, number: int) -> None:
        """Count updates from another number on, as Telegram may after a quiet week."""
        self._update_id = number

    # What is seen

    @property
    def texts(self) -> list[str]:
        return [post.text for post in self.posts if not post.is_deleted]

    def called(self, method: str) -> list[dict[str, str]]:
        return [call.fields for call in self.calls if call.method == method]

    async def until(self, holds: Callable[[], bool], limit_s: float = 10) -> None:
        async with asyncio.timeout(limit_s), self._changed:
            await self._changed.wait_for(holds)

    async def posted(self, count: int, limit_s: float = 10) -> list[str]:
        """Wait until there are so many messages of the bot."""
        await self.until(lambda: len(self.texts) >= count, limit_s)
        return self.texts

    async def drained(self, limit_s: float = 10) -> None:
        """Wait until every update was confirmed."""
        await self.until(lambda: not self.updates, limit_s)

    # The server

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await self._one(reader, writer):
            pass

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        path = head[0].split(" ")[1]
        if path.startswith("/file/"):
            return await self._file(path, writer)
        body = await _body(reader, headers)
        fields, sent = _read_body(headers.get("content-type", ""), body)
        token, _, method = path.removeprefix("/bot").partition("/")
        self.calls.append(Call(method, fields, asyncio.get_running_loop().time()))
        told = self._told[method].popleft() if self._told[method] else None
        self.call_count += method in WRITES
        number = self.call_count if method in WRITES else 0
        try:
            result: Any = None
            if token != self.token and token not in self.other_bots:
                raise Refusal(401, "Unauthorized")
            if problem := complaint(method, fields):
                self.problems.append(problem)
                raise Refusal(400, f"Bad Request: {problem}")
            await self._reached(number, "before")
            if told is None or told.takes:
                result = self._me(token) if method == "getMe" else await self._do(method, fields, reader, sent)
            self._wake()
            await self._reached(number, "taken")
            if told is not None:
                return await self._misbehave(told, reader, writer)
            await _answer(writer, 200, {"ok": True, "result": result})
            await self._reached(number, "answered")
        except Refusal as refusal:
            self._wake()
            await self._reached(number, "taken")
            await _refuse(writer, refusal)
            await self._reached(number, "answered")
        return True

    async def _reached(self, number: int, moment: Moment) -> None:
        if number and self.at_call is not None:
            await self.at_call(number, moment)

    async def _misbehave(self, told: Told, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        match told:
            case Hang():
                await reader.read()
                return False
            case Break():
                return False
            case Fault(body=str(body)):
                await _answer(writer, told.status, body)
            case Fault():
                parameters = {"retry_after": told.retry_after, "migrate_to_chat_id": told.migrate_to}
                given = {name: value for name, value in parameters.items() if value is not None}
                await _refuse(writer, Refusal(told.status, told.description, **given))
        return True

    def _me(self, token: str) -> dict[str, Any]:
        id, name = self.other_bots.get(token, (BOT_ID, BOT_NAME))
        return {
            "id": id,
            "is_bot": True,
            "first_name": "Test",
            "username": name,
            "can_join_groups": True,
            "can_read_all_group_messages": False,
            "supports_inline_queries": False,
        }

    async def _do(
        self, method: str, fields: dict[str, str], reader: asyncio.StreamReader, sent: dict[str, tuple[str, bytes]]
    ) -> Any:
        match method:
            case "sendPhoto" | "sendDocument":
                return self._send_file(method, fields, sent)
            case "getUpdates":
                return await self._get_updates(fields, reader)
            case "sendMessage":
                return self._send(fields)
            case "editMessageText":
                return self._edit(fields)
            case "deleteMessage":
                self._find(fields, "message to delete not found").is_deleted = True
            case "answerCallbackQuery":
                self.pressed[fields["callback_query_id"]] = fields.get("text", "")
            case "sendChatAction":
                self._chat(fields)
            case "setMyCommands":
                scope = json.loads(fields.get("scope", '{"type": "default"}'))
                names = [each["command"] for each in json.loads(fields["commands"])]
                if scope.get("chat_id") is not None and scope["chat_id"] not in self.chats:
                    raise Refusal(400, "Bad Request: chat not found")
                self.menus[str(scope.get("chat_id", scope["type"]))] = names
            case "setWebhook":
                self.webhook = fields
            case "getWebhookInfo":
                url = (self.webhook or {}).get("url", "")
                waiting = {"url": url, "has_custom_certificate": False, "pending_update_count": len(self.updates)}
                return waiting | self.webhook_error
            case "deleteWebhook":
                self.webhook = None
            case "getFile":
                if fields["file_id"] not in self.files:
                    raise Refusal(400, "Bad Request: wrong file_id or the file is temporarily unavailable")
                size = len(self.files[fields["file_id"]])
                path = f"files/{fields['file_id']}"
                return {"file_id": fields["file_id"], "file_unique_id": "u", "file_size": size, "file_path": path}
        return True

    async def _get_updates(self, fields: dict[str, str], reader: asyncio.StreamReader) -> list[dict[str, Any]]:
        if self.webhook is not None:
            raise Refusal(409, "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook first")
        offset, limit = int(fields.get("offset", 0)), int(fields.get("limit", 100))
        if offset < 0:
            self.problems.append("getUpdates: a negative offset forgets updates")
        left_over = [each for each in self.updates if each["update_id"] >= offset]
        self.confirmed += len(self.updates) - len(left_over)
        self.updates = deque(left_over)
        self._wake()
        if self._holder is not None:
            self._holder.set()
        ended = self._holder = asyncio.Event()
        left = asyncio.ensure_future(reader.read(1))
        try:
            while not self.updates and not self.malformed:
                if await self._held(ended, left, int(fields.get("timeout", 0))):
                    return []
            allowed = set(json.loads(fields.get("allowed_updates", "[]")))
            given = [each for each in self.updates if not allowed or allowed & set(each)]
            return [*self.malformed, *given[:limit]]
        finally:
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            if self._holder is ended:
                self._holder = None

    async def _held(self, ended: asyncio.Event, left: asyncio.Future[bytes], timeout_s: int) -> bool:
        """Keep a question open until something changed; tells whether its time is over."""

        async def changed() -> None:
            async with self._changed:
                await self._changed.wait()

        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(changed()), asyncio.ensure_future(ended.wait())]
        try:
            done, _ = await asyncio.wait(
                [*waits, left], timeout=timeout_s or 0.001, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if left in done:
            raise ConnectionResetError
        if self._is_over:
            self._is_over = False
            return True
        if ended.is_set():
            raise Refusal(409, "Conflict: terminated by other getUpdates request; make sure that only one bot runs")
        return not done

    def _send(self, fields: dict[str, str]) -> dict[str, Any]:
        chat = self._chat(fields)
        thread = int(fields["message_thread_id"]) if "message_thread_id" in fields else None
        if thread is not None and (chat["id"], thread) not in self.topics:
            raise Refusal(400, "Bad Request: message thread not found")
        text = self._text(fields)
        reply = json.loads(fields.get("reply_parameters", "{}")).get("message_id")
        number = self._next_message(chat["id"])
        is_html = "parse_mode" in fields
        self.posts.append(
            Post(number, chat["id"], text, fields["text"], is_html, thread, reply, buttons=_buttons(fields))
        )
        return self._shown(self.posts[-1])

    def _send_file(self, method: str, fields: dict[str, str], sent: dict[str, tuple[str, bytes]]) -> dict[str, Any]:
        field = "photo" if method == "sendPhoto" else "document"
        name, content = sent[fields[field].removeprefix("attach://")]
        if method == "sendPhoto" and len(content) > 10 * 1024 * 1024:
            self.problems.append("a photo is too large")
        made = self._send(fields | {"text": fields.get("caption") or name})
        self.posts[-1].file = (method, name, content)
        return made

    def _edit(self, fields: dict[str, str]) -> dict[str, Any]:
        post = self._find(fields, "message to edit not found")
        text = self._text(fields)
        if (fields["text"], "parse_mode" in fields, _buttons(fields)) == (post.sent, post.is_html, post.buttons):
            words = "message is not modified: specified new message content and reply markup are exactly the same"
            raise Refusal(400, f"Bad Request: {words}")
        post.edits.append(post.text)
        post.buttons = _buttons(fields)
        post.text, post.sent, post.is_html = text, fields["text"], "parse_mode" in fields
        return self._shown(post)

    def _text(self, fields: dict[str, str]) -> str:
        text = fields["text"]
        if "parse_mode" in fields:
            try:
                text = read_html(text)
            except BadMarkup as error:
                self.problems.append(f"{error}: {fields['text'][:200]!r}")
                raise Refusal(400, f"Bad Request: can't parse entities: {error}") from error
        if not text.strip():
            raise Refusal(400, "Bad Request: message text is empty")
        if len(text.encode("utf-16-le")) // 2 > MAX_UNITS:
            self.problems.append("a message is too long")
            raise Refusal(400, "Bad Request: message is too long")
        return text

    def _chat(self, fields: dict[str, str]) -> dict[str, Any]:
        chat = self.chats.get(int(fields["chat_id"])) if fields["chat_id"].lstrip("-").isdigit() else None
        if chat is None:
            raise Refusal(400, "Bad Request: chat not found")
        return chat

    def _find(self, fields: dict[str, str], missing: str) -> Post:
        chat, number = self._chat(fields)["id"], int(fields["message_id"])
        for post in self.posts:
            if (post.chat_id, post.message_id, post.is_deleted) == (chat, number, False):
                return post
        raise Refusal(400, f"Bad Request: {missing}")

    def _shown(self, post: Post) -> dict[str, Any]:
        me = {"id": BOT_ID, "is_bot": True, "first_name": "Test", "username": BOT_NAME}
        chat = self.chats[post.chat_id]
        return {"message_id": post.message_id, "date": 1, "chat": chat, "from": me, "text": post.text}

    async def _file(self, path: str, writer: asyncio.StreamWriter) -> bool:
        token, _, file = path.removeprefix("/file/bot").partition("/files/")
        content = self.files.get(file)
        told = self._told["file"].popleft() if self._told["file"] else None
        if isinstance(told, Break) and content is not None:
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content[:-1])
            await writer.drain()
            return False
        if told is not None or token != self.token or content is None:
            await _answer(writer, 404, {"ok": False, "error_code": 404, "description": "Not Found"})
            return True
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
        await writer.drain()
        return True

    def _next_message(self, chat_id: int) -> int:
        self._numbers[chat_id] += 1
        return self._numbers[chat_id]

    def _wake(self) -> None:
        async def wake() -> None:
            async with self._changed:
                self._changed.notify_all()

        task = asyncio.ensure_future(wake())
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


def _read_body(content_type: str, body: bytes) -> tuple[dict[str, str], dict[str, tuple[str, bytes]]]:
    """Read a form, and the files in it by the names of their parts."""
    if not content_type.startswith("multipart/form-data"):
        return dict(parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body))), {}
    boundary = b"--" + content_type.partition("boundary=")[2].strip('"').encode()
    fields: dict[str, str] = {}
    files: dict[str, tuple[str, bytes]] = {}
    for piece in body.split(boundary)[1:-1]:
        head, _, content = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        named = dict(re.findall(r'(\w+)="([^"]*)"', head.decode()))
        if "filename" in named:
            files[named["name"]] = (unquote(named["filename"]), content.removesuffix(b"\r\n"))
        else:
            fields[named["name"]] = content.removesuffix(b"\r\n").decode()
    return fields, files


def _buttons(fields: dict[str, str]) -> dict[str, str]:
    rows = json.loads(fields.get("reply_markup", '{"inline_keyboard": []}'))["inline_keyboard"]
    return {button["text"]: button["callback_data"] for row in rows for button in row}


def _private(user: int) -> dict[str, Any]:
    return {"id": user, "type": "private", "first_name": NAMES[user]}


async def _refuse(writer: asyncio.StreamWriter, refusal: Refusal) -> None:
    said: dict[str, Any] = {"ok": False, "error_code": refusal.status, "description": refusal.description}
    if refusal.parameters:
        said["parameters"] = refusal.parameters
    await _answer(writer, refusal.status, said)


async def _answer(writer: asyncio.StreamWriter, status: int, said: dict[str, Any] | str) -> None:
    body = (said if isinstance(said, str) else json.dumps(said)).encode()
    head = f"HTTP/1.1 {status} told\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


def entity(text: str, word: str, kind: str, **more: Any) -> dict[str, Any]:
    """Mark a word of a text, counted in units of UTF-16, as Telegram counts."""
    at = text.index(word)
    units = len(text[:at].encode("utf-16-le")) // 2
    return {"type": kind, "offset": units, "length": len(word.encode("utf-16-le")) // 2, **more}
