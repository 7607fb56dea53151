"""One run of one cell with real replicas: processes, websockets, shaped links, calls in an open loop.

A fresh cluster is started for the run and ended with it. The warm-up is run like the rest and not measured. After the
last call the run goes on until every call has its outcome, or for ``DRAIN_SECONDS``.

What is counted where: latency, waits, backups and ties at the client; executions, duplicates, busy and wasted time from
the journals of the replicas, joined to the calls by their numbers at the end, exactly; messages, notices and processor
time are counters, read when the window opens and when it closes.

The run checks itself: a client that sent late and a replica whose executions ended late are told in the tally's
``notes``, since what is measured then is the machine. Not for simulated cells (``simulated``).
"""

from __future__ import annotations

import gc
import json
import signal
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import trio

from cluster.compare.cell import Cell
from cluster.compare.live_cluster import ReplicaLost, StartFailed, live_replicas
from cluster.compare.live_join import Join
from cluster.compare.live_journal import EXECUTIONS_MAX, read_page
from cluster.compare.live_links import ShapedNetwork
from cluster.compare.live_pauses import draw_pauses
from cluster.compare.live_priority import before_others
from cluster.compare.live_service import BEGIN, JOURNAL, METHOD
from cluster.compare.live_timer import punctual_timers
from cluster.compare.live_traffic import Target, Traffic
from cluster.compare.policies import policy_of
from cluster.compare.tally import SAMPLES_MAX, Distribution, Tally
from tiedreq.clusterfile import ClusterAddress
from tiedreq.core.errors import BadOption
from tiedreq.core.limits import ClientLimits
from tiedreq.core.policy import Plain
from tiedreq.loading import load_service
from tiedreq.net.client import Client
from tiedreq.net.collecting import spare_the_loop
from tiedreq.net.connecting import connect
from tiedreq.net.edge import no_groups
from tiedreq.net.network import WebsocketNetwork
from tiedreq.sim.world import WorldOptions
from tiedreq.units import LatencySpec
from tiedreq.wire.limits import wire_limits

__all__ = ["CALLS_MAX", "ReplicaLost", "StartFailed", "run_cell"]

CALLS_MAX = 500_000
"""The most calls of one run, the warm-up included: rate times seconds. What is remembered of each is a few bytes."""
CALLS_IN_FLIGHT_MAX = 1_000_000
BEGIN_SECONDS = 0.5
DRAIN_SECONDS = 15.0
SECONDS_MAX = 3_600.0
"""For how long a closed loop has pauses."""
IDLE_SECONDS = 5.0
ANSWER_SECONDS = 10.0
SAMPLE_SECONDS = 0.5
LATE_MAX = 0.005
"""A client that sends one call in a hundred later than that, or a replica that ends executions so, did not keep up."""


def run_cell(cell: Cell, seed: int) -> Tally:
    """Run a live cell with one seed. Ctrl-C ends it at once; however it ends, no process is left.

    Call it from the main thread, outside Trio. Raises ``BadOption`` for what a live run can't do, ``AppError`` when
    somebody's own service can't be had, ``StartFailed`` and ``ReplicaLost``.
    """
    _check_size(cell)
    target = _target(cell)
    began = time.perf_counter()
    with _interrupted_in_good_order():
        tally = trio.run(_run, cell, seed, target)
    tally.wall_seconds = time.perf_counter() - began
    return tally


@contextmanager
def _interrupted_in_good_order() -> Iterator[None]:
    """Where SIGTERM is to interrupt as Ctrl-C does, let it: Trio knows where Ctrl-C may strike, and not of others."""
    if signal.getsignal(signal.SIGTERM) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def _check_size(cell: Cell) -> None:
    calls = cell.measured_calls + (cell.rate or 0.0) * cell.warmup
    if calls > CALLS_MAX:
        raise BadOption(f"duration: {calls:,.0f} calls are more than the {CALLS_MAX:,} of a live run")


def _seconds(cell: Cell) -> float:
    """For how long a run may go on, at most."""
    if cell.workers:
        return SECONDS_MAX
    assert cell.rate is not None
    measured = cell.duration if cell.duration is not None else 2 * cell.measured_calls / cell.rate
    return cell.warmup + measured + DRAIN_SECONDS + IDLE_SECONDS


def zones_of(cell: Cell) -> dict[str, str]:
    """The zones of replicas and clients by name, as the simulator gives them out."""
    options = WorldOptions(replicas=cell.replicas, callers=cell.callers, zones=cell.zones)
    return {**options.replica_zones, **options.caller_zones}


