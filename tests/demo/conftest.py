from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.demo.index import build_index
from cluster.demo.library import Library
from tiedreq.service import Context

MakeContext = Callable[..., Context]


def make_context(state: Any = None, *, replica: str = "r0", remaining: float = 60.0) -> Context:
    return Context(
        call_id="0000000000000001-1",
        key=None,
        replica=replica,
        rank=None,
        kind="first",
        metadata={},
        state=state,
        layered=False,
        deadline=time.monotonic() + remaining,
        now=time.monotonic,
        stoppable=lambda: None,
        pushback=lambda seconds: None,
    )


def stop(context: Context) -> None:
    """What the executor does when an execution is to stop."""
    for hook in context._stop():
        hook()


@pytest.fixture(name="context")
def context_factory() -> MakeContext:
    return make_context


@pytest.fixture(name="stop")
def stop_function() -> Callable[[Context], None]:
    return stop


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Path]:
    """Write a tree of files, given as path and content, and return its root."""

    def write(**files: str | bytes) -> Path:
        root = tmp_path / "tree"
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return root

    return write


@pytest.fixture(scope="session")
def stdlib_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of the real standard library."""
    path = tmp_path_factory.mktemp("demo") / "index.sqlite"
    assert build_index(path) > 2_000
    return path


@pytest.fixture
def library(stdlib_index: Path) -> Iterator[Library]:
    with contextlib.closing(Library(stdlib_index)) as library:
        yield library
