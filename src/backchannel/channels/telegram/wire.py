"""Calls of one bot over aiogram, and the meaning of Telegram's answers to a channel.

- 400, 403, 413: it did not take it, and never will.
- 429, and no connection at all: it did not take it, and may later.
- 401, 404: it does not take the token. The message may be taken later.
- 400 with `migrate_to_chat_id`: the chat has another id.
- 5xx, a broken answer, none within the time: it is not known.

Whatever is said about a failure is without the bot's token, which stands in every address of the Bot API. Updates are
not read as aiogram's types: one of a kind that this version of aiogram does not know would hold up all behind it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any, NamedTuple, cast

from aiogram import Bot
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.session.base import BaseSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.exceptions import (
    AiogramError,
    ClientDecodeError,
    TelegramAPIError,
    TelegramBadRequest,
    TelegramConflictError,
    TelegramEntityTooLarge,
    TelegramForbiddenError,
    TelegramMigrateToChat,
    TelegramNetworkError,
    TelegramNotFound,
    TelegramServerError,
    TelegramUnauthorizedError,
)
from aiogram.methods import (
    AnswerCallbackQuery,
    DeleteMessage,
    DeleteWebhook,
    EditMessageText,
    GetFile,
    GetMe,
    GetUpdates,
    GetWebhookInfo,
    SendChatAction,
    SendDocument,
    SendMessage,
    SendPhoto,
    SetMessageReaction,
    SetMyCommands,
    SetWebhook,
    TelegramMethod,
)
from aiogram.methods.base import Response, TelegramType
from aiogram.types import (
    BotCommand,
    BotCommandScopeChat,
    BufferedInputFile,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    ReactionTypeEmoji,
    ReplyParameters,
)
from aiogram.utils.token import TokenValidationError
from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientResponseError,
    ClientTimeout,
    ConnectionTimeoutError,
)

from backchannel.channels.telegram.checks import is_telegrams_own
from backchannel.channels.telegram.reading import KINDS, BotIdentity
from backchannel.core.delivery.channels import (
    ChannelBusy,
    ChannelError,
    ChannelMoved,
    ChannelRefused,
    ChannelSilent,
    ChannelUnusable,
)
from backchannel.core.delivery.outgoing import Button, OutboundFile
from backchannel.core.delivery.received import shown_size
from backchannel.core.incoming_json import MOST_WORK, check_parts
from backchannel.core.text import cut, one_line

CONNECT_LIMIT_S = 15.0
_ANSWER_LIMIT_S = 30.0
_FILE_LIMIT_S = 120.0
UNNAMED_WAIT_S = 5.0
"""How long Telegram is left alone that asks for it and does not say how long."""
_BATCH = 100
"""How many updates are asked for at once; Telegram gives no more."""
_DAY_S = 86_400
MOST_BYTES = 16 * 1024 * 1024
"""How long an answer may be: the longest updates, with what they quote, are half of that."""
_PLAIN = {"Accept-Encoding": "identity"}
"""What is compressed may be a thousand times as long as it came."""
_REASON_LIMIT = 300
_HIDDEN = "<token>"
_LONGEST_ALERT = 200


class ChannelConflict(ChannelError):
    """Somebody else asks for the updates of this bot, or they are posted somewhere."""

    def __init__(self, reason: str, *, is_webhook: bool) -> None:
        super().__init__(reason)
        self.is_webhook = is_webhook


class _GetUpdates(GetUpdates):
    """The updates as they came."""

    __returning__ = list[Any]


class _SendMessage(SendMessage):
    """A post whose answer is not taken for broken because of something new in it."""

    __returning__ = dict[str, Any]


class _SendPhoto(SendPhoto):
    """A picture whose answer is not taken for broken either."""

    __returning__ = dict[str, Any]


class _SendDocument(SendDocument):
    """A file whose answer is not taken for broken either."""

    __returning__ = dict[str, Any]


class _TooManyRequests(TelegramAPIError):
    """Telegram asks to be left alone for a while."""

    def __init__(self, method: TelegramMethod[Any], message: str, wait_s: float) -> None:
        super().__init__(method=method, message=message)
        self.wait_s = wait_s


class _Session(AiohttpSession):
    """Reads no answer beyond its limit, which aiogram's own does.

    Each wish to be asked later is read as such; aiogram knows only those that name a time in whole seconds.
    """

    _limits = ClientTimeout(total=_ANSWER_LIMIT_S, connect=CONNECT_LIMIT_S)

    async def make_request(self, bot: Bot, method: TelegramMethod[TelegramType], timeout: Any = None) -> TelegramType:
        session = await self.create_session()
        url = self.api.api_url(token=bot.token, method=method.__api_method__)
        form, limits = self.build_form_data(bot, method), timeout or self._limits
        asked = session.post(url, data=form, timeout=limits, headers=_PLAIN, auto_decompress=False)
        try:
            async with asked as answer:
                content = await _read_whole(answer)
        except TimeoutError as error:
            raise TelegramNetworkError(method=method, message="Request timeout error") from error
        except ClientError as error:
            raise TelegramNetworkError(method=method, message=f"{type(error).__name__}: {error}") from error
        return cast(TelegramType, self.check_response(bot, method, answer.status, content).result)

    def check_response(self, bot: Bot, method: TelegramMethod[Any], status_code: int, content: str) -> Response[Any]:
        if status_code == HTTPStatus.TOO_MANY_REQUESTS:
            raise _TooManyRequests(method, *_read_wish(content))
        return super().check_response(bot, method, status_code, content)


async def _read_whole(answer: ClientResponse) -> str:
    content = bytearray()
    async for piece in answer.content.iter_any():
        content += piece
        if len(content) > MOST_BYTES:
            raise ClientPayloadError(f"the answer is longer than {shown_size(MOST_BYTES)}")
    return content.decode("utf-8", "replace")


def _read_wish(content: str) -> tuple[str, float]:
    """Read why and for how long Telegram, or a proxy before it, wants to be left alone."""
    try:
        said = read_answer(content)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        return content, UNNAMED_WAIT_S
    parameters = said.get("parameters")
    asked_s = parameters.get("retry_after") if isinstance(parameters, dict) else None
    wait_s = min(asked_s, _DAY_S) if isinstance(asked_s, int | float) and asked_s > 0 else UNNAMED_WAIT_S
    return str(said.get("description") or content), float(wait_s)


def read_answer(content: str) -> Any:
    """Decode an answer of the Bot API, whose server may be anybody's.

    Raises:
        TooMuchJson: that would hold up the gateway.
    """
    check_parts(content.encode("utf-8", "replace"), MOST_WORK)
    return json.loads(content)


class TelegramConnections:
    """The connections to one server of the Bot API, shared by all bots of a channel."""

    def __init__(self, api_root: str) -> None:
        self.session = _Session(api=TelegramAPIServer.from_base(api_root), json_loads=read_answer)
        self.takes_any_token = not is_telegrams_own(api_root)

    async def close(self) -> None:
        """Close them, without the pause of aiogram's own `close`, which was for an older aiohttp."""
        await (await self.session.create_session()).close()


