"""Pictures of a running replica and of a running client as plain values that JSON can carry.

Their shape is documented in docs/operating.md; ``version`` grows when a field changes its meaning or goes. New fields
may come at any time: pass over what you don't know. Durations are seconds, times are seconds since 1970, what is not
known is None. Gauges (queue, running, free, in flight) are read from the queue itself at the moment of the picture.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import Any, TypedDict

import trio

from tiedreq.observe.histogram import HistogramView
from tiedreq.observe.lag import LagView
from tiedreq.observe.pauses import PausesView

VERSION = 1


class ProcessView(TypedDict):
    """The process. ``cpu_seconds`` of all its threads since it began; ``rss_bytes`` None where it can't be known.

    ``tasks`` are those of the Trio loop that was asked, its own among them.
    """

    pid: int
    cpu_seconds: float
    rss_bytes: int | None
    rss_bytes_max: int
    open_files: int | None
    tasks: int


class LinkView(TypedDict):
    """A link to another replica. ``reason``: why it is not up. The round trip is a smoothed mean with its deviation.

    ``notice_latency`` is half of the round trip: how long a notice takes. ``messages_waiting`` are in the outbox.
    """

    up: bool
    reason: str
    round_trip: float | None
    round_trip_deviation: float | None
    round_trip_min: float | None
    notice_latency: float | None
    messages_waiting: int


class ReplicaMethodView(TypedDict):
    """Executions of one method: ``started``, those of them ``running``, and how the others ended.

    ``wasted``: stopped before their end, or without anybody who takes the result (yielded, cancelled, expired), counted
    up to then. ``service`` and ``queue_wait`` are of those that answered or failed; ``busy_seconds`` of all.
    """

    started: int
    running: int
    answered: int
    failed: int
    wasted: int
    busy_seconds: float
    wasted_seconds: float
    service: HistogramView
    queue_wait: HistogramView


class ReplicaSnapshot(TypedDict):
    """One replica. ``endings`` counts copies that ended without an answer, by state and then by cause.

    ``ready``: it takes calls; a draining one does not. ``counters`` only grow.
    """

    version: int
    kind: str
    name: str
    incarnation: str
    service: str
    cluster: str
    time: float
    uptime: float
    ready: bool
    draining: bool
    slots: int
    queue: int
    running: int
    free: int
    callers: int
    counters: dict[str, float]
    endings: dict[str, dict[str, int]]
    methods: dict[str, ReplicaMethodView]
    links: dict[str, LinkView]
    loop_lag: LagView
    loop_pauses: PausesView
    process: ProcessView
    sizes: dict[str, int]


class CopyView(TypedDict):
    """A copy of a call, as the client knows it. Times are seconds since the call began; None: not, or not known.

    ``rank`` is None for a copy that is in no tie. ``end`` is as in ``Attempt.end``, or ``"lost the race"`` for one
    that still ran or waited when the call ended. ``queue_wait`` and ``service_time`` are as its replica measured
    them, of a copy that answered.
    """

    copy: str
    replica: str
    kind: str
    rank: int | None
    round: int
    sent: float
    started: float | None
    ended: float | None
    end: str | None
    winner: bool
    queue_wait: float | None
    service_time: float | None


class CallView(TypedDict):
    """A call that has ended, with what became of each copy. ``outcome``: ``answered``, ``failed``, ``deadline`` …"""

    call_id: str
    method: str
    policy: str
    began: float
    latency: float
    outcome: str
    code: str
    replica: str | None
    copies: list[CopyView]


class ClientMethodView(TypedDict):
    """Calls of one method under one kind of policy (``Plain``, ``Hedged``, ``Tied``, ``Auto``) that have ended.

    ``outcomes`` counts them by outcome. ``executions``: copies that are known to have started;
    ``duplicate_executions``: calls of which more than one had. ``wasted_seconds``: what executions took whose answer
    was not used, from the news of their start to that of their end or of the call's; ``useful_seconds``: what the
    winners took, by their replicas' own measure.
    """

    method: str
    policy: str
    calls: int
    outcomes: dict[str, int]
    latency: HistogramView
    copies: int
    executions: int
    duplicate_executions: int
    useful_seconds: float
    wasted_seconds: float


class ClientSnapshot(TypedDict):
    """One client. ``replicas`` and ``learned`` (with the brake's ``state`` and ``state_reason``) as ``Client.stats()``.

    ``recent`` are the last calls that ended, oldest first.
    """

    version: int
    kind: str
    client: str
    time: float
    uptime: float
    in_flight: int
    counters: dict[str, int]
    methods: list[ClientMethodView]
    replicas: dict[str, dict[str, Any]]
    learned: list[dict[str, Any]]
    recent: list[CallView]
    loop_lag: LagView
    process: ProcessView


def process_view() -> ProcessView:
    """This process, now."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return ProcessView(
        pid=os.getpid(),
        cpu_seconds=time.process_time(),
        rss_bytes=_rss_bytes(),
        rss_bytes_max=largest if sys.platform == "darwin" else largest * 1024,
        open_files=_open_files(),
        tasks=trio.lowlevel.current_statistics().tasks_living,
    )


def _rss_bytes() -> int | None:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _open_files() -> int | None:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return None
