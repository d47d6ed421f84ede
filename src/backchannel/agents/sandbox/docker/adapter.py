"""The adapter of containers, made by docker or podman."""

from __future__ import annotations

from backchannel.core.adapters import Adapter

ADAPTER = Adapter(name="docker", title="Docker", make="backchannel.agents.sandbox.docker.backend:make_backend")
