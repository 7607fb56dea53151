"""From what users write to a source of members: ``connect(…)``, ``--replicas``, ``--discover``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tiedreq.clusterfile import DEFAULT_PATH, ENVIRONMENT, ClusterAddress, resolve
from tiedreq.core.errors import BadOption
from tiedreq.discovery.dns import SCHEMES, DnsMembers
from tiedreq.discovery.file import FileMembers
from tiedreq.discovery.members import Discovery, Members, StaticMembers

Replicas = str | os.PathLike[str] | Iterable[str] | Discovery | None
"""A list of URLs, a text of them, ``dns://NAME:PORT``, the path of a file, a source; None: the usual cluster file."""

Where = str | os.PathLike[str] | Discovery | None
"""``dns://NAME:PORT``, a text of URLs, the path of a file that need not be there yet, or a source."""


class Source(NamedTuple):
    """Where a cluster is. ``address`` holds what is known at once: for DNS and sources of one's own no replicas yet."""

    address: ClusterAddress
    discovery: Discovery

    @property
    def urls(self) -> list[str]:
        """The addresses, or, where none is known yet, what they will begin with; both kinds where that is unknown."""
        if isinstance(self.discovery, DnsMembers):
            return [f"{self.discovery.scheme}://"]
        return [replica.url for replica in self.address.replicas] or ["ws://", "wss://"]


def is_dns(text: object) -> bool:
    """True for ``dns://…`` and ``dns+wss://…``."""
    return isinstance(text, str) and text.partition("://")[0] in SCHEMES and "://" in text


def find_source(replicas: Replicas) -> Source:
    """What ``replicas`` means. Raises as ``clusterfile.resolve``; ``BadOption`` for what is none of ``Replicas``."""
    if replicas is None:
        named = os.environ.get(ENVIRONMENT)
        return find_source(named) if named else _watched(resolve(None), DEFAULT_PATH)
    if isinstance(replicas, str):
        if is_dns(replicas):
            return Source(ClusterAddress((), source=replicas), DnsMembers.of(replicas))
        if "://" not in replicas:
            return _watched(resolve(replicas), Path(replicas))
    elif isinstance(replicas, os.PathLike):
        return _watched(resolve(replicas), Path(replicas))
    elif isinstance(replicas, Discovery):
        return Source(ClusterAddress((), source=repr(replicas)), replicas)
    address = resolve(replicas)
    return Source(address, StaticMembers(Members(address.replicas)))


def _watched(address: ClusterAddress, path: Path) -> Source:
    return Source(address, FileMembers(path.absolute()))


def find_discovery(where: Where) -> Discovery:
    """What a replica finds its peers by. Raises ``BadOption``."""
    if isinstance(where, str) and "://" in where:
        return find_source(where).discovery
    if isinstance(where, str | os.PathLike):
        if not os.fspath(where):
            raise BadOption("discover: the path of a file is empty")
        return FileMembers(Path(where).absolute())
    if isinstance(where, Discovery):
        return where
    raise BadOption(
        f"discover: {where!r} is neither dns://NAME:PORT, nor the path of a file, nor a discovery.Discovery"
    )
