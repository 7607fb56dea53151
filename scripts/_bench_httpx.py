"""Hedging transports for httpx on the same calls: see `scripts/bench_httpx --help`.

The law is `stragglers`: lognormal of mean 5 ms and deviation 2 ms, 5 % of executions ten times as long; no queue, 20
workers in a closed loop, 20,000 calls. The back end is an `httpx.MockTransport` that waits as long as the law says: the
n-th copy of a call takes the same time whichever transport sends it. Everything runs on an asyncio loop in virtual
time, which `time.monotonic` tells too, so that what is measured is what each decides: not the machine, and not one
microsecond of anybody's overhead. Both peers run as their authors set them up, but for one thing: they are told the
true rate of requests, on which their budget rests (`hedge-python` would believe in 100 a second, `httpx-hedged` would
measure it, too low at first: both would send next to no hedges in so short a run). tiedreq runs with the budget that
both have, 10 %, and with its own default, 5 %.

Differences to each peer are told with their interval: the mean of the seeds' own differences, each between runs on the
same calls, and where the true one lies with 95 % confidence.

Then each is shown a few awkward services, one request each, and what came of it is told.

Called by scripts/bench_httpx, inside the project's environment, in the checkout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import hedge
import httpx
import httpx_hedged  # type: ignore[import-untyped]
from _bench import as_program, whole
from _bench_clock import virtual_time
from _bench_httpx_probes import URL, probe, show_probes
from hedge.transport import HedgedHttpxTransport
from rich.console import Console
from rich.table import Table

from cluster.compare.statistics import mean_of
from tiedreq.core.policy import Backup, Hedged
from tiedreq.httpx import HedgedTransport
from tiedreq.laws import ServiceLaw, parse_law

STRAGGLERS = "lognormal(mean=5ms,sd=2ms)*10@0.05"
CALLS_DEFAULT, WORKERS_DEFAULT, SEEDS_DEFAULT = 20_000, 20, 6
PEER, PEERS = "hedge-python", ("hedge-python", "httpx-hedged")
OURS = "tiedreq, 10 %"
"""With the budget that the peers have."""
SAME, SAME_EXTRA = 0.01, 0.001
"""A difference is called none when its whole interval is within a hundredth of the peer's time (the law that delays are
learned from has buckets 2 % wide), or, of extra copies, within a thousandth of the calls."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
EXTRA, CPU = "extra", "cpu"
UNITS = {EXTRA: "of calls", CPU: "us"}

Make = Callable[[httpx.MockTransport, float], httpx.AsyncBaseTransport]


# ---- who is measured ------------------------------------------------------------------------------------------


def plain(back_end: httpx.MockTransport, rate: float) -> httpx.AsyncBaseTransport:
    """No hedging."""
    return back_end


def hedge_python(back_end: httpx.MockTransport, rate: float) -> httpx.AsyncBaseTransport:
    """The peer: the 90th percentile of a sketch, 10 % of the requests that it is told of."""
    return HedgedHttpxTransport(inner=back_end, config=hedge.HedgeConfig(estimated_rps=rate))


def httpx_hedged_(back_end: httpx.MockTransport, rate: float) -> httpx.AsyncBaseTransport:
    """The other peer: the same rule."""
    config = httpx_hedged.HedgeConfig(estimated_rps=rate)
    transport: httpx.AsyncBaseTransport = httpx_hedged.HedgedTransport(inner=back_end, default_config=config)
    return transport


def tiedreq(budget: float, seed: int, back_end: httpx.MockTransport, rate: float) -> httpx.AsyncBaseTransport:
    """What is to be measured."""
    return HedgedTransport(back_end, policy=Hedged(Backup(since="send", budget=budget)), rng=Random(seed))


def subjects(seed: int) -> dict[str, Make]:
    """Everybody, by name."""
    return {
        "plain": plain,
        "hedge-python": hedge_python,
        "httpx-hedged": httpx_hedged_,
        OURS: partial(tiedreq, 0.10, seed),
        "tiedreq, 5 %": partial(tiedreq, 0.05, seed),
    }


# ---- the measurement ------------------------------------------------------------------------------------------


class BackEnd:
    """Answers after a time that depends on the call and on which copy of it this is."""

    def __init__(self, law: ServiceLaw, seed: int) -> None:
        self._law = law
        self._seed = seed
        self._copies: dict[str, int] = {}
        self.executions = 0

    async def answer(self, request: httpx.Request) -> httpx.Response:
        """Wait, then say something."""
        call = request.headers["x-call"]
        copy = self._copies[call] = self._copies.get(call, 0) + 1
        self.executions += 1
        await asyncio.sleep(self._law.sample(Random(f"{self._seed}:{call}:{copy}")))
        return httpx.Response(200, content=b"ok")


