"""The journal of a live replica, and how its rows are joined to calls."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest
import trio

import tiedreq
from cluster.compare import live_service
from cluster.compare.cell import BrownOut, Cell
from cluster.compare.live_join import Join
from cluster.compare.live_journal import FAILED, KINDS, RETURNED, RUNNING, STOPPED, Execution, Journal, read_page
from cluster.compare.live_settings import VARIABLE, LabSettings
from cluster.compare.live_traffic import winner_code
from cluster.compare.tally import Tally
from tiedreq.core.errors import BadOption
from tiedreq.laws import parse_law
from tiedreq.slowness import SlowSpec
from tiedreq.testing import LocalCluster

FIRST, TIE, BACKUP = KINDS.index("first"), KINDS.index("tie"), KINDS.index("backup")


def context(key: str | None, kind: str = "first", rank: int | None = None) -> Any:
    return SimpleNamespace(key=key, kind=kind, rank=rank)


def test_rows_travel_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.compare.live_journal.PAGE_ROWS", 2)
    now = [10.0]
    journal = Journal(clock=lambda: now[0])
    rows = [
        journal.begin(context("7")),
        journal.begin(context("8", "tie", 1)),
        journal.begin(context("8", "backup")),
        journal.begin(context("somebody's own key")),
        journal.begin(context(None)),
    ]
    now[0] = 11.5
    journal.end(rows[0], RETURNED)
    journal.end(rows[1], STOPPED)
    journal.end(rows[3], FAILED)
    now[0] = 12.0
    pages = [journal.page(begin) for begin in (0, 2, 4)]
    assert [len(list(read_page(page))) for page in pages] == [2, 2, 1]
    assert [execution for page in pages for execution in read_page(page)] == [
        Execution(7, FIRST, -1, 10.0, 11.5, RETURNED),
        Execution(8, TIE, 1, 10.0, 11.5, STOPPED),
        Execution(8, BACKUP, -1, 10.0, 12.0, RUNNING),
        Execution(-1, FIRST, -1, 10.0, 11.5, FAILED),
        Execution(-1, FIRST, -1, 10.0, 12.0, RUNNING),
    ]
    assert [page["rows"] for page in pages] == [5, 5, 5]


def test_what_has_no_room_is_counted() -> None:
    journal = Journal(executions_max=1)
    first, second = journal.begin(context("0")), journal.begin(context("1"))
    journal.end(first, RETURNED)
    journal.end(second, RETURNED)
    page = journal.page(0)
    assert (page["rows"], page["left_out"]) == (1, 1)
    assert [execution.call for execution in read_page(page)] == [0]


def test_executions_are_joined_to_their_calls() -> None:
    """Calls 1 to 3 are measured: one answered by a backup, one started twice in its tie, one that nobody answered."""
    tally = Tally(calls=3)
    winners = array("i", [winner_code(0, FIRST), winner_code(1, BACKUP), winner_code(0, FIRST), -1])
    traffic: Any = SimpleNamespace(winners=winners, first_measured=1, window=(0.0, 10.0))
    offset = 1000.0
    join = Join(tally, traffic, offset)

    def take(replica: int, call: int, kind: int, rank: int, begun: float, ended: float, how: int) -> None:
        join.take(replica, Execution(call, kind, rank, begun + offset, ended + offset, how))

    take(0, 0, FIRST, -1, -1.0, 0.5, RETURNED)  # of the warm-up: half a second of the window
    take(0, 1, FIRST, 0, 1.0, 4.0, STOPPED)
    take(1, 1, BACKUP, -1, 3.0, 4.0, RETURNED)
    take(0, 2, FIRST, 0, 5.0, 7.0, RETURNED)
    take(1, 2, TIE, 1, 5.0, 6.0, RETURNED)
    take(2, 3, FIRST, -1, 9.0, 12.0, FAILED)
    take(2, -1, FIRST, -1, 5.0, 6.0, RETURNED)  # nobody's
    assert (tally.executions, tally.duplicates, tally.double_starts, tally.completed_twice) == (5, 2, 1, 1)
    assert tally.busy_seconds == pytest.approx(3 + 1 + 2 + 1 + 3)
    assert tally.wasted_seconds == pytest.approx(3 + 1 + 3)
    assert tally.window_busy_seconds == pytest.approx(0.5 + 3 + 1 + 2 + 1 + 1 + 1)


def test_an_answer_is_used_once() -> None:
    """Two executions that the same replica returned, both backups: one of them was the answer."""
    tally = Tally(calls=1)
    traffic: Any = SimpleNamespace(winners=array("i", [winner_code(1, BACKUP)]), first_measured=0, window=(0.0, 9.0))
    join = Join(tally, traffic, 0.0)
    for begun in (1.0, 4.0):
        join.take(1, Execution(0, BACKUP, -1, begun, begun + 2, RETURNED))
    assert (tally.busy_seconds, tally.wasted_seconds) == (4.0, 2.0)


def test_settings_survive_the_environment() -> None:
    cell = Cell(
        replicas=3,
        rate=1.0,
        duration=1.0,
        service=parse_law("bimodal(10ms,300ms,0.02)"),
        slow=(SlowSpec(1, 3.0), SlowSpec(1, 2.0)),
        brown_out=BrownOut(1.0, 2.0, 0.008),
        handlers="thread",
    )
    for index, factor in enumerate((1.0, 6.0, 1.0)):
        settings = LabSettings.of(cell, index, 5)
        assert LabSettings.from_environment(settings.environment()) == settings
        assert settings.slow_factor == factor and settings.threads and settings.replica == f"r{index}"
    assert LabSettings.of(cell.but(intrinsic=True), 0, 5).service is None
    with pytest.raises(BadOption, match=VARIABLE):
        LabSettings.from_environment({})


def test_work_takes_the_calls_own_time_and_a_backup_another() -> None:
    cell = Cell(replicas=1, rate=1.0, duration=1.0, service=parse_law("const(50ms)"), slow=(SlowSpec(0, 2.0),))

    def planned(cell: Cell, kind: str, pauses: list[tuple[float, float]] | None = None) -> float:
        work = live_service.Work(LabSettings.of(cell, 0, 1), clock=lambda: 100.0)
        work.begin(100.0, pauses or [])
        return work.plan(kind, 0.010) - 100.0

    assert planned(cell, "first") == planned(cell, "tie") == pytest.approx(0.020)
    assert planned(cell, "backup") == pytest.approx(0.100)
    assert planned(cell.but(intrinsic=True), "backup") == pytest.approx(0.020)
    assert planned(cell.but(brown_out=BrownOut(0.0, 9.0, 0.5)), "first") == pytest.approx(1.020)
    assert planned(cell.but(brown_out=BrownOut(5.0, 9.0, 0.5)), "first") == pytest.approx(0.020)
    assert planned(cell, "first", [(0.0, 3.0)]) == pytest.approx(3.020)


async def test_a_service_of_ones_own_keeps_its_ways() -> None:
    """Wrapped for the journal, methods are declared as before, the lifespan runs, failures stay what they were."""
    settings = LabSettings(replica="r0", seed=1, app="tests.compare_live.own:service")
    journal = Journal()
    service = live_service.lab_service(settings, journal)
    from tests.compare_live.own import service as own

    for name, method in own.methods.items():
        wrapped = service.methods[name]
        assert (wrapped.idempotent, wrapped.run, wrapped.timeout_max, wrapped.slots) == (
            method.idempotent,
            method.run,
            method.timeout_max,
            method.slots,
        )
    async with LocalCluster(service, replicas=1) as client:
        assert await client.call("greet", {"name": "you"}, key="3") == "hello you"
        assert await client.call("compute", 4, key="4") == 16
        with pytest.raises(tiedreq.RemoteFailure, match="no such thing"):
            await client.call("fail", key="5")
        with trio.move_on_after(0.05):
            await client.call("wait", key="6")
        with trio.fail_after(5):
            while (page := journal.page(0))["columns"]["how"][-1] == RUNNING:  # noqa: ASYNC110 -- at the replica
                await trio.sleep(0.01)
    assert [(row.call, row.how) for row in read_page(page)] == [(3, RETURNED), (4, RETURNED), (5, FAILED), (6, STOPPED)]
