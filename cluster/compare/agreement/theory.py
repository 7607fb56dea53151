"""Exact theory of queues next to the laboratory: what a tie is worth, where that can be calculated.

All times are in mean service times. Without latency a tie over *all* replicas is one queue before all their slots
(M/M/c for exponential service), however the slots are spread over replicas; a tie over d random ones of many goes where
the least work is left. With a latency, two copies may start; to first order in it that too can be calculated.

Sources: Erlang C; Hellemans and Van Houdt, "On the power-of-d-choices with least loaded server selection", 2018 (least
work left of d); Gardner et al., "Redundancy-d", 2017 (cancelled when complete). The double starts are our own
calculation: ``double_start_rate`` tells it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.compare.agreement.judge import ERRORS, Line, judged
from cluster.compare.cell import Cell
from cluster.compare.grid import Results, Task
from cluster.compare.tally import Tally
from tiedreq.laws import Bimodal, Constant, Exponential, ServiceLaw
from tiedreq.sim.world import stream
from tiedreq.units import LatencyLaw, LatencySpec

__all__ = ["CASES", "Case", "central_queue", "lines_of", "tasks_of"]

MEAN = 0.010
"""Seconds of a mean service time: all cells have the same."""
WARMUP_CALLS = 1_500
SEEDS = 8
CALLS = 5_000
QUEUE_CALLS = 200_000
"""Of a central queue alone, per seed."""
SAME = 1e-4
"""A wait of less than the shortest that is told from none counts as none."""
MANY = 60
"""Replicas that stand for infinitely many."""
BOUND = 0.02
BOUND_DOUBLE = 0.10


# ---- formulas -------------------------------------------------------------------------------------------------


def erlang_c(servers: int, load: float) -> float:
    """The probability to wait in M/M/c."""
    offered = servers * load
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    return last / (math.fsum(terms) + last)


def mmc_wait(servers: int, load: float) -> float:
    """The mean wait in M/M/c."""
    return erlang_c(servers, load) / (servers * (1 - load))


def least_work_time(load: float) -> float:
    """The mean time of a call, wait and service, where the least work is left of two of many; exponential service."""
    return -math.log(1 - load**2) / load**2


def double_start_rate(load: float, latency: float, *, told: bool, share_busy: float | None = None) -> float:
    """Ties of two of which both copies start, to first order in the ``latency`` of a notice; exponential service.

    Either one copy starts at once at an idle replica, and the other's turn comes before the notice is there: the turn
    comes at the rate at which a busy replica becomes idle, load (1 - load²). Or both wait, and their turns come within
    a latency: twice the integral of the squared density of the wait, load² - ⅔ load⁴.

    With a stagger just over the latency the copy that is held back finds an idle replica a latency after the first one
    was sent, so that the first one's turn may come before that too. ``told``: a client that hears of that start at once
    never sends the second copy; that leaves half of the first term. ``share_busy``: the copies go together instead, so
    both also start wherever both replicas are idle; it is the busy share, duplicates included.
    """
    one_idle = 2 * load * (1 - load) * (1 - load**2)
    both_busy = load**2 - 2 / 3 * load**4
    both_idle = 0.0 if share_busy is None else (1 - share_busy) ** 2
    return both_idle + latency * (one_idle / (2 if told else 1) + both_busy)


def busy_share(load: float, latency: float) -> float:
    """The busy share where copies go together and both run to their end when both start: load (1 + double starts)."""
    share = load
    for _ in range(100):
        share = load * (1 + double_start_rate(load, latency, told=False, share_busy=share))
    return share


def central_queue(cell: Cell, seed: int, calls: int) -> list[float]:
    """The waits, in seconds, of measured calls of a simulated cell if one queue served all its slots in order.

    Arrivals and service times are those of the simulation with that seed: not another sample, the same calls.
    """
    arrivals, services = stream(seed, "arrivals"), stream(seed, "service")
    assert cell.rate is not None
    free = [0.0] * cell.capacity
    now = 0.0
    waits: list[float] = []
    while len(waits) < calls:
        now += arrivals.expovariate(cell.rate)
        begun = max(now, free[0])
        heapq.heapreplace(free, begun + cell.service.sample(services))
        if now >= cell.warmup:
            waits.append(begun - now)
    return waits


# ---- cases ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of a run, and what theory says it is. It is to be within ``bound``, or within ``errors`` of chance."""

    name: str
    expected: float
    of: Callable[[Tally], float]
    bound: float = BOUND
    errors: float = ERRORS


