from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bridges.bench import Journal, make_service, serving, until


@pytest.fixture(scope="package")
def _served() -> Iterator[tuple[Journal, list[str]]]:
    journal = Journal()
    with serving(make_service(journal)) as urls:
        yield journal, urls


@pytest.fixture
def urls(_served: tuple[Journal, list[str]]) -> list[str]:
    """The addresses of three replicas of the service of bench.py, in this process."""
    return _served[1]


@pytest.fixture
def journal(_served: tuple[Journal, list[str]]) -> Journal:
    """Their journal, from now on."""
    journal = _served[0]
    until(lambda: not journal.running)
    journal.started = journal.cancelled = 0
    return journal
