"""Build the search index: one SQLite file with the entries and an FTS5 table over their words.

The launcher builds it once, before replicas start; replicas only read it. A file of this schema, Python version and
source tree is reused.

Invariants: the file appears at its path complete or not at all, and is never changed in place, so that readers may
open it as immutable. Not for queries: those are in ``cluster.demo.library``.
"""

from __future__ import annotations

import gc
import os
import platform
import re
import sqlite3
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cluster.demo.documentation import Entry, read_documentation

SCHEMA = 1
"""Raise this when the tables or the rules of what is indexed change."""

_TABLES = """
CREATE TABLE about (version TEXT NOT NULL, entries INTEGER NOT NULL);
CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    leaf TEXT NOT NULL COLLATE NOCASE,
    words TEXT NOT NULL,
    kind TEXT NOT NULL,
    signature TEXT NOT NULL,
    summary TEXT NOT NULL,
    doc TEXT NOT NULL
);
CREATE VIRTUAL TABLE entries_text USING fts5 (
    words, summary, doc, content='entries', content_rowid='id', tokenize='porter unicode61'
);
"""
_CAPITALISED = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class IndexUnavailable(RuntimeError):
    """The search index can't be built or opened. The message says why and what to do."""


def build_index(path: Path, *, source: Path | None = None) -> int:
    """Make sure that the index at ``path`` is there and current; return its number of entries.

    ``source`` is the tree to read, by default that of this Python's standard library. Raises ``IndexUnavailable``
    when this Python's SQLite has no FTS5, when the tree holds no documentation, or when the file can't be written.
    """
    source = Path(sysconfig.get_path("stdlib")) if source is None else source
    version = f"schema {SCHEMA}, {platform.python_implementation()} {platform.python_version()}, {source.absolute()}"
    entries = _entries_of(path, version)
    if entries is not None:
        return entries
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".part", dir=path.parent)
        os.close(descriptor)
        try:
            entries = _write(Path(name), source, version)
            os.replace(name, path)
        finally:
            Path(name).unlink(missing_ok=True)
    except (OSError, sqlite3.Error) as error:
        hint = " (this Python's SQLite is built without FTS5)" if "fts5" in str(error) else ""
        raise IndexUnavailable(f"search index {path} can't be built: {error}{hint}") from error
    return entries


def open_index(path: Path) -> sqlite3.Connection:
    """A read-only connection; one thread at a time may use it, any thread may call ``interrupt``.

    Raises ``IndexUnavailable`` when there is no index at ``path``.
    """
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        return sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)
    except sqlite3.Error as error:
        raise IndexUnavailable(f"search index {path} can't be opened: {error}; scripts/up builds it") from error


def _entries_of(path: Path, version: str) -> int | None:
    """How many entries the index at ``path`` has, None when there is none of this version."""
    if not path.is_file():
        return None
    try:
        with closing(open_index(path)) as connection:
            row = connection.execute("SELECT entries FROM about WHERE version = ?", (version,)).fetchone()
    except sqlite3.Error:
        return None
    return int(row[0]) if row else None


def _write(path: Path, source: Path, version: str) -> int:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # Nobody else sees the file before it is complete, so that a crash loses nothing.
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
            connection.execute(f"PRAGMA {pragma}").close()
        connection.executescript(f"BEGIN; {_TABLES}")
        with _garbage_collection_paused():
            rows = [_row(entry) for entry in read_documentation(source)]
        if not rows:
            raise IndexUnavailable(f"search index {path}: no documentation was found in {source}")
        connection.executemany(
            "INSERT INTO entries (name, leaf, words, kind, signature, summary, doc) VALUES (?, ?, ?, ?, ?, ?, ?)", rows
        )
        connection.execute("CREATE INDEX entries_leaf ON entries (leaf)")
        connection.execute("INSERT INTO entries_text (entries_text) VALUES ('rebuild')")
        connection.execute("INSERT INTO about VALUES (?, ?)", (version, len(rows)))
        connection.execute("COMMIT")
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return len(rows)


def _row(entry: Entry) -> tuple[str, ...]:
    leaf = entry.name.rpartition(".")[2]
    # "ThreadPoolExecutor" is one word for the tokenizer: its parts make it found by "thread pool" too.
    words = f"{entry.name} {' '.join(_CAPITALISED.findall(leaf))}"
    return entry.name, leaf, words, entry.kind, entry.signature, entry.summary, entry.doc


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Syntax trees are many small objects without cycles: collecting among them costs a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
