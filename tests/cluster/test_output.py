"""What a launcher says, and to whom; tables without a terminal."""

from __future__ import annotations

import io
import json
import threading
from typing import Any

import pytest
from rich.console import Console

from cluster.output import LOG_LINES_MAX, Output, in_words, ready_line
from cluster.pasting import paste_line
from cluster.summary import FIELDS, summary_event
from cluster.table import live_table, summary_table
from tests.cluster._launcher import READY
from tiedreq import Attempt
from tiedreq.tables import attempts_table, milliseconds, replica_table

STATUS = {
    "pid": 17,
    "slots": 8,
    "running": 2,
    "queue": 1234,
    "started": 10,
    "dropped_by_peer": 3,
    "double_starts": 1,
    "p50_ms": 1.234,
    "p99_ms": None,
    "draining": False,
    "links": {"r1": {"up": True}, "r2": {"up": False}},
}
TRAFFIC = {
    "policy": "tied",
    "method": "work",
    "rate": 100.0,
    "seconds": 2.0,
    "calls": 200,
    "errors": 2,
    "error_kinds": {"DeadlineExceeded": 2},
    "unfinished": 0,
    "offered_rate": 100.0,
    "achieved_rate": 99.0,
    "p50_ms": 5.0,
    "p99_ms": 50.0,
    "p999_ms": 500.0,
    "executed": 198,
    "duplicates_seen": 5,
}


