"""Finished runs in a file, so that a comparison of hours can be interrupted, and goes on where it was.

The file has one JSON object a line, in the order in which runs were finished: the key of the run, and its tally. A key
is made of the cell, the seed and the program itself, so that runs of another version are passed over. A line that was
not written to its end is passed over too.

Not for results that people or other programs read (``document``).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Self

import cluster.compare
import tiedreq
from cluster.compare.grid import Task
from cluster.compare.tally import Distribution, Tally
from tiedreq.core.errors import BadOption

__all__ = ["Kept", "tally_as_json", "tally_from_json"]

KEY_LENGTH = 32


class Kept:
    """The finished runs of a file; a context manager that closes it. Raises ``BadOption`` for another kind of file."""

    def __init__(self, path: Path) -> None:
        self._tallies: dict[str, dict[str, Any]] = {}
        torn = False
        try:
            if path.exists():
                torn = self._read(path.read_text(encoding="utf-8"))
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise BadOption(f"keep: {path}: {error.strerror}") from None
        except ValueError:
            raise BadOption(f"keep: {path}: not a file of finished runs") from None
        if torn:
            self._file.write("\n")

    def _read(self, text: str) -> bool:
        """Take what is there; whether its last line is torn. ``ValueError`` where the first is something else."""
        torn = bool(text) and not text.endswith("\n")
        lines = text.splitlines()
        for number, line in enumerate(lines, 1):
            try:
                item = json.loads(line)
                self._tallies[item["run"]] = item["tally"]
            except (ValueError, TypeError, KeyError) as error:
                unfinished = torn and number == len(lines) and isinstance(error, ValueError)
                if number == 1 and not unfinished:
                    raise ValueError("another kind of file") from None
        return torn

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def of(self, tasks: Iterable[Task]) -> dict[Task, Tally]:
        """What is known of these runs."""
        known = ((task, self._tallies.get(_key(task))) for task in tasks)
        return {task: tally_from_json(tally) for task, tally in known if tally is not None}

    def add(self, task: Task, tally: Tally) -> None:
        """Keep a finished run; it is in the file when this returns. Raises ``OSError`` where it can't be."""
        key, told = _key(task), tally_as_json(tally)
        item = {"run": key, "cell": task.cell.describe(), "seed": task.seed, "tally": told}
        self._tallies[key] = told
        self._file.write(json.dumps(item) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _key(task: Task) -> str:
    told = json.dumps([_program(), task.seed, task.cell.describe()], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:KEY_LENGTH]


@cache
def _program() -> str:
    """A digest of the library's and the laboratory's source: with any other one the same seed may mean another run."""
    digest = hashlib.sha256()
    for package in (tiedreq, cluster.compare):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def tally_as_json(tally: Tally) -> dict[str, Any]:
    """A tally as plain JSON values; ``tally_from_json`` makes the same one of it."""
    return {item.name: _plain(getattr(tally, item.name)) for item in dataclasses.fields(tally)}


def _plain(value: Any) -> Any:
    if isinstance(value, Distribution):
        buckets = sorted(value.buckets.items())
        return [value.count, value.zeros, value.total, value.longest, buckets]
    return value


def tally_from_json(values: dict[str, Any]) -> Tally:
    """The tally that ``tally_as_json`` told of. Raises ``TypeError`` or ``ValueError`` for what is none."""
    distributions = {item.name for item in dataclasses.fields(Tally) if item.default_factory is Distribution}
    tally = Tally(**{name: value for name, value in values.items() if name not in distributions})
    tally.queue = [(seconds, length) for seconds, length in tally.queue]
    for name in distributions:
        setattr(tally, name, _distribution(values[name]))
    return tally


def _distribution(values: list[Any]) -> Distribution:
    distribution = Distribution()
    distribution.count, distribution.zeros, distribution.total, distribution.longest, buckets = values
    distribution.buckets = dict(buckets)
    return distribution