def _target(cell: Cell) -> Target:
    """What is called. Raises ``BadOption`` when there is nothing that the policy may call, and ``AppError``."""
    if cell.app is None:
        return Target(METHOD, is_own=True)
    service = load_service(cell.app)
    plain = isinstance(policy_of(cell), Plain)
    if cell.method is None:
        usable = [method.name for method in service.methods.values() if method.idempotent]
        if not usable:
            raise BadOption(f"app: {cell.app} has no idempotent method that could be tied or hedged")
        name = usable[0]
    elif cell.method in service.methods:
        name = cell.method
    else:
        raise BadOption(f"method: {cell.app} has no {cell.method!r}; its methods: {', '.join(service.methods)}")
    if not service.methods[name].idempotent and not plain:
        raise BadOption(f"method: {name!r} is not declared idempotent, so it can't be tied or hedged")
    return Target(name, json.loads(cell.arguments))


@dataclass(frozen=True, slots=True)
class Counters:
    """What replicas and this process count by themselves, at one moment: the difference of two is measured."""

    messages: int
    notices: int
    late_notices: int
    cpu_seconds: float
    backups_denied: int

    @classmethod
    def read(cls, statuses: Iterable[Mapping[str, Any]], clients: Iterable[Client]) -> Counters:
        """Add up what replicas and clients told."""
        told = list(statuses)
        return cls(
            messages=sum(status["messages"] for status in told),
            notices=sum(status["notices"] for status in told),
            late_notices=sum(status["late_notices"] for status in told),
            cpu_seconds=sum({status["pid"]: status["cpu_seconds"] for status in told}.values()) + time.process_time(),
            backups_denied=sum(client.stats().get("backups_denied", 0) for client in clients),
        )


async def _run(cell: Cell, seed: int, target: Target) -> Tally:
    with no_groups(), ExitStack() as stack:
        async with (
            punctual_timers(),
            live_replicas(cell, seed) as address,
            _clients(cell, seed, address) as clients,
        ):
            stack.enter_context(before_others())
            run = Run(cell, seed, address, clients, target)
            stack.enter_context(_collected_rarely())
            return await run.run()


@contextmanager
def _collected_rarely() -> Iterator[None]:
    """The garbage collector spares this loop inside the block, as it does those of the replicas."""
    before = gc.get_threshold()
    spare_the_loop()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


@asynccontextmanager
async def _clients(cell: Cell, seed: int, address: ClusterAddress) -> AsyncIterator[list[Client]]:
    """The clients that make the calls, connected to every replica."""
    names = {replica.url: replica.name or "" for replica in address.replicas}
    limits = ClientLimits(calls_in_flight_max=CALLS_IN_FLIGHT_MAX)
    async with AsyncExitStack() as stack:
        clients = []
        zones = zones_of(cell)
        for index in range(cell.callers):
            inner = WebsocketNetwork(wire_limits(limits.payload_bytes_max))
            name = f"c{index}"
            shaped = ShapedNetwork(
                inner,
                cell.client_latency,
                client=name,
                names=names,
                rng=Random(f"{seed}/client links {index}"),
                zones=zones,
            )
            client = await stack.enter_async_context(
                connect(
                    address.source,
                    policy=policy_of(cell),
                    limits=limits,
                    picker=cell.picker,
                    network=inner if cell.client_latency == LatencySpec() else shaped,
                    zone=zones.get(name, ""),
                )
            )
            if len(client.stats()["replicas"]) < cell.replicas:
                raise StartFailed(
                    f"a client reached only {len(client.stats()['replicas'])} of {cell.replicas} replicas"
                )
            clients.append(client)
        yield clients


