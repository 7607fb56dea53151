"""A ring of records in one block of memory: packed numbers, so that it takes what it takes and keeps nothing alive."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any


class Ring:
    """``length`` slots of ``size`` bytes; the newest record takes the place of the oldest.

    Whoever writes packs into ``block`` at ``at`` and moves ``at`` on by ``size``, and at the end of ``block`` to 0:
    then it is ``full``. (There is no method for it, for that would take longer than the packing.)
    """

    __slots__ = ("at", "block", "full", "size")

    def __init__(self, size: int, length: int) -> None:
        self.size = size
        self.block = bytearray(size * length)
        self.at = 0
        self.full = False

    def __len__(self) -> int:
        """How many records there are."""
        return (len(self.block) if self.full else self.at) // self.size

    def matching(self, form: Struct, place: int, pattern: bytes) -> Iterator[tuple[Any, ...]]:
        """The records that hold ``pattern`` at the byte ``place``, oldest first, unpacked; each record is a ``form``.

        Takes as long as it takes to look for a few bytes in the block.
        """
        parts = [(self.at, len(self.block)), (0, self.at)] if self.full else [(0, self.at)]
        for begin, end in parts:
            found = self.block.find(pattern, begin, end)
            while found >= 0:
                record = found - place
                if record >= begin and record % self.size == 0:
                    yield form.unpack_from(self.block, record)
                found = self.block.find(pattern, found + 1, end)

    def newest(self, form: Struct) -> Iterator[tuple[Any, ...]]:
        """All records, the newest first, unpacked."""
        for back in range(1, len(self) + 1):
            yield form.unpack_from(self.block, (self.at - back * self.size) % len(self.block))

    def oldest(self, form: Struct) -> tuple[Any, ...] | None:
        """The oldest record; None while there is none."""
        return form.unpack_from(self.block, self.at if self.full else 0) if len(self) else None
