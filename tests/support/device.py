"""The key pair of a browser, which signs connections as OpenClaw's Control UI does."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import websockets.sync.client
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

CLIENT = {"id": "openclaw-control-ui", "version": "2026.9.6", "platform": "Linux x86_64", "mode": "webchat"}
SCOPES = ("operator.admin", "operator.read", "operator.write", "operator.approvals", "operator.pairing")


class Device:
    """A browser: it keeps its key, and what it is given."""

    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()
        public = self._key.public_key().public_bytes_raw()
        self.id = hashlib.sha256(public).hexdigest()
        self.public_key = _base64(public)

    def connect(
        self,
        challenge: dict[str, Any],
        token: str,
        *,
        version: str = "v2",
        by_device: bool = False,
        scopes: tuple[str, ...] = SCOPES,
        signed_at: int | None = None,
        **device: Any,
    ) -> dict[str, Any]:
        """Make the parameters of `connect`; what is given of the device stands there instead of what was signed."""
        at = challenge["ts"] if signed_at is None else signed_at
        parts = [version, self.id, CLIENT["id"], CLIENT["mode"], "operator", ",".join(scopes), str(at), token]
        parts += [challenge["nonce"], *(["linux x86_64", ""] if version == "v3" else [])]
        signature = _base64(self._key.sign("|".join(parts).encode()))
        signed = {"id": self.id, "publicKey": self.public_key, "signature": signature, "signedAt": at}
        return {
            "minProtocol": 4,
            "maxProtocol": 4,
            "client": CLIENT,
            "role": "operator",
            "scopes": list(scopes),
            "auth": {"token": token, **({"deviceToken": token} if by_device else {})},
            "device": {**signed, "nonce": challenge["nonce"], **device},
        }

    def log_in(self, url: str, token: str, *, by_device: bool = False) -> dict[str, Any]:
        """Log in as a page of the gateway's own origin, and leave; returns the answer."""
        at = url.replace("http:", "ws:").removesuffix("/") + "/ws"
        with websockets.sync.client.connect(at, origin=websockets.Origin(url)) as socket:
            challenge = json.loads(socket.recv())["payload"]
            asked = self.connect(challenge, token, by_device=by_device)
            socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": asked}))
            answer: dict[str, Any] = json.loads(socket.recv())
            return answer


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
