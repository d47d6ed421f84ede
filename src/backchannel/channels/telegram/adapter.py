"""The adapter of Telegram."""

from __future__ import annotations

from backchannel.channels.telegram.checks import find_issues, webhook_hosts
from backchannel.channels.telegram.settings import TelegramSettings
from backchannel.core.adapters import Adapter

ADAPTER = Adapter(
    name="telegram",
    title="Telegram",
    settings=TelegramSettings,
    make="backchannel.channels.telegram.channel:TelegramChannel",
    needs=("aiogram",),
    extra="telegram",
    check=find_issues,
    hosts=webhook_hosts,
    thread_word="topic",
)
