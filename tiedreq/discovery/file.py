"""Members from a file that is looked at again and again: a cluster file, or a plain list.

Looked at, not watched: a poll works on every file system, also where the file is a link that is swapped (Kubernetes'
config maps), and costs one system call a second. The file is small and local, so it is read in Trio's thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import trio

from tiedreq.clusterfile import read_cluster_file
from tiedreq.core.checks import check_number
from tiedreq.discovery.members import Members
from tiedreq.errors import ConnectError

logger = logging.getLogger("tiedreq.discovery")

FILE_INTERVAL_SECONDS = 0.5
INTERVAL_MIN, INTERVAL_MAX = 0.01, 3600.0

Signature = tuple[int, int, int]


class FileMembers:
    """The replicas that the file at ``path`` names, complete each time; looked at every ``interval`` seconds.

    While the file is away, can't be read, or belongs to a launcher that is gone, the members stay as they were.
    """

    def __init__(self, path: str | os.PathLike[str], *, interval: float = FILE_INTERVAL_SECONDS) -> None:
        self.path = Path(path)
        self.interval = check_number("interval", interval, INTERVAL_MIN, INTERVAL_MAX, "seconds")

    def __repr__(self) -> str:
        return f"FileMembers({str(self.path)!r})"

    def __aiter__(self) -> AsyncIterator[Members]:
        """A set at once if there is a file, and each time that its content has changed."""
        return _Watch(self)

    def signature(self) -> Signature | None:
        """What changes when the file does; None while there is none."""
        try:
            found = os.stat(self.path / "cluster.json" if self.path.is_dir() else self.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def read(self) -> Members:
        """What stands in it. Raises ``ConnectError``."""
        address = read_cluster_file(self.path)
        return Members(address.replicas, cluster=address.cluster)


class _Watch:
    """One look after the other. No generator: it may be cancelled while it waits, and asked again."""

    def __init__(self, source: FileMembers) -> None:
        self._source = source
        self._seen: Signature | None = None
        self._known: Members | None = None
        self._complaint = ""
        self._looked = False

    def __aiter__(self) -> _Watch:
        return self

    async def __anext__(self) -> Members:
        while True:
            await trio.sleep(self._source.interval if self._looked else 0)
            self._looked = True
            found = self._look()
            if found is not None:
                return found

    def _look(self) -> Members | None:
        """What has changed, if anything has."""
        signature = self._source.signature()
        if signature is None or signature == self._seen:
            return None
        try:
            found = self._source.read()
        except ConnectError as error:
            if self._complaint != str(error):
                self._complaint = str(error)
                logger.warning("members stay as they are: %s", error)
            return None
        self._seen, self._complaint = signature, ""
        if found == self._known:
            return None
        self._known = found
        return found
