"""The settings of Telegram bots."""

from __future__ import annotations

from typing import Annotated

import msgspec

from backchannel.config.schema_doors import MIN_SECRET_LENGTH
from backchannel.core.delivery.channels import ChannelSettings
from backchannel.core.settings import Settings, secret, setting


class TelegramWebhookSettings(Settings, frozen=True, kw_only=True):
    """Where Telegram posts what people write, instead of being asked for it."""

    url: Annotated[
        str,
        setting(
            "The public address of `/channels/<name>/inbound` of this gateway, `https://…`.",
            pattern=r"^https?://\S+$",
        ),
    ]
    secret: Annotated[
        str,
        secret(
            "Proves that Telegram posts: letters, digits, `_` and `-`. No other secret may equal it.",
            pattern=rf"^[A-Za-z0-9_-]{{{MIN_SECRET_LENGTH},256}}$",
        ),
    ]


class TelegramAccountSettings(Settings, frozen=True, kw_only=True):
    """A further bot of the channel."""

    token: Annotated[str, secret("Its token, from @BotFather.", min_length=1)]
    webhook: Annotated[TelegramWebhookSettings | None, setting("Receive by webhook. Unset: long polling.")] = None


class TelegramSettings(ChannelSettings, frozen=True, kw_only=True, tag_field="adapter", tag="telegram"):
    """A Telegram bot, or several."""

    token: Annotated[str, secret("The bot's token, from @BotFather. It is the account `default`.", min_length=1)]
    api_root: Annotated[
        str,
        setting(
            "The address of the Bot API, `https://…` or `http://…`, for your own server.", pattern=r"^https?://\S+$"
        ),
    ] = "https://api.telegram.org"
    streaming: Annotated[bool, setting("Show a reply while it is written.")] = True
    webhook: Annotated[TelegramWebhookSettings | None, setting("Receive by webhook. Unset: long polling.")] = None
    accounts: Annotated[dict[str, TelegramAccountSettings], setting("Further bots, by `accountId`.")] = msgspec.field(
        default_factory=dict
    )
