"""The settings of a bridge."""

from __future__ import annotations

from typing import Annotated

from backchannel.config.schema_doors import MIN_SECRET_LENGTH
from backchannel.core.delivery.channels import ChannelSettings
from backchannel.core.settings import secret, setting


class BridgeSettings(ChannelSettings, frozen=True, kw_only=True, tag_field="adapter", tag="bridge"):
    """A channel by two webhooks."""

    url: Annotated[
        str,
        setting("The address for outbound messages, `http://…` or `https://…`.", pattern=r"^https?://\S+$"),
    ]
    secret: Annotated[
        str,
        secret("Signs both directions. No other secret may equal it.", min_length=MIN_SECRET_LENGTH),
    ]
    files: Annotated[bool, setting("The far end takes a `file`, as base64.")] = False
    buttons: Annotated[
        bool, setting("The far end shows `buttons`, and replaces the message that `replaces` names.")
    ] = False
