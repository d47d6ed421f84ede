"""The page about the command line says what the command line does."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from docs.build.reference import insert, render_commands

from backchannel.storage.files.folder import ADDRESS_FILE

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert insert(page, "commands", render_commands()) == page, "run `make reference`"


def test_the_commands_of_the_prompt_are_on_the_page() -> None:
    from backchannel.cli.prompt import HELP

    page = PAGE.read_text(encoding="utf-8")
    for command in re.findall(r"^/\w+", HELP, re.MULTILINE):
        assert f"`{command}" in page


def test_the_levels_of_the_command_line_are_levels_of_the_log() -> None:
    from backchannel.cli.commands.up import LOG_LEVELS

    assert {level.upper() for level in LOG_LEVELS} <= logging.getLevelNamesMapping().keys()
    assert f"`{ADDRESS_FILE}`" in PAGE.read_text(encoding="utf-8")
