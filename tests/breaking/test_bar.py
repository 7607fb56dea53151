"""The time that a fault leaves: five seconds, more where the machine has other work, and no more than that."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tests.breaking import _cluster
from tests.breaking._cluster import BASELINE_SECONDS, Bar, stretch


async def never() -> bool:
    return False


@pytest.mark.parametrize("factor", [1.0, 3.0])
async def test_what_is_late_fails(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    monkeypatch.setattr(_cluster, "stretch", lambda: factor)
    bar = Bar()
    with pytest.raises(AssertionError, match=f"not within {BASELINE_SECONDS * factor:.1f} s"):
        await bar.until(never)
    assert 0 <= bar.passed - BASELINE_SECONDS * factor < 0.1


async def test_what_is_in_time_needs_no_measurement(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_cluster, "stretch")
    bar = Bar()

    async def later() -> bool:
        return trio.current_time() > 4

    await bar.until(later)
    assert bar.passed < BASELINE_SECONDS


@pytest.mark.system
def test_the_machine_is_measured() -> None:
    assert 1 <= stretch() < 100