class WebhookState(NamedTuple):
    """What Telegram says about a webhook: where it posts, how much waits, and what went wrong last."""

    url: str
    waiting: int
    error: str | None
    error_at: datetime | None


class _BotElsewhere(Bot):
    """A bot of a server whose tokens need not have the form of Telegram's, on which aiogram insists."""

    def __init__(self, token: str, session: BaseSession) -> None:
        super().__init__("0:any", session=session)
        self._token = token

    @property
    def token(self) -> str:
        return self._token


class Wire:
    """One bot. Every call raises `ChannelError`s, and nothing else."""

    def __init__(self, token: str, connections: TelegramConnections) -> None:
        """Make the bot of a token.

        Raises:
            ChannelUnusable: no bot of Telegram has such a token.
        """
        self._token = token
        try:
            make = _BotElsewhere if connections.takes_any_token else Bot
            self._bot = make(token, session=connections.session)
        except TokenValidationError:
            expected = "expected <number>:<letters and digits>, as @BotFather gave it"
            raise ChannelUnusable(f"this is no token of a Telegram bot ({expected})") from None

    async def me(self) -> BotIdentity:
        """Ask who we are."""
        user = await self._call(GetMe())
        return BotIdentity(user.id, user.username or "", bool(user.can_read_all_group_messages))

    async def updates(self, offset: int | None, wait_s: int) -> list[Any]:
        """Ask for updates from `offset` on, which acknowledges all before it; wait for some if there are none."""
        asked = _GetUpdates(offset=offset, limit=_BATCH, timeout=wait_s, allowed_updates=list(KINDS))
        limits = ClientTimeout(total=wait_s + _ANSWER_LIMIT_S, connect=CONNECT_LIMIT_S)
        found: list[Any] = await self._call(asked, limits)
        return found

    async def post(
        self,
        to: str,
        text: str,
        *,
        is_html: bool,
        thread_id: int | None = None,
        reply_to: int | None = None,
        buttons: Sequence[Button] = (),
    ) -> str:
        """Post a message; returns its id."""
        quoted = ReplyParameters(message_id=reply_to, allow_sending_without_reply=True) if reply_to else None
        fields = {"chat_id": to, "text": text, "parse_mode": "HTML" if is_html else None}
        where = {"message_thread_id": thread_id, "reply_parameters": quoted, "reply_markup": _keyboard(buttons)}
        sent: dict[str, Any] = await self._call(_SendMessage.model_validate(fields | where))
        return str(sent.get("message_id", ""))

    async def post_file(
        self,
        to: str,
        file: OutboundFile,
        caption: str,
        *,
        is_picture: bool,
        thread_id: int | None = None,
        reply_to: int | None = None,
    ) -> str:
        """Post a file, as a picture or as a document; returns the id of its message."""
        quoted = ReplyParameters(message_id=reply_to, allow_sending_without_reply=True) if reply_to else None
        given = BufferedInputFile(file.content, file.name)
        fields = {"chat_id": to, "caption": caption or None, "message_thread_id": thread_id, "reply_parameters": quoted}
        named = fields | ({"photo": given} if is_picture else {"document": given})
        limits = ClientTimeout(total=_FILE_LIMIT_S, connect=CONNECT_LIMIT_S)
        method = _SendPhoto.model_validate(named) if is_picture else _SendDocument.model_validate(named)
        sent: dict[str, Any] = await self._call(method, limits)
        return str(sent.get("message_id", ""))

    async def edit(self, to: str, message_id: int, text: str, *, is_html: bool, buttons: Sequence[Button] = ()) -> None:
        """Give a message another text. Buttons that are not given again are gone."""
        mode, keyboard = "HTML" if is_html else None, _keyboard(buttons)
        edit = EditMessageText(chat_id=to, message_id=message_id, text=text, parse_mode=mode, reply_markup=keyboard)
        await self._call(edit)

    async def answer_press(self, press_id: str, text: str | None) -> None:
        """End the wait of whoever pressed a button, and show a short text."""
        shown = None if text is None else cut(text, _LONGEST_ALERT)
        await self._call(AnswerCallbackQuery(callback_query_id=press_id, text=shown))

    async def delete(self, to: str, message_id: int) -> None:
        await self._call(DeleteMessage(chat_id=to, message_id=message_id))

    async def show_typing(self, to: str, thread_id: int | None) -> None:
        await self._call(SendChatAction(chat_id=to, action="typing", message_thread_id=thread_id))

    async def react(self, to: str, message_id: int, emoji: str) -> None:
        """Put an emoji on a message."""
        await self._call(
            SetMessageReaction(chat_id=to, message_id=message_id, reaction=[ReactionTypeEmoji(emoji=emoji)])
        )

    async def set_commands(self, commands: list[tuple[str, str]], chat_id: int | None = None) -> None:
        """Set what the menu shows: everywhere, or in one chat."""
        scope = None if chat_id is None else BotCommandScopeChat(chat_id=chat_id)
        listed = [BotCommand(command=name, description=text) for name, text in commands]
        await self._call(SetMyCommands(commands=listed, scope=scope))

    async def set_webhook(self, url: str, secret: str) -> None:
        """Let Telegram post updates, one after the other, so that they come in order."""
        await self._call(SetWebhook(url=url, secret_token=secret, max_connections=1, allowed_updates=list(KINDS)))

    async def delete_webhook(self) -> None:
        """Let Telegram keep updates until they are asked for."""
        await self._call(DeleteWebhook())

    async def webhook_state(self) -> WebhookState:
        """Ask how Telegram's posts fare."""
        info = await self._call(GetWebhookInfo())
        error = (
            None if info.last_error_message is None else one_line(self._masked(info.last_error_message), _REASON_LIMIT)
        )
        return WebhookState(info.url, info.pending_update_count, error, info.last_error_date)

    async def download(self, file_id: str, limit: int) -> bytes:
        """Get a file. How long that may take is for whoever asks for it to say.

        Raises:
            ChannelRefused: Telegram does not give it, or it is larger than `limit` bytes.
            ChannelBusy: Telegram asks to wait first, or cannot be reached.
            ChannelSilent: it did not come; it may another time.
        """
        file = await self._call(GetFile(file_id=file_id))
        if file.file_path is None:
            raise ChannelRefused("Telegram does not say where the file is")
        session = self._bot.session
        url, content = session.api.file_url(self._token, file.file_path), bytearray()
        try:
            async for chunk in session.stream_content(url, headers=_PLAIN, timeout=0):
                content += chunk
                if len(content) > limit:
                    raise ChannelRefused(f"the file is larger than {shown_size(limit)}")
        except (TimeoutError, ClientError) as error:
            raise ChannelSilent(self._masked(f"the file did not come: {_way_it_failed(error)}")) from None
        return bytes(content)

    async def _call(self, method: TelegramMethod[Any], limits: Any = None) -> Any:
        try:
            return await self._bot(method, request_timeout=limits)
        except AiogramError as error:
            # What the failure came from is left out: it has the address in it, and that the token.
            raise self._told(error) from None

    def _told(self, error: AiogramError) -> ChannelError:
        """Tell what a failure means to a channel."""
        reason = f"Telegram: {self._masked(_words(error))}"
        match error:
            case _TooManyRequests():
                return ChannelBusy(reason, error.wait_s)
            case TelegramMigrateToChat():
                return ChannelMoved(reason, str(error.migrate_to_chat_id))
            case TelegramUnauthorizedError() | TelegramNotFound():
                return ChannelUnusable(f"Telegram refuses the bot's token: {self._masked(_words(error))}")
            case TelegramConflictError():
                other = "another program asks for the messages of this bot: stop it, or use a bot of its own"
                return ChannelConflict(f"{other} ({reason})", is_webhook="webhook" in error.message)
            case TelegramBadRequest() | TelegramForbiddenError() | TelegramEntityTooLarge():
                return ChannelRefused(reason)
            case TelegramNetworkError():
                return self._unreached(error, reason)
            case TelegramServerError() | ClientDecodeError():
                return ChannelSilent(reason)
        return ChannelSilent(reason)

    def _unreached(self, error: TelegramNetworkError, reason: str) -> ChannelError:
        """Tell whether a request that failed can have left: without a connection it cannot."""
        if isinstance(error.__cause__, (ClientConnectorError, ConnectionTimeoutError)):
            return ChannelBusy(f"Telegram cannot be reached: {self._masked(_words(error))}")
        return ChannelSilent(reason)

    def _masked(self, text: str) -> str:
        return text.replace(self._token, _HIDDEN)


def _keyboard(buttons: Sequence[Button]) -> InlineKeyboardMarkup | None:
    """Put buttons side by side; None without any."""
    row = [InlineKeyboardButton(text=button.label, callback_data=button.value) for button in buttons]
    return InlineKeyboardMarkup(inline_keyboard=[row]) if row else None


def _way_it_failed(error: TimeoutError | ClientError) -> str:
    """Tell why a file did not come, for a model to read; aiohttp's own words are for programmers."""
    match error:
        case ClientPayloadError():
            return "the connection ended before the file did"
        case ClientResponseError():
            return f"Telegram answered {error.status}"
    return _words(error)


def _words(error: Exception) -> str:
    """Give what Telegram said, or what went wrong on the way, on one line."""
    if isinstance(error, ClientDecodeError):
        return one_line(f"its answer cannot be read: {error.data}", _REASON_LIMIT)
    text = error.message if isinstance(error, TelegramAPIError) else str(error) or type(error).__name__
    return one_line(text.rpartition("Original description: ")[2], _REASON_LIMIT)
