"""Limits how often one client may do something; pure: the caller passes the time."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

_MOST_CLIENTS = 4096


class Allowance:
    """A bucket of permissions for each client, filled again at a steady rate.

    Of more clients than it can remember it forgets the one that was quiet longest.
    """

    def __init__(self, *, burst: float, per_second: float) -> None:
        """Initialize.

        Args:
            burst: What a client may do at once that was quiet before.
            per_second: What it may do in the long run.
        """
        self._burst = burst
        self._per_second = per_second
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now: float) -> bool:
        """Take one permission of a client; False where it has none left."""
        left, then = self._left.get(client, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._per_second)
        is_allowed = left >= 1.0
        self._left[client] = (left - 1.0 if is_allowed else left, now)
        self._left.move_to_end(client)
        if len(self._left) > _MOST_CLIENTS:
            self._left.popitem(last=False)
        return is_allowed


def client_of(remote: str | None) -> str:
    """Return the identity of a client: its address, for IPv6 the /64 network."""
    try:
        address = ipaddress.ip_address((remote or "").partition("%")[0])
    except ValueError:
        return remote or ""
    if address.version == 4:
        return str(address)
    if (mapped := ipaddress.IPv6Address(address).ipv4_mapped) is not None:
        return str(mapped)
    return str(ipaddress.ip_network((int(address), 64), strict=False))
