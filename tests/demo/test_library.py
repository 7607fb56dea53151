import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.demo import library as library_module
from cluster.demo.index import IndexUnavailable, open_index
from cluster.demo.library import Library, OnCancel, QueryStopped, QuerySyntaxError, stoppable

# Seconds: long enough to be stopped, and if it isn't the test fails and doesn't hang.
LONG = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000000) SELECT count(*) FROM n"


def never(stop: Callable[[], object]) -> None:
    """An ``on_cancel`` whose work is never stopped."""


class Stops:
    """An ``on_cancel`` that the test can use."""

    def __init__(self) -> None:
        self.hooks: list[Callable[[], object]] = []

    def __call__(self, hook: Callable[[], object]) -> None:
        self.hooks.append(hook)

    def stop(self) -> None:
        for hook in self.hooks:
            hook()


@pytest.fixture
def connection(stdlib_index: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(open_index(stdlib_index)) as connection:
        yield connection


def found(library: Library, query: str) -> list[str]:
    return [hit.name for hit in library.search(query.split(), limit=5, on_cancel=never)]


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("json", "json"),
        ("json.dumps", "json.dumps"),
        ("http server", "http.server"),
        ("lru cache", "functools.lru_cache"),
        ("serialize formatted str", "json.dumps"),
    ],
)
def test_the_best_hit_comes_first(library: Library, query: str, best: str) -> None:
    assert found(library, query)[0] == best


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("parse json", "json.loads"),
        ("thread pool", "concurrent.futures.ThreadPoolExecutor"),
        ("temporary files", "tempfile.TemporaryFile"),
        ("regular expression", "re.compile"),
    ],
)
def test_what_one_looks_for_is_among_the_first(library: Library, query: str, expected: str) -> None:
    assert expected in found(library, query)


def test_scores_fall_and_the_same_query_has_the_same_answer(library: Library) -> None:
    hits = library.search(["file"], limit=50, on_cancel=never)
    assert len(hits) == 50
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert hits == library.search(["file"], limit=50, on_cancel=never)


@pytest.mark.parametrize("word", ["foo(", 'say"so"', "a'b", "*", "NOT", "AND", "name:x", "-x", "^x", "{x}", "🐍", '"'])
def test_words_are_only_words(library: Library, word: str) -> None:
    library.search([word], limit=5, on_cancel=never)
    assert library.search(["json", "decoder", '"('], limit=5, on_cancel=never)


def test_expressions_of_fts5_work_and_bad_ones_say_why(library: Library) -> None:
    hits = library.search_expression("json AND (serial* OR encoder)", limit=5, on_cancel=never)
    assert hits
    for bad in ("foo(", "json AND", '"open', "nosuch:x", "NEAR(", "\0"):
        with pytest.raises(QuerySyntaxError):
            library.search_expression(bad, limit=5, on_cancel=never)


@pytest.mark.parametrize(
    "name",
    [
        "asyncio.run",
        "asyncio.TaskGroup",
        "collections.abc.Mapping",
        "concurrent.futures.Future",
        "datetime.datetime",
        "json.JSONEncoder.default",
        "os.path.join",
        "pathlib.Path",
        "unittest.TestCase",
    ],
)
def test_public_names_are_found(library: Library, name: str) -> None:
    entry = library.lookup(name)
    assert entry is not None
    assert entry.name == name
    assert entry.doc


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("jsn.dumps", "json.dumps"),
        ("json.dmups", "json.dumps"),
        ("JSON.dumps", "json.dumps"),
        ("dumps", "json.dumps"),
        ("os.path.jion", "os.path.join"),
        ("asyncio.runners.run", "asyncio.run"),
    ],
)
def test_near_misses_hold_what_was_meant(library: Library, wrong: str, right: str) -> None:
    assert library.lookup(wrong) is None
    misses = library.near_misses(wrong)
    assert right in misses
    assert len(misses) == len(set(misses)) <= 5


@pytest.mark.parametrize("name", ["", ".", "..", "%", "_", "\\", "'", "x" * 500, "🐍.🐍"])
def test_any_name_may_be_asked_for(library: Library, name: str) -> None:
    assert library.lookup(name) is None
    assert isinstance(library.near_misses(name), list)


def test_a_missing_or_foreign_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IndexUnavailable, match=r"scripts/up builds it"):
        Library(tmp_path / "nowhere.sqlite")
    (tmp_path / "text").write_text("no database" * 200)
    with pytest.raises(IndexUnavailable, match=r"can't be read"):
        Library(tmp_path / "text")


def run_long(connection: sqlite3.Connection, on_cancel: OnCancel, outcome: list[object]) -> None:
    try:
        with stoppable(connection, on_cancel):
            outcome.append(connection.execute(LONG).fetchone())
    except BaseException as error:
        outcome.append(error)


def test_a_running_query_stops_at_once_and_its_connection_lives_on(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_module, "PROGRESS_STEPS", 2**31 - 1)  # The interrupt alone does it.
    stops, outcome = Stops(), list[object]()
    thread = threading.Thread(target=run_long, args=(connection, stops, outcome))
    thread.start()
    time.sleep(0.1)  # The query runs in a thread that only SQLite sees.
    assert thread.is_alive()
    stops.stop()
    thread.join()
    assert [type(result) for result in outcome] == [QueryStopped]
    assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_stop_before_the_query_prevents_it(connection: sqlite3.Connection) -> None:
    with pytest.raises(QueryStopped, match="before it began"), stoppable(connection, lambda stop: stop()):
        raise AssertionError("the block was entered")


def test_a_stop_between_the_look_and_the_statement_is_not_lost(connection: sqlite3.Connection) -> None:
    stops = Stops()
    with pytest.raises(QueryStopped), stoppable(connection, stops):
        stops.stop()  # No statement runs: interrupt does nothing.
        connection.execute(LONG).fetchone()


def test_a_late_stop_does_not_hit_the_connection_s_next_user(connection: sqlite3.Connection) -> None:
    stops = Stops()
    with stoppable(connection, stops):
        connection.execute("SELECT 1").fetchone()
    with stoppable(connection, never):
        cursor = connection.execute("SELECT name FROM entries")
        assert cursor.fetchone()
        stops.stop()
        assert len(cursor.fetchall()) > 1000


def test_other_errors_pass_through(connection: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"), stoppable(connection, Stops()):
        connection.execute("SELECT * FROM nowhere")


def test_searches_in_many_threads_use_connections_of_their_own(library: Library) -> None:
    results: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: results.extend(found(library, "json") for _ in range(10))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80
    assert all(result == results[0] for result in results)


def test_a_library_closed_during_a_search_leaves_nothing_open(
    stdlib_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []

    def open_and_note(path: Path) -> sqlite3.Connection:
        opened.append(open_index(path))
        return opened[-1]

    monkeypatch.setattr(library_module, "open_index", open_and_note)
    library = Library(stdlib_index)

    def close_meanwhile(stop: Callable[[], object]) -> None:
        found(library, "json")  # A second connection, idle when the library is closed.
        library.close()

    assert library.search(["json"], limit=1, on_cancel=close_meanwhile)
    assert len(opened) == 2
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
            connection.execute("SELECT 1")
