"""Members from DNS: all addresses of a name, resolved again and again, as a headless service has them.

An answer of DNS says who is there and not who is gone: it may be truncated, come from a cache, or leave out a replica
that a probe failed for once. So these sets are not complete (``discovery.roster``, rule 4). An address has no name: who
answers there says it in its Hello.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import trio

from tiedreq.clusterfile import ReplicaAddress
from tiedreq.core.checks import check_number
from tiedreq.core.errors import BadOption
from tiedreq.discovery.members import Members
from tiedreq.net.addresses import Address

logger = logging.getLogger("tiedreq.discovery")

DNS_INTERVAL_SECONDS = 5.0
INTERVAL_MIN, INTERVAL_MAX = 0.1, 3600.0
ANSWER_SECONDS = 10.0
"""How long one question may take."""
FIRST_RETRY_SECONDS = 0.5
"""While nobody is known yet, how soon it is asked again."""
SCHEMES = {"dns": "ws", "dns+wss": "wss"}
_TEXT = re.compile(r"(dns|dns\+wss)://(\[[0-9a-fA-F:.]+\]|[^\s/:\[\]@?#]+):(\d{1,5})/?")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""All addresses of a host, as texts without brackets; raises ``OSError``."""


async def resolve_host(host: str, port: int) -> list[str]:
    """What the system's resolver says; link-local addresses, which need a scope, left out. Raises ``OSError``."""
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(sockaddr[0]) for *_, sockaddr in found if "%" not in str(sockaddr[0])})


class DnsMembers:
    """Whoever answers at an address of ``host``, port ``port``; asked every ``interval`` seconds.

    ``scheme`` is ``ws`` or ``wss``; each of them shows a certificate for the name ``host``. An answer without
    addresses, or none, changes nothing.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        scheme: str = "ws",
        interval: float = DNS_INTERVAL_SECONDS,
        resolve: Resolve = resolve_host,
    ) -> None:
        if scheme not in ("ws", "wss"):
            raise BadOption(f"scheme: {scheme!r} is neither ws nor wss")
        if not host or not 0 < port < 65536:
            raise BadOption(f"dns: {host!r} and {port!r} are not a host and a port from 1 to 65535")
        self.host, self.port, self.scheme = host, port, scheme
        self.interval = check_number("interval", interval, INTERVAL_MIN, INTERVAL_MAX, "seconds")
        self.trouble = ""
        """Why the last question had no answer; empty after a good one."""
        self._resolve = resolve

    @classmethod
    def of(cls, text: str) -> DnsMembers:
        """From ``dns://NAME:PORT``, or ``dns+wss://NAME:PORT`` for TLS. Raises ``BadOption``."""
        match = _TEXT.fullmatch(text)
        if match is None or not 0 < int(match[3]) < 65536:
            raise BadOption(f"replicas: {text!r} is not dns://NAME:PORT or dns+wss://NAME:PORT")
        return cls(match[2].strip("[]"), int(match[3]), scheme=SCHEMES[match[1]])

    def __repr__(self) -> str:
        return f"DnsMembers({self.host!r}, {self.port})"

    def __aiter__(self) -> AsyncIterator[Members]:
        """A set after each good answer."""
        return _Questions(self)

    async def ask(self) -> tuple[ReplicaAddress, ...]:
        """Ask once; empty when there is no good answer, and ``trouble`` says why."""
        trouble = f"{self.host}: no answer within {ANSWER_SECONDS:g} s"
        found: Sequence[str] = ()
        with trio.move_on_after(ANSWER_SECONDS):
            try:
                found = await self._resolve(self.host, self.port)
                trouble = "" if found else f"{self.host}: has no address"
            except OSError as error:
                trouble = f"{self.host}: can't be resolved: {error.strerror or error}"
        if trouble and not self.trouble:
            logger.warning("members stay as they are: %s", trouble)
        self.trouble = trouble
        certified = f"#{self.host}" if self.scheme == "wss" else ""
        addresses = (Address(host, self.port) for host in dict.fromkeys(found))
        return tuple(ReplicaAddress(f"{self.scheme}://{address}{certified}") for address in addresses)


class _Questions:
    """One question after the other. No generator: it may be cancelled while it waits, and asked again."""

    def __init__(self, source: DnsMembers) -> None:
        self._source = source
        self._known = False
        self._asked = False

    def __aiter__(self) -> _Questions:
        return self

    async def __anext__(self) -> Members:
        while True:
            if self._asked:
                interval = self._source.interval
                await trio.sleep(interval if self._known else min(interval, FIRST_RETRY_SECONDS))
            self._asked = True
            replicas = await self._source.ask()
            if replicas:
                self._known = True
                return Members(replicas, complete=False)
