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

    def unpacked(self, form: Struct) -> Iterator[tuple[Any, ...]]:
        """The records, oldest first; each is a ``form`` and nothing else."""
        if self.full:
            yield from form.iter_unpack(bytes(self.block[self.at :]))
        yield from form.iter_unpack(bytes(self.block[: self.at]))
