"""What was published of the scenarios, and the cells that repeat it.

Runs begin with empty queues, as published simulations do. Where the length of a run is not published it is estimated
and said so. ``rule`` says what of a publication's policy ours can't express.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.compare.cell import Cell
from cluster.compare.scenarios import SCENARIOS
from tiedreq.units import LatencyLaw, LatencySpec

__all__ = ["PUBLISHED", "Published"]


@dataclass(frozen=True, slots=True)
class Published:
    """A row of a publication: ``figures`` by name, and the cell of a run of the published length.

    It is repeated ``runs`` times. ``without`` is the run that ratios are to. ``why`` says what makes figures differ,
    ``rule`` what of the publication's rule is missing.
    """

    name: str
    cell: Cell
    figures: Mapping[str, float]
    runs: int
    rule: str = ""
    without: Cell | None = None
    why: str = ""


def cell(scenario: str, policy: str, **changes: Any) -> Cell:
    """A cell of a scenario, from empty queues."""
    fixed = {**SCENARIOS[scenario].cell, "warmup": 0.0, **changes}
    if fixed.get("calls") is not None:
        fixed["duration"] = None
    return Cell(scenario=scenario, policy=policy, **fixed)


def figures(names: str, *values: float) -> dict[str, float]:
    """Figures by their names, in order."""
    return dict(zip(names.split(","), values, strict=True))


# ---- a published simulation -----------------------------------------------------------------------------------

CALLS_BUDGET = "the publication's budget is a share of calls; ours is a share of work, and has a governor"
TAIL = "p50,p99,p99.9,extra calls,executions"


def stalls(
    rate: float, words: str, policy: str, *values: float, runs: int = 1, rule: str = "", **more: Any
) -> Published:
    """2 % of executions take 300 ms: a run of 30 s."""
    run = cell("rare-stalls", policy, rate=rate, fixed_after=0.030, **more)
    return Published(f"rare-stalls {rate:g}/s, {words}", run, figures(TAIL, *values), runs, rule)


RARE_STALLS = (
    stalls(2500.0, "none", "plain", 10, 300, 300, 0, 1.00),
    stalls(2500.0, "after 30", "hedged-uncancelled", 10, 40, 40, 1.9, 1.02),
    stalls(
        2500.0, "after 30, budget 5 %", "hedged-uncancelled", 10, 40, 40, 1.9, 1.02,
        rule=CALLS_BUDGET, backup_budget=0.05,
    ),
    stalls(2500.0, "two at once", "doubled", 33, 131, 186, 100, 2.00, runs=3),
    stalls(4500.0, "none", "plain", 10, 300, 306, 0, 1.00),
    stalls(4500.0, "after 30", "hedged-uncancelled", 10894, 22430, 22928, 97.9, 1.98),
    stalls(
        4500.0, "after 30, budget 5 %", "hedged-uncancelled", 12, 162, 386, 4.9, 1.05,
        rule=CALLS_BUDGET, backup_budget=0.05, runs=2,
    ),
    stalls(4500.0, "two at once", "doubled", 11391, 22958, 23312, 100, 2.00),
)  # fmt: skip

SHORT_RUNS = 40
SHORT_CALLS = 500


def slow(words: str, policy: str, names: str, *values: float, after: float = 0.1, **more: Any) -> Published:
    """One replica of five is three times slower: runs of 500 to 2,000 calls; ours have 500."""
    run = cell("slow-replica", policy, rate=100.0, calls=SHORT_CALLS, fixed_after=after, **more)
    return Published(f"slow-replica, {words}", run, figures(names, *values), SHORT_RUNS, why=FURTHER)


FURTHER = (
    "the published median is 7 above that of the law, so something that is not listed took 7 ms of every call, and its"
    " slow replica got 17 % of calls where random choice gives 20 %"
)
FOUR = "p50,p90,p99,p99.9"
SWEEP = "p50,p99,p99.9,extra calls"
SLOW_REPLICA = (
    slow("all healthy", "plain", FOUR, 47, 63, 74, 92, slow=()),
    slow("random", "plain", FOUR, 49, 128, 178, 211),
    slow("least outstanding", "plain", FOUR, 48, 96, 161, 177, picker="least-outstanding"),
    slow("after 60", "hedged-uncancelled", SWEEP, 50, 135, 145, 27.8, after=0.060),
    slow("after 100", "hedged-uncancelled", SWEEP, 49, 160, 164, 15.0, after=0.100),
    slow("after 150", "hedged-uncancelled", SWEEP, 48, 180, 204, 2.6, after=0.150),
    slow("after 250", "hedged-uncancelled", SWEEP, 49, 185, 216, 0, after=0.250),
)

TAIL_CALLS = {100.0: 1_000, 250.0: 1_000, 400.0: 3_000}
"""By rate; not published. Other runs of that publication have 500 to 2,000 calls; but at 400/s with backups its queue
grew until calls took 7.7 s, and that takes 3,000."""


def tail(rate: float, policy: str, names: str, *values: float, runs: int = 10) -> Published:
    """3 % of executions take ten times as long, random choice."""
    run = cell("long-tail", policy, rate=rate, calls=TAIL_CALLS[rate], picker="random")
    words = "none" if policy == "plain" else "after 100"
    return Published(f"long-tail {rate:g}/s, {words}", run, figures(names, *values), runs)


LONG_TAIL = (
    tail(100.0, "plain", "p50,p99,p99.9", 47, 434, 593),
    tail(100.0, "hedged-uncancelled", SWEEP, 47, 158, 181, 3.4),
    tail(250.0, "plain", "p50,p99,p99.9", 54, 505, 593),
    tail(250.0, "hedged-uncancelled", SWEEP, 54, 162, 220, 9.5),
    tail(400.0, "plain", "p50,p99,p99.9", 482, 1876, 2907),
    tail(400.0, "hedged-uncancelled", SWEEP, 3566, 5754, 7747, 97.7),
)

# ---- published libraries and papers ---------------------------------------------------------------------------

FIVE = "p50,p90,p95,p99,p99.9,extra calls"
ADAPTIVE = {"backup_after": "p90", "backup_budget": 0.10, "backups": 1}
QUANTILE = (
    "the publication takes the quantile of what clients saw in two windows of 30 s, and its budget is a share of"
    " calls; ours takes it of service times, with unfinished ones estimated, and its budget is a share of work"
)
STRAGGLERS = (
    Published("stragglers, none", cell("stragglers", "plain"), figures(FIVE, 5.0, 8.9, 17.1, 64.3, 104.5, 0), 2),
    Published(
        "stragglers, after 10",
        cell("stragglers", "hedged-fixed", fixed_after=0.010),
        figures(FIVE, 5.0, 8.9, 13.1, 17.4, 46.5, 7.4),
        2,
    ),
    Published(
        "stragglers, after 50",
        cell("stragglers", "hedged-fixed", fixed_after=0.050),
        figures(FIVE, 5.0, 8.9, 18.9, 54.7, 60.2, 2.1),
        2,
    ),
    Published(
        "stragglers, p90, budget 10 %",
        cell("stragglers", "hedged", **ADAPTIVE),
        figures(FIVE, 5.0, 8.9, 12.3, 17.0, 59.4, 8.9),
        2,
        QUANTILE,
    ),
)

FIRST_TOKEN = "p50,p90,p95,p99,extra calls"
COLD_CACHE = (
    Published(
        "cold-cache, none", cell("cold-cache", "plain"), figures("p50,p90,p95,p99", 16.4, 199.6, 217.5, 245.6), 1
    ),
    Published(
        "cold-cache, after 1",
        cell("cold-cache", "hedged-fixed", fixed_after=0.001),
        figures(FIRST_TOKEN, 14.7, 19.4, 23.6, 198.7, 100),
        1,
    ),
    Published(
        "cold-cache, p80 of first tokens",
        cell("cold-cache", "hedged", backup_after="p80", backup_budget=0.20, backups=1),
        figures(FIRST_TOKEN, 16.4, 61.6, 182.5, 224.2, 17),
        1,
        QUANTILE + "; its budget is not published, ours is 20 %",
    ),
)


def search(policy: str, words: str, names: str, *values: float, **more: Any) -> Published:
    """A fitted law: the incident was told, not simulated."""
    mean = SCENARIOS["search-incident"].cell["service"].mean()
    run = cell("search-incident", policy, rate=0.60 * 40 / mean, load=0.60, duration=30.0, **more)
    rule = "nodes that were slow were taken out as well; the fitted law has none"
    return Published(f"search-incident, {words}", run, figures(names, *values), 2, rule)


SEARCH = (
    search("plain", "none", "p50,p95,p99", 25, 85, 500),
    search("hedged-fixed", "after 90, budget 5 %", "p50,p99,extra calls", 25, 140, 4.3, backup_budget=0.05),
)


def bigtable(load: float, words: str, *values: float) -> Published:
    """What tying takes off; the law is fitted to the untied percentiles."""
    rate = load * 30 / SCENARIOS["bigtable"].cell["service"].mean()
    mesh = LatencySpec(LatencyLaw(0.0005))
    shape: dict[str, Any] = {"rate": rate, "load": load, "calls": 10_000, "warmup": 2.0, "mesh_latency": mesh}
    names = "p50 ratio,p90 ratio,p99 ratio,p99.9 ratio,busy time ratio"
    rule = "the law is fitted to the untied percentiles: compare the ratios"
    without = cell("bigtable", "plain", **shape)
    return Published(
        f"bigtable {words}, tied", cell("bigtable", "tied-classic", **shape), figures(names, *values), 3, rule, without
    )


def untied_bigtable(load: float, words: str, *values: float) -> Published:
    """How well the law is fitted."""
    run = bigtable(load, words, *[1.0] * 5).without
    assert run is not None
    return Published(f"bigtable {words}, untied", run, figures(FOUR, *values), 3, "fitted to these")


BIGTABLE = (
    untied_bigtable(0.40, "idle", 19, 38, 67, 98),
    bigtable(0.40, "idle", 16 / 19, 29 / 38, 42 / 67, 61 / 98, 1.0),
    untied_bigtable(0.60, "busy", 24, 56, 108, 159),
    bigtable(0.60, "busy", 19 / 24, 38 / 56, 67 / 108, 108 / 159, 1.0),
)

PUBLISHED: tuple[Published, ...] = (
    *SLOW_REPLICA, *LONG_TAIL, *STRAGGLERS, *COLD_CACHE, *SEARCH, *BIGTABLE, *RARE_STALLS,
)  # fmt: skip
