"""Clusters to break: one that tests share which leave its processes as they are, and one for each of the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.breaking._cluster import Broken, Start, starting

RATE_DEFAULT = 100.0


@pytest.fixture(scope="session")
def rate() -> float:
    """Calls per second: what a busy machine of two cores carries, unless $TIEDREQ_CALL_RATE says otherwise."""
    return float(os.environ.get("TIEDREQ_CALL_RATE", RATE_DEFAULT))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    """Four replicas that live as long as the module's tests."""
    with starting(tmp_path_factory.mktemp("shared")) as start:
        yield start()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start launchers in the test's own folder."""
    with starting(tmp_path) as start:
        yield start
