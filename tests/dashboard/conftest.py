"""Launchers as real processes: `up(*options)` starts one in the test's own folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster._launcher import Up, starter


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    yield from starter(tmp_path)
