import contextlib
import gc
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.demo import index
from cluster.demo.index import IndexUnavailable, build_index, open_index

Tree = Callable[..., Path]


def stored(path: Path) -> list[str]:
    with contextlib.closing(open_index(path)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM entries ORDER BY name")]


def test_an_index_is_built_once_and_reused(tree: Tree, tmp_path: Path) -> None:
    root, path = tree(**{"a.py": '"Doc."\ndef f():\n  "Doc."\n'}), tmp_path / "new" / "index.sqlite"
    assert build_index(path, source=root) == 2
    assert stored(path) == ["a", "a.f"]
    before = path.stat()
    assert build_index(path, source=root) == 2
    assert path.stat() == before
    assert [file.name for file in path.parent.iterdir()] == ["index.sqlite"]


def test_another_schema_or_tree_is_built_anew(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, path = tree(**{"a.py": '"Doc."', "sub/b.py": '"Doc."'}), tmp_path / "index.sqlite"
    build_index(path, source=root)
    (root / "c.py").write_text('"Doc."')
    monkeypatch.setattr(index, "SCHEMA", index.SCHEMA + 1)
    assert build_index(path, source=root) == 3
    assert build_index(path, source=root / "sub") == 1
    assert stored(path) == ["b"]


@pytest.mark.parametrize("content", [b"", b"not a database" * 100, b"SQLite format 3\0" + b"x" * 84])
def test_a_broken_file_is_built_anew(tree: Tree, tmp_path: Path, content: bytes) -> None:
    root, path = tree(**{"a.py": '"Doc."'}), tmp_path / "index.sqlite"
    path.write_bytes(content)
    assert build_index(path, source=root) == 1
    assert stored(path) == ["a"]


def test_a_build_that_fails_leaves_the_old_file_and_nothing_else(tree: Tree, tmp_path: Path) -> None:
    root, path = tree(**{"a.py": '"Doc."', "empty/readme": ""}), tmp_path / "index.sqlite"
    build_index(path, source=root)
    with pytest.raises(IndexUnavailable, match="no documentation was found in"):
        build_index(path, source=root / "empty")
    assert stored(path) == ["a"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["index.sqlite", "tree"]
    assert gc.isenabled()


def test_a_reader_keeps_its_file_while_a_new_one_takes_the_place(tree: Tree, tmp_path: Path) -> None:
    root, path = tree(**{"a.py": '"Doc."', "sub/b.py": '"Doc."'}), tmp_path / "index.sqlite"
    build_index(path, source=root)
    with contextlib.closing(open_index(path)) as reader:
        build_index(path, source=root / "sub")
        assert reader.execute("SELECT count(*) FROM entries").fetchone() == (2,)
    assert stored(path) == ["b"]


def test_a_place_that_cannot_be_written_is_named(tree: Tree, tmp_path: Path) -> None:
    root = tree(**{"a.py": '"Doc."'})
    with pytest.raises(IndexUnavailable, match=r"a\.py.* can't be built"):
        build_index(root / "a.py" / "index.sqlite", source=root)


def test_an_index_is_opened_for_reading_only_and_never_made(tree: Tree, tmp_path: Path) -> None:
    path = tmp_path / "with space & ?mode=rwc#.sqlite"
    with pytest.raises(IndexUnavailable, match="can't be opened"):
        open_index(path)
    assert not path.exists()
    build_index(path, source=tree(**{"a.py": '"Doc."'}))
    with contextlib.closing(open_index(path)) as connection, pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM entries")
