"""Signatures of posts: the HMAC of a body, with a shared secret."""

from __future__ import annotations

import hashlib
import hmac

SIGNATURE = "X-Backchannel-Signature"
"""The header of the signature."""


def sign(secret: str, body: bytes) -> str:
    """Make the value of the signature's header."""
    return f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"


def is_signed(secret: str, body: bytes, signature: str | None) -> bool:
    """Whether a body came with its signature; compared in constant time."""
    return hmac.compare_digest(sign(secret, body).encode(), (signature or "").encode())
