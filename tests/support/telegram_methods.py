"""The methods of the Bot API that a channel may use, with all their fields: https://core.telegram.org/bots/api

Requests come as forms, where everything is text: a number is written in digits, an object or a list as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _integer(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and re.fullmatch(r"-?\d+", value) is not None)


def _boolean(value: Any) -> bool:
    return value in (True, False, "true", "false")


def _chat(value: Any) -> bool:
    return _integer(value) or (isinstance(value, str) and re.fullmatch(r"@\w+", value) is not None)


def _object(fields: Mapping[str, Check], *required: str) -> Check:
    def check(value: Any) -> bool:
        value = json.loads(value) if isinstance(value, str) else value
        if not isinstance(value, dict) or set(required) - set(value):
            return False
        return all(name in fields and fields[name](inner) for name, inner in value.items())

    return check


def _list(item: Check) -> Check:
    def check(value: Any) -> bool:
        value = json.loads(value) if isinstance(value, str) else value
        return isinstance(value, list) and all(map(item, value))

    return check


_ENTITIES = _list(_object({"type": _text, "offset": _integer, "length": _integer}, "type", "offset", "length"))
_PREVIEW = _object(
    {
        "is_disabled": _boolean,
        "url": _text,
        "prefer_small_media": _boolean,
        "prefer_large_media": _boolean,
        "show_above_text": _boolean,
    }
)
_REPLY = _object(
    {
        "message_id": _integer,
        "chat_id": _chat,
        "allow_sending_without_reply": _boolean,
        "quote": _text,
        "quote_parse_mode": _text,
        "quote_entities": _ENTITIES,
        "quote_position": _integer,
    },
    "message_id",
)
_COMMAND = _object({"command": _text, "description": _text}, "command", "description")
_SCOPE = _object({"type": _text, "chat_id": _chat, "user_id": _integer}, "type")
_BUTTON = _object({"text": _text, "callback_data": _text}, "text", "callback_data")
_MARKUP = _object({"inline_keyboard": _list(_list(_BUTTON))}, "inline_keyboard")

_FILE_FIELDS: dict[str, Check] = {
    "business_connection_id": _text,
    "chat_id": _chat,
    "message_thread_id": _integer,
    "caption": _text,
    "parse_mode": _text,
    "disable_notification": _boolean,
    "protect_content": _boolean,
    "reply_parameters": _REPLY,
    "reply_markup": _MARKUP,
}
METHODS: Mapping[str, Mapping[str, Check]] = {
    "getMe": {},
    "getUpdates": {
        "offset": _integer,
        "limit": _integer,
        "timeout": _integer,
        "allowed_updates": _list(_text),
    },
    "setWebhook": {
        "url": _text,
        "ip_address": _text,
        "max_connections": _integer,
        "allowed_updates": _list(_text),
        "drop_pending_updates": _boolean,
        "secret_token": _text,
    },
    "getWebhookInfo": {},
    "deleteWebhook": {"drop_pending_updates": _boolean},
    "sendMessage": {
        "business_connection_id": _text,
        "chat_id": _chat,
        "message_thread_id": _integer,
        "direct_messages_topic_id": _integer,
        "text": _text,
        "parse_mode": _text,
        "entities": _ENTITIES,
        "link_preview_options": _PREVIEW,
        "disable_notification": _boolean,
        "protect_content": _boolean,
        "allow_paid_broadcast": _boolean,
        "message_effect_id": _text,
        "suggested_post_parameters": _object({}),
        "reply_parameters": _REPLY,
        "reply_markup": _MARKUP,
    },
    "editMessageText": {
        "business_connection_id": _text,
        "chat_id": _chat,
        "message_id": _integer,
        "inline_message_id": _text,
        "text": _text,
        "parse_mode": _text,
        "entities": _ENTITIES,
        "link_preview_options": _PREVIEW,
        "reply_markup": _MARKUP,
    },
    "sendPhoto": _FILE_FIELDS | {"photo": _text},
    "sendDocument": _FILE_FIELDS | {"document": _text},
    "answerCallbackQuery": {
        "callback_query_id": _text,
        "text": _text,
        "show_alert": _boolean,
        "url": _text,
        "cache_time": _integer,
    },
    "setMessageReaction": {
        "chat_id": _chat,
        "message_id": _integer,
        "reaction": _list(_object({"type": _text, "emoji": _text}, "type", "emoji")),
        "is_big": _boolean,
    },
    "deleteMessage": {"chat_id": _chat, "message_id": _integer},
    "sendChatAction": {
        "business_connection_id": _text,
        "chat_id": _chat,
        "message_thread_id": _integer,
        "action": _text,
    },
    "setMyCommands": {"commands": _list(_COMMAND), "scope": _SCOPE, "language_code": _text},
    "getFile": {"file_id": _text},
}

REQUIRED: Mapping[str, tuple[str, ...]] = {
    "setWebhook": ("url",),
    "sendMessage": ("chat_id", "text"),
    "editMessageText": ("chat_id", "message_id", "text"),
    "sendPhoto": ("chat_id", "photo"),
    "sendDocument": ("chat_id", "document"),
    "answerCallbackQuery": ("callback_query_id",),
    "setMessageReaction": ("chat_id", "message_id"),
    "deleteMessage": ("chat_id", "message_id"),
    "sendChatAction": ("chat_id", "action"),
    "setMyCommands": ("commands",),
    "getFile": ("file_id",),
}

_COMMAND_NAME = re.compile(r"[a-z0-9_]{1,32}\Z")


def complaint(method: str, fields: Mapping[str, str]) -> str | None:
    """Say what a request has that the documents do not allow; None if it is as they say."""
    if method not in METHODS:
        return f"{method}: no such method"
    known = METHODS[method]
    for name, value in fields.items():
        if name not in known:
            return f"{method}: no such field: {name}"
        if not known[name](value):
            return f"{method}: {name} has the wrong type: {value[:200]!r}"
    if missing := set(REQUIRED.get(method, ())) - set(fields):
        return f"{method}: {', '.join(sorted(missing))} is missing"
    return _limits(method, fields)


def _limits(method: str, fields: Mapping[str, str]) -> str | None:
    if not 1 <= int(fields.get("limit", 100)) <= 100:
        return f"{method}: limit is from 1 to 100"
    if fields.get("parse_mode") not in (None, "HTML", "MarkdownV2", "Markdown"):
        return f"{method}: no such parse_mode: {fields['parse_mode']}"
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,256}", fields.get("secret_token", "a")):
        return f"{method}: secret_token has other characters than A-Z, a-z, 0-9, _ and -"
    for row in json.loads(fields.get("reply_markup", '{"inline_keyboard": []}'))["inline_keyboard"]:
        if any(not 1 <= len(button["callback_data"].encode()) <= 64 for button in row):
            return f"{method}: callback_data has 1 to 64 bytes"
    if len(fields.get("caption", "").encode("utf-16-le")) // 2 > 1024:
        return f"{method}: caption has at most 1024 characters"
    if method == "answerCallbackQuery" and len(fields.get("text", "")) > 200:
        return f"{method}: text has at most 200 characters"
    commands = json.loads(fields.get("commands", "[]"))
    if len(commands) > 100:
        return f"{method}: at most 100 commands"
    for each in commands:
        if not _COMMAND_NAME.match(each["command"]) or not 1 <= len(each["description"]) <= 256:
            return f"{method}: not a command: {each}"
    return None
