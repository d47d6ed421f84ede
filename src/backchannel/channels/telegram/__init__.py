"""Telegram: a bot, or several, over the Bot API.

`channel.py` is the `Channel`; it knows no aiogram, which is an extra and takes seconds to import. `wire.py` is all that
does: one bot's calls, with Telegram's answers as the errors of a channel. `polling.py` asks for what people write, and
acknowledges only what is committed. `reading.py` and `form.py` are pure: an update becomes an event, and an agent's
Markdown becomes what Telegram shows.
"""
