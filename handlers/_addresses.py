"""Which addresses a job may be sent to by somebody's URL.

A URL from outside must not make our own network answer: so every address of its host has to be public, or in a
network named in WEBHOOK_ALLOW_NETWORKS.

Always true: the caller connects to an address from here, never to the name again: a name may resolve to
something else a moment later. An IPv6 address that carries an IPv4 address is judged by both.
"""

import asyncio
import ipaddress
import os
import socket
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_MOST: Final = 3
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class Refused(Exception):
    """A host has an address that may not be reached."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"{host} has an address that is not public; if webhooks may go there, "
            "name its network in WEBHOOK_ALLOW_NETWORKS"
        )


async def resolve(host: str, port: int) -> list[Address]:
    """The first addresses of *host*, each of which may be reached.

    Raises:
        Refused: one may not be.
        OSError: the name has no address, or none can be found out now.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError("not a host name") from None
    addresses = list(dict.fromkeys(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found))
    allowed = allowed_networks()
    if not all(may_reach(address, allowed) for address in addresses):
        raise Refused(host)
    return addresses[:_MOST]


def may_reach(address: Address, allowed: list[Network]) -> bool:
    """Whether *address* is public, and any IPv4 address it carries too; or allowed."""
    judged = [one for one in (address, _carried(address)) if one is not None]
    if any(one in network for one in judged for network in allowed):
        return True
    return all(one.is_global and not one.is_multicast for one in judged)


def allowed_networks() -> list[Network]:
    """WEBHOOK_ALLOW_NETWORKS, read."""
    words = os.environ.get("WEBHOOK_ALLOW_NETWORKS", "").replace(",", " ").split()
    try:
        return [ipaddress.ip_network(word) for word in words]
    except ValueError as error:
        raise RuntimeError(f"WEBHOOK_ALLOW_NETWORKS: {error}") from None


def _carried(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address inside an IPv6 one: mapped, 6to4, Teredo or NAT64."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
