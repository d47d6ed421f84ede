"""Addresses of clients, and slowing down those with many wrong tokens or signatures.

A door checks a credential first, and asks here only if it is wrong. So a valid token or signature is never slowed down
by others of its address: behind a proxy, and on one machine, many clients share one.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog
from starlette.requests import HTTPConnection

from backchannel.core.contracts import Clock
from backchannel.errors import SlowDown

log = structlog.get_logger(__name__)
K = TypeVar("K", bound=Hashable)

CREDENTIAL_FAILURES = 5
"""The allowed repetitions of one wrong credential by one address within the window."""
ADDRESS_FAILURES = 20
"""The allowed wrong credentials of any kind."""
WINDOW_S = 60.0
MAX_REMEMBERED = 10_000


class FailedAttempts:
    """Counts the refusals of one kind of door for a minute, by address and by address and credential.

    `what` names it in the log, such as "login". Memory is bounded: the oldest are dropped first.
    """

    def __init__(self, clock: Clock, what: str) -> None:
        self._clock = clock
        self._what = what
        self._by_credential: _Times[tuple[str, str]] = _Times(CREDENTIAL_FAILURES)
        self._by_address: _Times[str] = _Times(ADDRESS_FAILURES)
        self._logged: OrderedDict[str, _Logged] = OrderedDict()

    def add(self, address: str, credential: str) -> None:
        """Count a wrong credential, of which a digest is enough.

        Raises:
            SlowDown: too many came; the error says when another would be allowed.
        """
        network, now = network_of(address), self._clock.monotonic()
        self._log(network, address, now)
        waits = self._by_credential.add((network, credential), now), self._by_address.add(network, now)
        if (wait_s := max(waits)) > 0:
            raise SlowDown(
                f"too many wrong tokens or codes from this address: try again in {math.ceil(wait_s)} s "
                "(a right one is accepted at once)",
                retryAfterMs=int(wait_s * 1000) + 1,
            )

    def _log(self, network: str, address: str, now: float) -> None:
        """Write a line for the first failure of an address, then one a minute at most."""
        entry = self._logged.setdefault(network, _Logged(at=now - WINDOW_S))
        entry.since += 1
        if entry.at + WINDOW_S <= now:
            log.info(f"{self._what} refused", address=address, times=entry.since)
            entry.at, entry.since = now, 0
            self._logged.move_to_end(network)
        if len(self._logged) > MAX_REMEMBERED:
            self._logged.popitem(last=False)


@dataclass(slots=True)
class _Logged:
    """The last log line of an address, and its failures since."""

    at: float
    since: int = 0


class _Times(Generic[K]):
    """The times of the last few failures."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._times: OrderedDict[K, deque[float]] = OrderedDict()

    def add(self, key: K, now: float) -> float:
        """Record a failure; returns the wait until the next would be allowed, 0 if this one was."""
        times = self._times.setdefault(key, deque(maxlen=self._allowed + 1))
        times.append(now)
        self._times.move_to_end(key)
        if len(self._times) > MAX_REMEMBERED:
            self._times.popitem(last=False)
        is_too_many = len(times) > self._allowed and times[0] + WINDOW_S > now
        return times[1] + WINDOW_S - now if is_too_many else 0.0


def network_of(address: str) -> str:
    """Count the addresses that one client can choose from as one: an IPv6 client has a whole /64."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)


Ip = ipaddress.IPv4Address | ipaddress.IPv6Address

LOCAL = "local"
"""The address of a client that has none, such as one on a Unix socket."""


def address_of(connection: HTTPConnection) -> str:
    """The address of a request's client."""
    return connection.client.host if connection.client else LOCAL


class Proxies:
    """The proxies whose `X-Forwarded-For` counts: `gateway.trustedProxies`."""

    def __init__(self, trusted: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(each, strict=False) for each in trusted]

    def client(self, address: str, forwarded: Sequence[str]) -> str:
        """Find the client's address, given the one that connects and the headers, in order.

        Each proxy appends the address that connected to it. So the chain is read from its end while its writers are
        trusted; a client may have made up the rest.
        """
        hops = [hop.strip() for header in forwarded for hop in header.split(",")]
        while hops and self._trusts(address):
            forwarded_for = _ip(hops.pop())
            if forwarded_for is None:
                break
            address = str(forwarded_for)
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
