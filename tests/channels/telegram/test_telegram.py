"""A person writes to a bot, and is answered: through aiogram, over a real socket, to a strict stand-in of Telegram."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.channels.desk import desk
from tests.support.telegram import ANN, Telegram

pytestmark = pytest.mark.anyio


async def test_a_message_is_answered_and_acknowledged_once_it_is_committed(tmp_path: Path) -> None:
    async with Telegram() as telegram, desk(tmp_path, {"telegram": telegram.settings(streaming=False)}):
        telegram.say("hello **you**")
        await telegram.posted(1)
        await telegram.drained()
    (post,) = telegram.posts
    assert (post.chat_id, post.text, post.sent) == (ANN, "re: hello you", "re: hello <b>you</b>")
