"""The program that drives open-loop traffic: ``python -m cluster.traffic``, started by the launcher.

Calls are sent at the times of a Poisson process, whatever became of those before, and each latency counts from the
*intended* time of sending: a replica that stops, or a client that is late, hides nothing.

Control messages: ``{"do": "drive", …}`` first (``TrafficSpec``), then perhaps ``{"do": "adjust", "load": {…}}``
(``Load``), ``{"do": "races"}`` and ``{"do": "stop"}``. Answers: ``{"event": "progress", …}`` each half second;
``{"event": "client", "snapshot", "recently"}`` each second, what the client knows (docs/operating.md) and
``cluster.recently``; ``{"event": "races", "races"}`` when asked for (``cluster.racing``); and
``{"event": "traffic", …}`` at the end (``cluster.summary``). When the launcher is gone, so is this program.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import trio

from cluster.engines.local import die_with_launcher, take_control_pipes
from cluster.histogram import Histogram
from cluster.lines import LineSender, MessageReader, read_first_line
from cluster.load import Load, TrafficSpec
from cluster.metrics import observe_traffic
from cluster.racing import find_races
from cluster.recently import Recently
from tiedreq.errors import CallError, TiedreqError
from tiedreq.net.client import Client
from tiedreq.net.connecting import connect
from tiedreq.reply import Attempt

log = logging.getLogger("traffic")

CALL_TIMEOUT = 10.0
STOP_SECONDS = 2.0
PROGRESS_SECONDS = 0.5
POLICIES_SHOWN_MAX = 8
SEARCH_SHARE = 0.2
WORK = "work"
MIX = "lookup and search"
LOOKUPS = (
    "json.dumps json.loads os.path.join os.walk pathlib.Path pathlib.Path.glob collections.Counter heapq.heappush "
    "random.Random statistics.median subprocess.run threading.Thread asyncio.run argparse.ArgumentParser "
    "shutil.copytree tempfile.mkstemp logging.getLogger csv.DictReader urllib.parse.urlsplit email.message.EmailMessage"
).split()
SEARCHES = (
    "parse json",
    "temporary directory",
    "thread pool",
    "regular expression",
    "open socket",
    "copy tree",
    "format date",
    "read csv",
    "hash",
    "random choice",
)


class Traffic:
    """One run of traffic and what came of it."""

    def __init__(self, spec: TrafficSpec, client: Client) -> None:
        self.generating = trio.CancelScope()
        self._spec = spec
        self._client = client
        self._load = spec.load
        self._policy = spec.load.policy_value
        self._policies = [spec.load.policy]
        self._adjusted = trio.Event()
        self.recently = Recently()
        self.races_wanted = trio.Event()
        self._random = Random(f"{spec.seed}/traffic")
        self._latencies = Histogram()
        self._behind = 0.0
        self._sent = 0
        self._answered = 0
        self._executed = 0
        self._duplicates = 0
        self._errors: Counter[str] = Counter()
        self._began = trio.current_time()
        self._intended = self._began
        self._ended = self._began

    async def drive(self) -> None:
        """Send calls until the duration is over or ``generating`` is cancelled; return when all have ended."""
        async with trio.open_nursery() as nursery:
            with self.generating:
                await self._generate(nursery)
            if self.generating.cancelled_caught:
                nursery.cancel_scope.deadline = trio.current_time() + STOP_SECONDS

    def adjust(self, load: Load) -> None:
        """From now on drive this load; calls under way go on as they were sent."""
        if load.policy != self._policies[-1]:
            self._policies = [*self._policies, load.policy][-POLICIES_SHOWN_MAX:]
        self._load, self._policy = load, load.policy_value
        self._adjusted.set()
        self._adjusted = trio.Event()

    async def _generate(self, nursery: trio.Nursery) -> None:
        end = math.inf if self._spec.duration is None else self._began + self._spec.duration
        last = self._began
        while last < end:
            rate = self._load.rate
            intended = last + self._random.expovariate(rate) if rate > 0 else math.inf
            with trio.CancelScope(deadline=min(intended, end)):
                await self._adjusted.wait()
                last = self._intended = trio.current_time()  # a Poisson process has no memory: draw anew from here
                continue
            last = self._intended = min(intended, end)
            if intended < end:
                self._sent += 1
                self._behind = max(0.0, trio.current_time() - intended)
                nursery.start_soon(self._call, intended, *self._next_call())

    def _next_call(self) -> tuple[str, Any]:
        if self._load.work:
            return WORK, None
        if self._random.random() < SEARCH_SHARE:
            return "search", {"query": self._random.choice(SEARCHES)}
        return "lookup", {"name": self._random.choice(LOOKUPS)}

    async def _call(self, intended: float, method: str, args: Any) -> None:
        answered = False
        try:
            reply = await self._client.request(method, args, policy=self._policy, timeout=CALL_TIMEOUT)
        except TiedreqError as error:
            started = _started(error.attempts) if isinstance(error, CallError) else 0
            self._count_error(error)
        else:
            answered = True
            self._answered += 1
            started = max(1, _started(reply.attempts))
        self._ended = trio.current_time()
        self._latencies.add(self._ended - intended)
        self.recently.add(method, self._ended, self._ended - intended, started, answered)
        self._executed += started > 0
        self._duplicates += started > 1

    def _count_error(self, error: TiedreqError) -> None:
        kind = type(error).__name__
        if kind not in self._errors:
            log.warning("the first %s: %s", kind, error)
        self._errors[kind] += 1

    def report(self) -> dict[str, Any]:
        """How it stands: counts, rates per second, percentiles in milliseconds.

        ``behind_ms``: by how much the last call was sent too late, for want of processor time here.
        """
        until = max(self._ended, self._intended)
        seconds = until - self._began
        span = self._intended - self._began
        percentiles = {"p50_ms": 50.0, "p99_ms": 99.0, "p999_ms": 99.9}
        return {
            "policy": ", then ".join(self._policies),
            "method": WORK if self._load.work else MIX,
            "rate": self._load.rate,
            "seconds": round(seconds, 3),
            "calls": self._latencies.count,
            "errors": sum(self._errors.values()),
            "error_kinds": dict(self._errors),
            "unfinished": self._sent - self._latencies.count,
            "behind_ms": round(1000 * self._behind, 3),
            "offered_rate": round(self._sent / span, 3) if span > 0 else 0.0,
            "achieved_rate": round(self._answered / seconds, 3) if seconds > 0 else 0.0,
            **{name: _milliseconds(self._latencies.percentile(percent)) for name, percent in percentiles.items()},
            "executed": self._executed,
            "duplicates_seen": self._duplicates,
        }


def main() -> int:
    """Drive the traffic that the launcher asks for; the exit code."""
    die_with_launcher()
    commands, answers = take_control_pipes()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    first, rest = read_first_line(commands)
    if first is None:
        return 1
    return trio.run(_run, TrafficSpec.from_message(first), commands, answers, rest)


async def _run(spec: TrafficSpec, commands: int, answers: int, rest: bytes) -> int:
    sender = LineSender(trio.lowlevel.FdStream(answers))
    lines = MessageReader(trio.lowlevel.FdStream(commands), rest=rest)
    try:
        observe = observe_traffic(Path(spec.cluster_file))
        async with connect(spec.cluster_file, observe=observe) as client, trio.open_nursery() as nursery:
            traffic = Traffic(spec, client)
            nursery.start_soon(_obey, lines, traffic)
            nursery.start_soon(_tell_races, traffic, client, sender)
            nursery.start_soon(_report, traffic, client, sender)
            await traffic.drive()
            nursery.cancel_scope.cancel()
    except TiedreqError as error:
        log.error("%s", error)
        return 1
    await sender.send({"event": "traffic", **traffic.report()})
    return 0


async def _obey(lines: AsyncIterator[dict[str, Any]], traffic: Traffic) -> None:
    """Adjust, tell and stop when told to; when the launcher is gone, at once."""
    async for message in lines:
        match message:
            case {"do": "adjust", "load": dict(load)}:
                traffic.adjust(Load(**load))
            case {"do": "races"}:
                traffic.races_wanted.set()
            case {"do": "stop"}:
                traffic.generating.cancel()
            case _:
                raise ValueError(f"unknown control message {str(message)[:200]}")
    os._exit(1)


async def _tell_races(traffic: Traffic, client: Client, sender: LineSender) -> None:
    """Look races up whenever they are wanted, one time after the other."""
    while True:
        await traffic.races_wanted.wait()
        traffic.races_wanted = trio.Event()
        await sender.send({"event": "races", "races": await find_races(client)})


async def _report(traffic: Traffic, client: Client, sender: LineSender) -> None:
    while True:
        for _ in range(2):
            await trio.sleep(PROGRESS_SECONDS)
            await sender.send({"event": "progress", **traffic.report()})
        assert client.observer is not None
        snapshot = client.observer.snapshot(recent=0)
        recently = traffic.recently.view(trio.current_time())
        await sender.send({"event": "client", "snapshot": snapshot, "recently": recently})


def _started(attempts: tuple[Attempt, ...]) -> int:
    """How many copies are known to have started."""
    return sum(attempt.started is not None for attempt in attempts)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 4)


if __name__ == "__main__":
    sys.exit(main())
