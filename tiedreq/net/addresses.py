"""Addresses in words: ``host:port`` to listen at, ``ws://`` and ``wss://`` URLs to dial.

Hosts may be names, IPv4 or IPv6 literals (in brackets where a port follows); an empty host means every interface.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import urlsplit

from tiedreq.core.errors import BadOption


class Address(NamedTuple):
    """A host and a port. As text, IPv6 literals stand in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Target(NamedTuple):
    """Where a URL leads. ``resource`` is path and query, ``certified`` the name that its certificate must have."""

    url: str
    secure: bool
    address: Address
    resource: str
    certified: str


def parse_address(text: str) -> Address:
    """``host:port``, ``[::1]:port`` or ``:port``. Raises ``BadOption``."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise BadOption(f"address {text!r}: an IPv6 address stands in brackets, as in [::1]:7000")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise BadOption(f"address {text!r} must be host:port with a port from 0 to 65535")
    if host and not _may_be_a_host(host):
        raise BadOption(f"address {text!r}: no host can have this name")
    return Address(host, int(port))


def _may_be_a_host(host: str) -> bool:
    """False for names that can't even be looked up: an empty or a long part between dots, white space."""
    if ":" in host:
        return True
    parts = host.removesuffix(".").split(".")
    return not any(char.isspace() for char in host) and all(0 < len(part) < 64 for part in parts)


def is_loopback(host: str) -> bool:
    """True when only this host reaches what listens at ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def parse_url(url: str) -> Target:
    """A ``ws://`` or ``wss://`` URL. Raises ``BadOption``.

    ``wss://10.0.0.7:7000#replicas.example`` leads to an address whose certificate is another name's, as all addresses
    of one name in DNS have it (``discovery.dns``).
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadOption(f"url {url!r}: {error}") from None
    if parts.scheme not in ("ws", "wss") or not parts.hostname or parts.username is not None:
        raise BadOption(f"url {url!r} must be ws://host:port or wss://host:port")
    if not _may_be_a_host(parts.hostname):
        raise BadOption(f"url {url!r}: no host can have this name")
    secure = parts.scheme == "wss"
    address = Address(parts.hostname, port if port is not None else (443 if secure else 80))
    resource = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(url, secure, address, resource, parts.fragment or parts.hostname)