class Run:
    """Warm-up, window and drain of one cluster, and what was measured."""

    def __init__(self, cell: Cell, seed: int, address: ClusterAddress, clients: list[Client], target: Target) -> None:
        self._cell = cell
        self._address = address
        self._clients = clients
        self._traffic = Traffic(cell, seed, clients, target)
        self._tally = self._traffic.tally
        self._before: Counters | None = None
        self._late_p99: dict[str, float] = {}
        self._pauses = draw_pauses(cell, seed, _seconds(cell))

    async def run(self) -> Tally:
        """Let it all happen; the tally."""
        cell, traffic, tally = self._cell, self._traffic, self._tally
        begin = trio.current_time() + BEGIN_SECONDS
        await self._begin(begin)
        async with trio.open_nursery() as calls:
            async with trio.open_nursery() as observers:
                observers.start_soon(self._observe_begin, begin + cell.warmup)
                observers.start_soon(self._sample, begin + cell.warmup)
                await traffic.make_calls(calls, begin)
                observers.cancel_scope.cancel()
            after = await self._counters()
            with trio.move_on_after(DRAIN_SECONDS):
                await traffic.ended()
            calls.cancel_scope.cancel()
        tally.span = traffic.window[1] - traffic.window[0]
        tally.slot_seconds = tally.span * cell.capacity
        tally.unfinished = tally.calls - tally.answered - tally.errors
        self._take_counters(after)
        await self._idle()
        await self._read_journals()
        tally.notes += self_check(traffic.lateness, self._late_p99)
        return tally

    async def _begin(self, at: float) -> None:
        """Tell the replicas when the run begins."""
        async with trio.open_nursery() as nursery:
            for replica, pauses in zip(self._address.replicas, self._pauses, strict=True):
                nursery.start_soon(self._ask, replica.url, BEGIN, {"at": at + clocks_apart(), "pauses": pauses})

    async def _ask(self, url: str, method: str, arguments: Any) -> Any:
        """Call one replica, over a connection of its own."""
        address = self._address
        async with connect([url], token=address.token, cluster=address.cluster, policy=Plain()) as client:
            return await client.call(method, arguments, timeout=ANSWER_SECONDS)

    # ---- during the window ------------------------------------------------------------------------------------

    async def _statuses(self) -> dict[str, dict[str, Any]]:
        return await self._clients[0].replica_status(timeout=ANSWER_SECONDS)

    async def _counters(self) -> Counters:
        statuses = await self._statuses()
        if len(statuses) < self._cell.replicas:
            told = ", ".join(statuses) or "none"
            self._tally.notes.append(f"not every replica said how it was within {ANSWER_SECONDS:g} s, only {told}")
        return Counters.read(statuses.values(), self._clients)

    async def _observe_begin(self, opens: float) -> None:
        await trio.sleep_until(opens)
        self._before = await self._counters()

    async def _sample(self, opens: float) -> None:
        """Ask the replicas now and then for the length of their queues and for the notice latencies they measure."""
        await trio.sleep_until(opens)
        tally, step = self._tally, SAMPLE_SECONDS
        while True:
            await trio.sleep(step)
            at, statuses = trio.current_time() - opens, (await self._statuses()).values()
            if not self._cell.workers:
                tally.queue.append((at, float(sum(status["queue"] for status in statuses))))
            if len(tally.queue) == SAMPLES_MAX:
                tally.queue[:] = tally.queue[1::2]
                step *= 2
            for status in statuses:
                for link in status["links"].values():
                    if link["notice_latency_ms"] is not None:
                        tally.notice_seconds += link["notice_latency_ms"] / 1000
                        tally.notice_samples += 1

    def _take_counters(self, after: Counters) -> None:
        tally, before = self._tally, self._before
        if before is None:  # a window shorter than a status takes
            before = after
        tally.messages = after.messages - before.messages
        tally.notices = after.notices - before.notices
        tally.late_notices = after.late_notices - before.late_notices
        tally.cpu_seconds = after.cpu_seconds - before.cpu_seconds
        tally.backups_denied = after.backups_denied - before.backups_denied

    # ---- afterwards -------------------------------------------------------------------------------------------

    async def _idle(self) -> None:
        """Wait until no handler runs any more: one that can't be stopped may outlive its call."""
        with trio.move_on_after(IDLE_SECONDS):
            while any(status["running"] for status in (await self._statuses()).values()):  # noqa: ASYNC110 -- far away
                await trio.sleep(0.05)

    async def _read_journals(self) -> None:
        """Join what the replicas executed to the calls that it was for."""
        join = Join(self._tally, self._traffic, clocks_apart())
        for index, replica in enumerate(self._address.replicas):
            rows, begin = 1, 0
            while begin < rows:
                page = await self._ask(replica.url, JOURNAL, begin)
                rows = page["rows"]
                for execution in read_page(page):
                    begin += 1
                    join.take(index, execution)
            if page["left_out"]:
                told = f"{page['left_out']} executions beyond {EXECUTIONS_MAX:,} of {replica.name} are not counted"
                self._tally.notes.append(told)
            if page["late_p99"] is not None:
                self._late_p99[replica.name or replica.url] = page["late_p99"]


def self_check(lateness: Distribution, late_p99: Mapping[str, float]) -> list[str]:
    """What is to be said when it was the machine that was measured.

    ``lateness`` is how late calls were sent; ``late_p99`` how much later than planned one execution in a hundred ended,
    by replica. In seconds.
    """
    notes = []
    p99 = lateness.percentile(99.0)
    if p99 is not None and p99 > LATE_MAX:
        notes.append(
            f"the client did not keep up: 1 % of calls were sent {1000 * p99:.1f} ms or more after their time "
            f"(the latest {1000 * lateness.longest:.0f} ms)"
        )
    behind = {name: late for name, late in late_p99.items() if late > LATE_MAX}
    if behind:
        worst = max(behind, key=behind.__getitem__)
        notes.append(
            f"{len(behind)} of {len(late_p99)} replicas did not keep up: 1 % of the executions at {worst} "
            f"took {1000 * behind[worst]:.1f} ms or more longer than they should have"
        )
    return notes


def clocks_apart() -> float:
    """What to add to a moment of Trio's clock for the same on the one that all processes of this host share."""
    return time.monotonic() - trio.current_time()
