"""Control words: replies that are meant for the gateway and never reach a person.

A reply is a control word only if it is exactly that word, in this case, once white space is trimmed. A sentence that
mentions a control word is ordinary text.
"""

from __future__ import annotations

REPLY_SKIP = "REPLY_SKIP"
"""Ends the reply-back turns of an exchange."""
ANNOUNCE_SKIP = "ANNOUNCE_SKIP"
"""Keeps an announce step silent."""
NO_REPLY = "NO_REPLY"
"""Says that there is nothing to answer."""

CONTROL_WORDS = (REPLY_SKIP, ANNOUNCE_SKIP, NO_REPLY)


def is_control_word(text: str) -> bool:
    """Whether a text is exactly one of the control words."""
    return text.strip() in CONTROL_WORDS


def is_silent(text: str | None) -> bool:
    """Whether a reply says nothing to anyone: it is missing, blank or a control word."""
    return text is None or not text.strip() or is_control_word(text)


def describe_word(word: str) -> str:
    """Say to a person what a control word, or no text at all, means."""
    return f"({_MEANINGS.get(word.strip(), 'no text')})"


_MEANINGS = {
    REPLY_SKIP: "nothing more to say",
    ANNOUNCE_SKIP: "nothing to announce",
    NO_REPLY: "nothing to answer",
}


def held_back(text_so_far: str) -> str:
    """Give what may be shown of a streamed text: nothing while it could still become a control word, else all of it.

    What was shown once stays shown: more text never makes a control word of a text that could not become one.
    """
    opening = text_so_far.lstrip()
    for word in CONTROL_WORDS:
        # White space after half a word breaks it; after the whole word it is only trimmed.
        if word.startswith(opening) or opening.rstrip() == word:
            return ""
    return text_so_far