async def measure(make: Make, law: ServiceLaw, seed: int, calls: int, workers: int) -> dict[str, float]:
    """Latencies in milliseconds by quantile, extra copies as a share of calls, processor time of a call."""
    began_at = time.process_time()
    back_end = BackEnd(law, seed)
    transport = make(httpx.MockTransport(back_end.answer), workers / law.mean())
    latencies: list[float] = []
    numbers = iter(range(calls))
    loop = asyncio.get_running_loop()

    async def work() -> None:
        for number in numbers:
            began = loop.time()
            response = await transport.handle_async_request(httpx.Request("GET", URL, headers={"x-call": str(number)}))
            await response.aread()
            latencies.append((loop.time() - began) * 1000)

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())
    await transport.aclose()
    latencies.sort()
    found = {name: latencies[min(int(q * calls), calls - 1)] for name, q in QUANTILES.items()}
    return found | {EXTRA: back_end.executions / calls - 1, CPU: (time.process_time() - began_at) / calls * 1e6}


def run(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """What each came to, seed by seed; they take turns."""
    law = parse_law(options.service)
    found: dict[str, list[dict[str, float]]] = {}
    for seed in range(options.seed, options.seed + options.seeds):
        for name, make in subjects(seed).items():
            with virtual_time() as runner:
                result = runner.run(measure(make, law, seed, options.calls, options.workers))
            found.setdefault(name, []).append(result)
    return found


class Difference(NamedTuple):
    """How much longer a time is than a peer's, as a share of it; how many more the extra copies are, of all calls."""

    metric: str
    peer: str
    mean: float
    interval: tuple[float, float] | None

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.interval is None:
            return "one seed tells nothing"
        low, high = self.interval
        limit = SAME_EXTRA if self.metric == EXTRA else SAME
        if low >= -limit and high <= limit:
            return "the same"
        if high <= limit:
            return "less" if high < 0 else "no more"
        return "more" if low > 0 else "not known"


def differences(found: dict[str, list[dict[str, float]]]) -> list[Difference]:
    """Ours to each peer's, by the seeds' own differences."""
    told = []
    for metric in ("p99", "p99.9", EXTRA):
        for peer in PEERS:
            pairs = [(ours[metric], theirs[metric]) for ours, theirs in zip(found[OURS], found[peer], strict=True)]
            mean = mean_of([ours - theirs if metric == EXTRA else ours / theirs - 1 for ours, theirs in pairs])
            assert mean is not None
            told.append(Difference(metric, peer, *mean))
    return told


def show_differences(told: list[Difference]) -> None:
    """The second table."""
    table = Table(title=f"{OURS}, to its peers: mean over seeds and 95 % interval")
    for column in ("", "to", "difference", "from", "to", "so it is"):
        table.add_column(column, justify="right" if column == "difference" else "left")
    for each in told:
        low, high = each.interval or (math.nan, math.nan)
        table.add_row(each.metric, each.peer, f"{each.mean:+.2%}", f"{low:+.2%}", f"{high:+.2%}", each.verdict)
    Console().print(table)


def rows_of(found: dict[str, list[dict[str, float]]]) -> list[dict[str, str | float]]:
    """The rows that the contract of all bench scripts asks for: the median over seeds, the spread between them."""
    rows: list[dict[str, str | float]] = []
    for metric in (*QUANTILES, EXTRA, CPU):
        peer = statistics.median(result[metric] for result in found[PEER])
        for name, results in found.items():
            values = [result[metric] for result in results]
            value = statistics.median(values)
            rows.append(
                {
                    "name": f"{name}: {metric}",
                    "value": round(value, 4),
                    "unit": UNITS.get(metric, "ms"),
                    "spread": round(max(values) - min(values), 4),
                    "ratio_to": f"{PEER}: {metric}",
                    "ratio": round(value / peer, 4) if peer else 0.0,
                }
            )
    return rows


def show(found: dict[str, list[dict[str, float]]], options: argparse.Namespace) -> None:
    """The table."""
    table = Table(title=f"{options.service}: {options.calls:,} calls, median of {options.seeds} seeds; ms")
    for column in ("", *QUANTILES, "extra copies", "CPU/call, us"):
        table.add_column(column, justify="left" if not column else "right")
    for name, results in found.items():
        middle = {metric: statistics.median(result[metric] for result in results) for metric in results[0]}
        table.add_row(
            name, *(f"{middle[metric]:.1f}" for metric in QUANTILES), f"{middle[EXTRA]:.1%}", f"{middle[CPU]:.0f}"
        )
    Console().print(table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_httpx",
        description="Compare hedging transports for httpx on the same calls, in virtual time: latencies, and how many "
        "copies more than calls each sent.",
    )
    parser.add_argument("--calls", type=whole, default=CALLS_DEFAULT, metavar="N", help="per seed (%(default)s)")
    parser.add_argument("--workers", type=whole, default=WORKERS_DEFAULT, metavar="N", help="at once (%(default)s)")
    parser.add_argument("--service", default=STRAGGLERS, metavar="LAW", help="of one execution (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the first of the seeds (%(default)s)")
    parser.add_argument("--seeds", type=whole, default=SEEDS_DEFAULT, metavar="N", help="how many (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    found = run(options)
    show(found, options)
    told = differences(found)
    show_differences(told)
    probes = probe()
    show_probes(probes)
    if options.json is not None:
        results = {"rows": rows_of(found), "differences": [each._asdict() for each in told], "awkward": probes}
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    as_program(main)
