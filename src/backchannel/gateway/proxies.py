"""Where a request comes from: the address that connects, or, behind a proxy that is trusted, the one it tells of."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from starlette.requests import HTTPConnection

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address

LOCAL = "local"
"""The address of a client that has none, such as one on a Unix socket."""


def address_of(connection: HTTPConnection) -> str:
    """Tell where a request comes from."""
    return connection.client.host if connection.client else LOCAL


class Proxies:
    """The proxies whose `X-Forwarded-For` counts: `gateway.trustedProxies`."""

    def __init__(self, trusted: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(each, strict=False) for each in trusted]

    def client(self, address: str, forwarded: Sequence[str]) -> str:
        """Tell the client's address, given the one that connects and the headers, in order.

        Each proxy writes whom it heard from at the end. So the chain is read from its end for as long as those who
        wrote it are trusted; what stands further to the front a client may have made up.
        """
        hops = [hop.strip() for header in forwarded for hop in header.split(",")]
        while hops and self._trusts(address):
            told = _ip(hops.pop())
            if told is None:
                break
            address = str(told)
        return address

    def _trusts(self, address: str) -> bool:
        ip = _ip(address)
        return ip is not None and any(ip in network for network in self._networks)


def _ip(text: str) -> Ip | None:
    """Read an address as proxies write it: some add a port, and IPv6 comes with and without brackets."""
    host = text.rpartition(":")[0] if text.count(":") == 1 else text
    if text.startswith("["):
        host = text[1:].partition("]")[0]
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return ip.ipv4_mapped or ip if isinstance(ip, ipaddress.IPv6Address) else ip
