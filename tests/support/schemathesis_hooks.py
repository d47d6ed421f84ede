"""The credentials of schemathesis: the token or the signature of each endpoint.

`SCHEMATHESIS_HOOKS` loads this module.
"""

from __future__ import annotations

import hmac

import schemathesis
from requests import PreparedRequest
from requests.auth import AuthBase

OPERATOR = "the-operator-token-of-the-tests"
HOOK = "the-hook-token-of-the-tests"
SECRET = "a-secret-of-the-desk"


class Credentials(AuthBase):
    """Adds what the door of a request asks for."""

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        url, body = request.url or "", request.body or b""
        if "/channels/" in url:
            assert isinstance(body, str | bytes), "a body in one piece"
            signed = hmac.digest(SECRET.encode(), body.encode() if isinstance(body, str) else body, "sha256")
            request.headers["X-Backchannel-Signature"] = f"sha256={signed.hex()}"
        else:
            request.headers["Authorization"] = f"Bearer {HOOK if '/hooks/' in url else OPERATOR}"
        return request


schemathesis.auth.set_from_requests(Credentials())  # type: ignore[attr-defined]  # documented, but not typed