@dataclass(frozen=True, slots=True)
class Case:
    """A cell, and what theory says of it."""

    name: str
    cell: Cell
    quantities: tuple[Quantity, ...]
    is_one_queue: bool = False

    def scaled(self, scale: float) -> Cell:
        """The cell with that many times the calls; much shorter runs have a shorter warm-up too."""
        assert self.cell.calls is not None
        warmup = self.cell.warmup * min(1.0, 6 * scale)
        return self.cell.but(calls=max(100, round(self.cell.calls * scale)), warmup=warmup)


def mean_wait(tally: Tally) -> float:
    """In mean service times."""
    return (tally.wait.mean or 0.0) / MEAN


def mean_time(tally: Tally) -> float:
    """In mean service times."""
    return (tally.latency.mean or 0.0) / MEAN


def wait_probability(tally: Tally) -> float:
    """The share of calls that waited."""
    return tally.wait.positive_share or 0.0


def duplicates(tally: Tally) -> float:
    """Calls with two executions or more."""
    return float(tally.duplicates)


def utilisation(tally: Tally) -> float:
    """The busy share of all slots."""
    return tally.window_busy_seconds / tally.slot_seconds


def double_starts(tally: Tally) -> float:
    """As a share of ties."""
    return tally.double_starts / tally.ties


def base(replicas: int, slots: int, load: float, law: ServiceLaw | None = None, calls: int = CALLS) -> Cell:
    """Ties without latency, stagger or backup, at random replicas."""
    rate = load * replicas * slots / MEAN
    return Cell(
        policy="tied-nobackup",
        replicas=replicas,
        slots=slots,
        service=law or Exponential(MEAN),
        picker="random",
        rate=rate,
        load=load,
        stagger=0.0,
        warmup=WARMUP_CALLS / rate,
        calls=calls,
    )


def no_waste(load: float) -> tuple[Quantity, ...]:
    """What holds of every tie without latency."""
    return Quantity("duplicates", 0.0, duplicates, 0.0, 0.0), Quantity("utilisation", load, utilisation)


def one_queue(replicas: int, slots: int, load: float) -> Case:
    """Tied over all replicas."""
    servers = replicas * slots
    wait = Quantity("mean wait", mmc_wait(servers, load), mean_wait)
    probability = Quantity("P(W>0)", erlang_c(servers, load), wait_probability)
    cell = base(replicas, slots, load).but(copies=replicas)
    spread = f"{replicas} × {slots}" if slots > 1 else f"{replicas}"
    name = f"M/M/{servers}, load {load:g}: tied over all of {spread}"
    return Case(name, cell, (wait, probability, *no_waste(load)), is_one_queue=True)


def least_work(copies: int, load: float, law: ServiceLaw) -> Case:
    """Tied over a few random ones of many replicas."""
    quantities = [Quantity("P(W>0)", load**copies, wait_probability)]
    if copies == 2 and isinstance(law, Exponential):
        quantities.append(Quantity("mean time", least_work_time(load), mean_time))
    name = f"least work left, {copies} of {MANY}, load {load:g}, {law}"
    return Case(name, base(MANY, 1, load, law).but(copies=copies), (*quantities, *no_waste(load)))


def held_back(load: float, latency: float, *, told: bool) -> Case:
    """Copies of a tie that are held back just over the latency of a notice."""
    far = LatencySpec(LatencyLaw(latency * MEAN))
    cell = base(MANY, 1, load, calls=3 * CALLS).but(mesh_latency=far, stagger=1.02 * latency * MEAN)
    if not told:
        cell = cell.but(client_latency=far)
    rate = double_start_rate(load, latency, told=told)
    name = f"double starts, load {load:g}, latency {latency:g}, stagger just over it, client latency "
    quantity = Quantity("double-start rate", rate, double_starts, BOUND_DOUBLE, 0.0)
    return Case(name + ("0" if told else f"{latency:g}"), cell, (quantity,))