def shown(table: Any) -> str:
    console = Console(file=io.StringIO(), width=160, emoji=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def said(*events: dict[str, Any], json_events: bool = False, try_line: str = "") -> tuple[list[str], list[str]]:
    out, error = io.StringIO(), io.StringIO()
    output = Output(json_events=json_events, out=out, error=error)
    assert not output.wants_table
    for event in events:
        output.event(event, try_line=try_line)
    assert output.close()
    return out.getvalue().splitlines(), error.getvalue().splitlines()


READY_EVENT = {"event": "ready", "replicas": 4, "dashboard": None, "state": "/x/.tiedreq"}


def test_the_ready_line() -> None:
    match = READY.match(ready_line(READY_EVENT))
    assert match and match.groups() == ("4", None, "/x/.tiedreq")
    match = READY.match(ready_line({**READY_EVENT, "dashboard": "http://127.0.0.1:80/"}))
    assert match and match.groups() == ("4", "http://127.0.0.1:80/", "/x/.tiedreq")
    assert said(READY_EVENT, try_line="tiedreq status") == (
        ["ready 4 replicas state /x/.tiedreq", "try: tiedreq status"],
        [],
    )


def test_events_go_to_one_output_or_the_other() -> None:
    lost = {"event": "replica_lost", "replica": "r1", "pid": 5, "reason": "exit code 1", "state": "restarting"}
    stopped = {"event": "stopped", "exit": 0, "reason": "SIGTERM"}
    out, error = said(READY_EVENT, lost, stopped)
    assert len(out) == 1
    assert error == [
        "cluster.up: r1 (process 5) exit code 1: starting it again",
        "cluster.up: stopped: SIGTERM",
    ]
    out, error = said(READY_EVENT, lost, stopped, json_events=True, try_line="tiedreq status")
    assert [json.loads(line) for line in out] == [READY_EVENT, lost, stopped] and not error


@pytest.mark.parametrize(
    "event",
    [
        {"event": "replica_lost", "replica": "r1", "pid": 5, "reason": "exit code 1", "state": "failed"},
        {"event": "replica_restarted", "replica": "r1", "url": "ws://a:1", "pid": 6, "seconds": 0.5},
        {"event": "replica_joined", "replica": "r1", "url": "ws://a:1", "pid": 6},
        {"event": "replica_left", "replica": "r1", "pid": 6},
        {"event": "something", "new": 1},
    ],
)
def test_every_event_has_words(event: dict[str, Any]) -> None:
    words = in_words(event)
    assert words and "\n" not in words
    assert words.startswith("{") is ("new" in event)


def test_a_reader_that_stopped_reading_loses_logs_but_stops_nobody() -> None:
    class Stuck(io.StringIO):
        go_on = threading.Event()

        def write(self, text: str) -> int:
            self.go_on.wait()
            return super().write(text)

    error = Stuck()
    output = Output(out=io.StringIO(), error=error)
    for number in range(LOG_LINES_MAX + 50):
        output.log("r0", str(number))
    error.go_on.set()
    written = threading.Event()
    while not output._log.put(written.set):
        pass
    assert written.wait(30), "everything that waited is written, and there is room"
    output.note("after")
    assert output.close()
    lines = error.getvalue().splitlines()
    assert lines[0] == "r0 | 0" and lines[-1] == "cluster.up: after"
    assert "lines were not shown" in lines[-2]


def test_a_reader_that_is_gone_is_no_error() -> None:
    out, error = io.StringIO(), io.StringIO()
    out.close()
    error.close()
    output = Output(out=out, error=error)
    output._error = io.StringIO()
    output.event(READY_EVENT)
    output.note("still here")
    assert output.close()
    assert output._error.getvalue() == "cluster.up: still here\n"


def test_what_is_pasted_is_quoted() -> None:
    assert (
        paste_line(["tiedreq"], ["call", "search", '{"query": "json"}'])
        == """tiedreq call search '{"query": "json"}'"""
    )


def test_the_table_of_replicas() -> None:
    lines = shown(replica_table({"r0": STATUS, "r1": None}, {"r1": "starting"})).splitlines()
    assert lines[0].split()[:4] == ["replica", "state", "pid", "queue"]
    assert lines[1].split() == ["r0", "up", "17", "1,234", "2/8", "10", "3", "1", "1.23", "-", "1/2", "down:", "r2"]
    assert lines[2].split() == ["r1", "starting", *["-"] * 9]


def test_the_live_table_with_traffic() -> None:
    told = shown(live_table({"r0": STATUS}, {"r0": "silent"}, {**TRAFFIC, "p999_ms": None}))
    assert "silent" in told and "traffic: tied, 200 calls, 2 errors" in told and "p99.9 - ms" in told
    assert "traffic" not in shown(live_table({"r0": STATUS}, {}, None))


def test_a_link_that_a_replica_does_not_list_is_down() -> None:
    lines = shown(live_table({"r0": None, "r1": {**STATUS, "links": {}}}, {"r0": "starting", "r1": "up"}, None))
    assert lines.splitlines()[2].endswith("0/1 down: r0")


def test_a_summary() -> None:
    event = summary_event(TRAFFIC, 208)
    assert set(FIELDS) <= set(event)
    assert event["executions_per_call"] == 1.04
    assert event["duplicate_execution_rate"] == 0.05
    told = shown(summary_table(event))
    assert "DeadlineExceeded: 2" in told and "1.0400" in told and "0.0500" in told
    json.dumps(event, allow_nan=False)


def test_a_summary_of_what_the_replicas_could_not_tell() -> None:
    event = summary_event(TRAFFIC, 0)
    assert (event["executions_per_call"], event["duplicate_execution_rate"]) == (203 / 200, 5 / 200)
    none = summary_event({**TRAFFIC, "calls": 0, "executed": 0, "duplicates_seen": 0, "p50_ms": None}, 0)
    assert (none["executions_per_call"], none["duplicate_execution_rate"], none["p50_ms"]) == (None, None, None)
    assert "-" in shown(summary_table(none))


def test_the_story_of_a_call() -> None:
    attempts = (
        Attempt("r0", 0, "first", 0.0, 0.001, 0.0125, "done"),
        Attempt("r1", None, "backup", 0.0101, None, None, None),
    )
    lines = shown(attempts_table(attempts)).splitlines()
    assert lines[1].split() == ["r0", "first", "0", "0.00", "1.00", "12.5", "done"]
    assert lines[2].split()[:6] == ["r1", "backup", "-", "10.1", "-", "-"]


def test_milliseconds_have_three_digits() -> None:
    assert [milliseconds(value) for value in (None, 0.1234, 12.34, 123.4, 1234.0)] == [
        "-",
        "0.12",
        "12.3",
        "123",
        "1234",
    ]
