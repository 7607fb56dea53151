"""What happened in a run: a transcript that people read, and a hash that says whether two runs are the same.

The hash covers every step of every core, with all that went in and came out, and everything that was done to the world.
It is the same in every process, whatever its hash seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from hashlib import blake2b

from tiedreq.core.events import InputSettled, TimePassed
from tiedreq.core.messages import Submit
from tiedreq.core.types import UNTIED, CallId, CopyId, Identity, Load

TELLING_NOTHING = ("", b"", (), None, False)


class Trace:
    """The record of one run. Names stand for clients' nonces.

    ``lines`` is filled only when ``keep`` is True, and leaves out steps of routine that decided nothing.
    """

    def __init__(self, *, keep: bool) -> None:
        self.lines: list[str] = []
        self.steps = 0
        self.names: dict[int, str] = {}
        self._keep = keep
        self._hash = blake2b(digest_size=8)

    @property
    def digest(self) -> str:
        """The hash so far, in hexadecimal."""
        return self._hash.hexdigest()

    def add(self, at: float, node: str, event: object, commands: list[object] | tuple[object, ...] = ()) -> None:
        """``event`` happened at a node, and it answered with ``commands``."""
        self.steps += 1
        self._hash.update(f"{at!r} {node} {event!r} {commands!r}\n".encode())
        if self._keep and (commands or not isinstance(event, InputSettled | TimePassed)):
            self.lines.append(f"{at * 1e3:12.4f} ms  {node:<4} {self.show(event)}")
            self.lines.extend(f"{'':15}  {'':<4}     -> {self.show(command)}" for command in commands)

    def show(self, value: object) -> str:
        """A value as people read it; what says nothing is left out."""
        return "".join(self._show(value))

    def _show(self, value: object) -> Iterator[str]:
        if isinstance(value, CopyId):
            yield f"{self.names.get(value.client, hex(value.client))}.{value.number}"
            yield f"/u{value.round}" if value.rank == UNTIED else f"/r{value.round}.{value.rank}"
        elif isinstance(value, CallId):
            yield f"{self.names.get(value.client, hex(value.client))}.{value.number}"
        elif isinstance(value, Identity):
            yield str(value)
        elif isinstance(value, Load):
            yield f"{value.queued} queued {value.free} free"
        elif isinstance(value, Submit):
            yield from self._show_submit(value)
        elif isinstance(value, Enum):
            yield value.name
        elif isinstance(value, float):
            yield f"{value:.6g}"
        elif isinstance(value, tuple):
            yield from self._show_tuple(value)
        else:
            yield value if isinstance(value, str) else repr(value)

    def _show_submit(self, submit: Submit) -> Iterator[str]:
        yield f"{submit.kind.label} {self.show(submit.copy)} {submit.method} ({submit.remaining:.4g} s left"
        if submit.partners:
            yield f", tie of {' '.join(str(partner) for partner in submit.partners)}"
            yield ", exclusive" if submit.exclusive else "" if submit.yield_ else ", no yield"
        yield ")"

    def _show_tuple(self, value: tuple[object, ...]) -> Iterator[str]:
        names = getattr(value, "_fields", None)
        if names is None:
            yield f"({' '.join(self.show(part) for part in value)})"
            return
        yield type(value).__name__
        for name, part in zip(names, value, strict=True):
            if part in TELLING_NOTHING:
                continue
            plain = isinstance(part, int | float) and not isinstance(part, Enum)
            yield f" {name}={self.show(part)}" if plain or name == "cause" else f" {self.show(part)}"
