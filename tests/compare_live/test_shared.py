"""Replicas of a live run that share processes."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import Any

import psutil
import pytest
import trio

from cluster.compare.cell import Cell
from cluster.compare.live import Counters, StartFailed, run_cell
from cluster.compare.live_timer import punctual_timers
from tests.compare_live.children import check_that_a_loss_ends_the_run, children
from tiedreq.core.errors import BadOption
from tiedreq.slowness import parse_pause
from tiedreq.units import parse_latency

PROGRAM = "cluster.shared_replicas"


def small(**changes: Any) -> Cell:
    cell = Cell(world="live", replicas=5, slots=4, rate=100.0, warmup=0.5, duration=2.0, policy="tied", processes=2)
    return cell.but(**changes)


def programs() -> list[psutil.Process]:
    """The programs that this process has started and that are replicas."""
    return children(PROGRAM)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"world": "sim"}, "^processes: they are for live runs; add --world live"),
        ({"processes": 0}, "^processes: "),
        ({"processes": 6}, "^processes: "),
        ({"pauses": (parse_pause("200ms@5s"),)}, "^processes: a replica that shares a process can't be stopped alone"),
    ],
)
def test_what_cannot_share_processes_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadOption, match=words):
        small(**changes)
    small(pauses=(parse_pause("200ms@5s"),), processes=5)  # one each


def test_the_processor_time_of_a_process_is_counted_once() -> None:
    told = [
        {"pid": pid, "cpu_seconds": 2.0, "messages": 1, "notices": 1, "late_notices": 0} for pid in (11, 11, 12, 12, 12)
    ]
    before = time.process_time()
    read = Counters.read(told, [])
    assert read.messages == 5
    assert before <= read.cpu_seconds - 4.0 <= time.process_time()


def kernel_timers() -> int:
    """How many this process has open."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += "timerfd" in os.readlink(f"/proc/self/fd/{descriptor}")
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="a service of its kernel")
async def test_replicas_on_one_loop_share_its_punctual_timers() -> None:
    async with punctual_timers() as outer:
        async with punctual_timers() as inner, punctual_timers():
            assert outer and inner and kernel_timers() == 1
            await trio.sleep(0.001)
        await trio.sleep(0.001)
        assert kernel_timers() == 1, "the outer one goes on"
    assert kernel_timers() == 0
    async with punctual_timers() as again:
        assert again and kernel_timers() == 1


@pytest.mark.system
def test_a_run_of_replicas_that_share_processes_counts_everything_once() -> None:
    seen: set[int] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            seen.update(process.pid for process in programs())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        tally = run_cell(small(mesh_latency=parse_latency("1ms")), 1)
    finally:
        over.set()
        watcher.join()
    assert len(seen) == 2
    assert tally.calls == tally.answered == tally.latency.count > 100 and not tally.errors and not tally.unfinished
    assert tally.executions >= tally.calls and tally.executions - tally.calls <= 2 * tally.duplicates
    assert tally.ties == tally.calls and tally.slot_seconds == pytest.approx(40.0)
    assert programs() == []


@pytest.mark.system
def test_a_lost_process_ends_the_run_with_all_its_replicas() -> None:
    check_that_a_loss_ends_the_run(small(duration=30.0), PROGRAM, 2)


@pytest.mark.system
def test_a_service_that_cannot_be_had_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from cluster.compare.live_settings import LabSettings

    monkeypatch.setattr(LabSettings, "environment", lambda self: {"TIEDREQ_LAB": "{"})
    with pytest.raises(StartFailed, match=r"(?s)r.: .*JSONDecodeError"):
        run_cell(small(), 1)
    assert programs() == []
