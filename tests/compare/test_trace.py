"""Somebody's own calls: what is read from a file, and the sentence that says what a policy would have bought."""

import json
from pathlib import Path
from random import Random

import pytest

from cluster.compare.__main__ import main
from cluster.compare.options import read_options
from cluster.compare.rows import COLUMNS, Row
from cluster.compare.trace import Recording, read_trace
from cluster.compare.verdict import verdict
from tiedreq.core.errors import BadOption
from tiedreq.slowness import SlowSpec

HEAD = "arrival,duration,replica\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "calls.csv"
    path.write_text(text)
    return path


def calls(count: int = 200) -> str:
    """A call every 5 ms, in turn at three hosts, of which the second is twice as slow."""
    return HEAD + "".join(f"{1e9 + i * 0.005:.3f},{(20, 40, 20)[i % 3]}ms,host{i % 3}\n" for i in range(count))


def test_arrivals_durations_and_slow_replicas(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, calls()))
    assert trace.replicas == 3 and trace.slow == (SlowSpec(1, 2.0),)
    assert trace.rate == pytest.approx(200)
    assert trace.recording.arrivals[0] == 0 and trace.recording.span == pytest.approx(199 * 0.005)
    assert trace.service.mean() == pytest.approx(0.020)  # the slow host's durations are divided by its factor
    assert trace.together_max == 6  # 80 ms of work every 15 ms


def test_order_of_lines_does_not_matter(tmp_path: Path) -> None:
    head, *lines = calls().splitlines()
    shuffled = read_trace(write(tmp_path, "\n".join([head, *lines[::-1]])))
    assert shuffled == read_trace(write(tmp_path, calls()))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1: the header is ''"),
        ("when,what\n1,2\n", "line 1: the header is 'when,what'"),
        (HEAD + "1,2\n", "line 2: 2 values, not 3"),
        (HEAD + "1,-2,a\n", "line 2: duration: '-2'"),
        (HEAD + "nan,2,a\n", "line 2: arrival: 'nan'"),
        (HEAD + "1,soon,a\n", "line 2: duration: 'soon' is not a duration"),
        (HEAD + "1,2,a\n" * 99, "99 calls are not enough to draw from; at least 100"),
        (HEAD + "1,2,a\n" * 100, "all calls arrive at the same time"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(BadOption, match=r"^trace: [^\n]*$") as raised:
        read_trace(write(tmp_path, text))
    assert told in str(raised.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "calls.csv"
    path.write_bytes(b"\xff\xfe\x00" * 100)
    with pytest.raises(BadOption, match="not a CSV file in UTF-8"):
        read_trace(path)


def test_a_plan_for_recorded_calls(tmp_path: Path) -> None:
    plan = read_options(["--trace", str(write(tmp_path, calls()))]).plan
    cell = plan.cells[0]
    assert (cell.replicas, cell.slots, len(plan.seeds)) == (3, 6, 5)
    assert plan.policies == ("plain", "hedged", "tied", "auto")
    assert cell.duration is not None and cell.warmup + cell.duration == pytest.approx(199 * 0.005, abs=1e-5)


@pytest.mark.parametrize("head", ["arrival,duration", "arrival,duration,replica"])
def test_without_a_policy_the_latencies_are_those_of_the_recording(
    tmp_path: Path, head: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing waits: what waited when it was recorded is in the durations. So a tie can't gain what nobody lost."""
    rng = Random(1)
    at, lines = 0.0, [head]
    for number in range(1_500):
        at += rng.expovariate(300)
        lines.append(f"{at:.4f},10ms" + (f",host{number % 3}" if head.endswith("replica") else ""))
    path = write(tmp_path, "\n".join(lines) + "\n")
    assert main(["--trace", str(path), "--policies", "plain,tied", "--seeds", "2", "--jobs", "1", "--json", "-"]) == 0
    shown = capsys.readouterr()
    for shown_row in json.loads(shown.out)["rows"]:
        assert [shown_row["p50_ms"], shown_row["p999_ms"]] == pytest.approx([10, 10], rel=0.01)
        assert shown_row["wait_probability"] == 0
    assert "no gain" in shown.err


def test_recordings_of_the_same_times_are_equal() -> None:
    assert Recording([0.0, 1.0]) == Recording([0.0, 1.0]) != Recording([0.0, 2.0])
    assert len({Recording([0.0, 1.0]), Recording([0.0, 1.0])}) == 1


def row(policy: str, p99: float, p999: float, half: float = 1.0, stable: bool = True) -> Row:
    values: Row = {
        "p99_ms": p99,
        "p999_ms": p999,
        "stable": stable,
        "executions_per_call": 1.05,
        "extra_busy_ratio": 1.01,
    }
    values.update(p99_ms_ci=[p99 - half, p99 + half], p999_ms_ci=[p999 - half, p999 + half], policy=policy)
    return {**dict.fromkeys(COLUMNS), **values}


def test_the_policy_with_most_gain_is_named_with_its_price() -> None:
    group = {"plain": row("plain", 100, 300), "hedged": row("hedged", 80, 290), "tied": row("tied", 50, 60)}
    told = verdict(group)
    assert told.startswith("most gain with tied: p99 100.0 ms to 50.0 ms (-50%), p99.9 300.0 ms to 60.0 ms (-80%)")
    assert "1.050 executions per call, busy time x 1.010" in told


@pytest.mark.parametrize(
    "other",
    [
        row("tied", 100, 300),
        row("tied", 97, 291),  # less than 5 %
        row("tied", 80, 250, half=60),  # not beyond chance
        row("tied", 50, 60, stable=False),
    ],
)
def test_no_gain_is_said_when_there_is_none(other: Row) -> None:
    assert verdict({"plain": row("plain", 100, 300), "tied": other}).startswith("no gain")
