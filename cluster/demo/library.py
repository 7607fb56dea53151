"""Answer questions from the search index: full-text search, lookup by name, near misses.

A ``Library`` keeps a few read-only connections. A search takes one for itself, so that many threads search at once and
stopping one stops no other.

Invariants: a search told to stop ends soon, wherever it was: before its statement began, in it, or after it; a stop
that comes late never hits the connection's next user; after ``close`` no connection stays open. Not for building the
index, and not for checking what callers send.
"""

from __future__ import annotations

import difflib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.demo.documentation import Entry
from cluster.demo.index import IndexUnavailable, open_index

PROGRESS_STEPS = 20_000
"""Between two looks at whether to stop, in steps of SQLite's virtual machine: about a millisecond."""

NEAR_MISSES = 5
_CANDIDATES_MAX = 200

# A hit in a name counts more than one in the summary, and that more than one in the text. What is called just as the
# words say comes first: "json" finds the module before the many things that speak of JSON.
_SEARCH = """
SELECT entries.name, entries.kind, entries.summary,
    -bm25(entries_text, 8.0, 3.0, 1.0)
    * CASE WHEN entries.name = :dotted COLLATE NOCASE THEN 3.0 WHEN entries.leaf = :joined THEN 1.5 ELSE 1.0 END
    AS score
FROM entries_text JOIN entries ON entries.id = entries_text.rowid
WHERE entries_text MATCH :match ORDER BY score DESC, entries.name LIMIT :limit
"""
_LOOKUP = "SELECT name, kind, signature, summary, doc FROM entries WHERE name = ?"
_CANDIDATES = (
    "SELECT name FROM entries WHERE leaf = :leaf",
    "SELECT name FROM entries WHERE name LIKE :prefix ESCAPE '\\' LIMIT :most",
    "SELECT name FROM entries WHERE leaf LIKE :begin ESCAPE '\\' LIMIT :most",
)


class QuerySyntaxError(ValueError):
    """The full-text expression can't be understood. The message is SQLite's."""


class QueryStopped(Exception):
    """The query was told to stop."""


OnCancel = Callable[[Callable[[], object]], None]
"""``Context.on_cancel``, or anything else that registers what to call when the work is to stop."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One result of a search. A higher ``score`` is better; scores of different queries can't be compared."""

    name: str
    kind: str
    summary: str
    score: float


class Library:
    """The index at ``path``, open for reading. Raises ``IndexUnavailable`` when it can't be opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._closed = False
        try:
            self.lookup("")
        except sqlite3.Error as error:
            self.close()
            raise IndexUnavailable(f"search index {path} can't be read: {error}; scripts/up builds it") from error

    def close(self) -> None:
        """Close every connection; one that is in use closes when its query ends."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def search(self, words: list[str], *, limit: int, on_cancel: OnCancel) -> list[Hit]:
        """The best ``limit`` entries that hold all ``words``, whatever characters are in them.

        Raises ``QueryStopped`` after what was given to ``on_cancel`` was called.
        """
        match = " ".join('"{}"'.format(word.replace('"', '""')) for word in words)
        return self._search(match, ".".join(words), "_".join(words), limit, on_cancel)

    def search_expression(self, expression: str, *, limit: int, on_cancel: OnCancel) -> list[Hit]:
        """The best ``limit`` entries for an expression of FTS5: ``json AND (dump OR load)``, ``summary:pars*``.

        Raises ``QuerySyntaxError``, and ``QueryStopped`` after what was given to ``on_cancel`` was called.
        """
        return self._search(expression, "", "", limit, on_cancel)

    def lookup(self, name: str) -> Entry | None:
        """The entry called exactly ``name``, or None."""
        with self._connection() as connection:
            row = connection.execute(_LOOKUP, (name,)).fetchone()
        return Entry(*row) if row else None

    def near_misses(self, name: str) -> list[str]:
        """Up to ``NEAR_MISSES`` existing names that ``name`` may have meant, the likeliest first."""
        parent, _, leaf = name.rpartition(".")
        values = {
            "leaf": leaf,
            "prefix": f"{_escaped(parent or name)}.%",
            "begin": f"{_escaped(leaf[:3])}%",
            "most": _CANDIDATES_MAX,
        }
        with self._connection() as connection:
            same_leaf, *others = ([row[0] for row in connection.execute(sql, values)] for sql in _CANDIDATES)
        same_leaf.sort(key=lambda candidate: -difflib.SequenceMatcher(None, name, candidate).ratio())
        similar = difflib.get_close_matches(name, {*others[0], *others[1]}, NEAR_MISSES)
        return list(dict.fromkeys([*same_leaf[:NEAR_MISSES], *similar]))[:NEAR_MISSES]

    def _search(self, match: str, dotted: str, joined: str, limit: int, on_cancel: OnCancel) -> list[Hit]:
        values = {"match": match, "dotted": dotted, "joined": joined, "limit": limit}
        with self._connection() as connection, stoppable(connection, on_cancel):
            try:
                return [Hit(*row) for row in connection.execute(_SEARCH, values)]
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
                    raise QuerySyntaxError(str(error)) from None
                raise

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection that nobody else uses meanwhile."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or open_index(self._path)
        try:
            yield connection
        finally:
            with self._lock:
                kept = not self._closed
                if kept:
                    self._idle.append(connection)
            if not kept:
                connection.close()


@contextmanager
def stoppable(connection: sqlite3.Connection, on_cancel: OnCancel) -> Iterator[None]:
    """Run queries so that what is given to ``on_cancel`` stops them: raises ``QueryStopped`` out of the block.

    ``interrupt`` alone is not enough: it does nothing when no statement runs, so one that comes a moment early is
    lost. A flag, looked at before the block and every few steps of a statement, catches that one.
    """
    lock = threading.Lock()
    asked, over = False, False

    def stop() -> None:
        nonlocal asked
        with lock:
            asked = True
            if not over:  # Later, the connection belongs to somebody else.
                connection.interrupt()

    on_cancel(stop)
    connection.set_progress_handler(lambda: asked, PROGRESS_STEPS)
    try:
        if asked:
            raise QueryStopped("the query was told to stop before it began")
        yield
    except sqlite3.OperationalError as error:
        if asked and error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            raise QueryStopped("the query was told to stop") from None
        raise
    finally:
        with lock:
            over = True
        connection.set_progress_handler(None, PROGRESS_STEPS)


def _escaped(text: str) -> str:
    """``text`` as a pattern of LIKE that matches itself."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
