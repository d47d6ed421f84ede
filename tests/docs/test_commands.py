"""Every chat command is on its page, as it is written and with who may use it."""

from __future__ import annotations

import re

from backchannel.core.commands.commands import COMMANDS, Rank

from .pages import ROOT

PAGE = ROOT / "docs" / "how-to" / "use-chat-commands.md"
WHO = {Rank.AUTHORISED: "everyone who is answered", Rank.OWNER: "owners"}


def test_every_chat_command_has_its_row_and_no_other_has() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `/.*$", text, re.MULTILINE)
    escaped = {spec: spec.usage.replace("|", "\\|") for spec in COMMANDS}
    assert rows == [f"| `{escaped[spec]}` | {WHO[spec.needs]} | {spec.summary} |" for spec in COMMANDS]