def at_once(load: float, latency: float, *, to_the_end: bool) -> Case:
    """Copies of a tie that are sent together. ``to_the_end``: when both start, nothing can stop them."""
    cell = base(MANY, 1, load, calls=CALLS).but(mesh_latency=LatencySpec(LatencyLaw(latency * MEAN)))
    share = busy_share(load, latency) if to_the_end else load
    rate = double_start_rate(load, latency, told=False, share_busy=share)
    quantities = [Quantity("double-start rate", rate, double_starts, BOUND_DOUBLE, 0.0)]
    if to_the_end:
        cell = cell.but(policy="tied-classic", handlers="thread")
        quantities.append(Quantity("busy share", share, utilisation, BOUND_DOUBLE, 0.0))
    name = f"double starts, load {load:g}, latency {latency:g}, no stagger, "
    return Case(name + ("run to the end" if to_the_end else "yielding"), cell, tuple(quantities))


def untied(policy: str, load: float, expected: float, name: str) -> Case:
    """Policies without a tie, at random replicas."""
    cell = base(MANY, 1, load).but(policy=policy, fixed_after=0.0)
    return Case(f"{name}, load {load:g}", cell, (Quantity("mean time", expected, mean_time),))


def cancelled_on_complete(load: float) -> float:
    """The mean time of two copies of independent exponential times of which the first to end cancels the other."""
    return -1 / load - math.log(1 - load) / load**2


LOADS = (0.5, 0.7, 0.8, 0.9, 0.95)
STALLS = Bimodal(MEAN / 2, 10.5 * MEAN, 0.05)
CASES: tuple[Case, ...] = (
    *(one_queue(replicas, slots, load) for replicas, slots in ((2, 1), (4, 1), (2, 5)) for load in LOADS),
    one_queue(5, 2, 0.7),
    *(least_work(2, load, Exponential(MEAN)) for load in (0.5, 0.7, 0.9)),
    *(least_work(2, 0.7, law) for law in (Constant(MEAN), STALLS)),
    least_work(3, 0.7, Exponential(MEAN)),
    *(held_back(load, 0.02, told=told) for told in (False, True) for load in (0.5, 0.7)),
    *(at_once(0.5, 0.01, to_the_end=to_the_end) for to_the_end in (False, True)),
    *(untied("plain", load, 1 / (1 - load), "one copy") for load in (0.25, 0.40)),
    *(untied("doubled", load, 1 / (2 - 4 * load), "two copies, none cancelled") for load in (0.25, 0.40)),
    untied("hedged-fixed", 0.5, cancelled_on_complete(0.5), "two copies, cancelled on complete"),
)


# ---- running them ---------------------------------------------------------------------------------------------


def tasks_of(cases: Sequence[Case], scale: float) -> list[Task]:
    """All runs that these cases need."""
    return [Task(case.scaled(scale), seed) for case in cases for seed in range(1, SEEDS + 1)]


def lines_of(cases: Sequence[Case], results: Results, scale: float) -> list[Line]:
    """What was measured, next to theory."""
    lines = []
    for case in cases:
        tallies = [results[Task(case.scaled(scale), seed)] for seed in range(1, SEEDS + 1)]
        for quantity in case.quantities:
            values = [quantity.of(tally) for tally in tallies]
            lines.append(_line(case, quantity, values, sum(tally.calls for tally in tallies)))
        if case.is_one_queue:
            lines += _next_to_a_queue(case, tallies, scale)
    return lines


def _line(case: Case, quantity: Quantity, values: Sequence[float], calls: int) -> Line:
    return judged(
        case.name,
        quantity.name,
        quantity.expected,
        values,
        bound=quantity.bound,
        errors=quantity.errors,
        calls=calls,
    )


def _next_to_a_queue(case: Case, tallies: Sequence[Tally], scale: float) -> list[Line]:
    """Waits compared with those of a central queue of the very same calls, and of that queue with theory.

    Chance makes much of the mean wait of a few calls. These two together say the same with next to none of it.
    """
    cell, ratios, means = case.scaled(scale), [], []
    for seed, tally in enumerate(tallies, 1):
        waits = math.fsum(central_queue(cell, seed, tally.calls))
        ratios.append(tally.wait.total / waits if waits else 1.0 + tally.wait.total)
        more = max(1_000, round(QUEUE_CALLS * scale))
        means.append(math.fsum(central_queue(cell, seed, more)) / more / MEAN)
    same = Quantity("wait ÷ central queue's, same calls", 1.0, mean_wait, SAME, 0.0)
    long = Quantity("central queue alone, mean wait", mmc_wait(cell.capacity, cell.load or 0.0), mean_wait)
    return [
        _line(case, same, ratios, sum(tally.calls for tally in tallies)),
        _line(case, long, means, more * len(tallies)),
    ]
