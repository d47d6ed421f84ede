"""Checks of a Telegram bot's settings that are well formed but cannot work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from backchannel.channels.telegram.settings import TelegramAccountSettings, TelegramSettings, TelegramWebhookSettings
from backchannel.core.delivery.channels import DEFAULT_ACCOUNT
from backchannel.core.settings import SettingIssue, SettingPath
from backchannel.core.text import ANY

_TOKEN = re.compile(r"\d+:[A-Za-z0-9_-]{35,}\Z")
_ID = re.compile(r"-?\d+\Z")
_TELEGRAMS_OWN = "https://api.telegram.org"


def is_telegrams_own(api_root: str) -> bool:
    """Whether this is Telegram's own server. Another one has tokens of its own form, and may do without TLS."""
    return api_root.rstrip("/") == _TELEGRAMS_OWN


def find_issues(name: str, channel: TelegramSettings) -> Iterator[SettingIssue]:
    """Find what Telegram would refuse or never send, in the settings of one channel."""
    if DEFAULT_ACCOUNT in channel.accounts:
        message = f"`{DEFAULT_ACCOUNT}` is the bot whose `token` stands beside `accounts`; give this one another name"
        yield SettingIssue("error", ("accounts", DEFAULT_ACCOUNT), message)
    is_telegrams = is_telegrams_own(channel.api_root)
    for path, bot in _bots(channel):
        if is_telegrams and not _TOKEN.match(bot.token):
            expected = "expected <number>:<letters and digits>, 35 after the colon, as @BotFather gave it"
            yield SettingIssue("warning", (*path, "token"), f"this is no token of a Telegram bot ({expected})")
        if bot.webhook is not None:
            yield from _webhook(name, (*path, "webhook", "url"), bot.webhook, needs_tls=is_telegrams)
    yield from _people("allowFrom", channel.allow_from)
    yield from _people("owners", channel.owners)


def webhook_hosts(channel: TelegramSettings) -> Iterator[str]:
    """List the names under which Telegram posts to this gateway."""
    for _, bot in _bots(channel):
        if bot.webhook and (host := _parts(bot.webhook.url)[1]):
            yield host


def _bots(channel: TelegramSettings) -> Iterator[tuple[SettingPath, TelegramAccountSettings]]:
    yield (), TelegramAccountSettings(token=channel.token, webhook=channel.webhook)
    for id, account in channel.accounts.items():
        yield ("accounts", id), account


def _webhook(
    name: str, path: SettingPath, webhook: TelegramWebhookSettings, *, needs_tls: bool
) -> Iterator[SettingIssue]:
    scheme, host, at = _parts(webhook.url)
    expected = f"/channels/{name}/inbound"
    if not host:
        yield SettingIssue("warning", path, f"no host is named in it (expected https://<host>{expected})", webhook.url)
        return
    if scheme != "https" and needs_tls:
        yield SettingIssue(
            "warning", path, f"Telegram posts by https only (expected https://{host}{expected})", webhook.url
        )
    if not at.endswith(expected):
        message = f"posts are taken at {expected}: unless a proxy changes the path, none arrives"
        yield SettingIssue("warning", path, message, webhook.url)


def _parts(url: str) -> tuple[str, str, str]:
    """Take the scheme, the host and the path out of an address; without a host if it cannot be read."""
    try:
        read = urlsplit(url)
        return read.scheme, read.hostname or "", read.path
    except ValueError:
        return "", "", ""


def _people(setting: str, ids: tuple[str, ...]) -> Iterator[SettingIssue]:
    for index, id in enumerate(ids):
        if id != ANY and not _ID.match(id):
            message = (
                "Telegram knows people by a number, not by a name, so this is nobody; with `pairing: true`, "
                "`backchannel pairing list --all` shows the number of everyone who wrote to the bot"
            )
            yield SettingIssue("warning", (setting, index), message, id)
