"""What an operator may do to a running cluster: one method for each verb, checked, then carried out.

Both ways in, the socket of ``cluster.ctl`` and the dashboard's control route, end here with a request as plain values,
``{"do": VERB, …}``; see docs/decisions/0008-control.md. Who may ask is decided before (``cluster.control_socket``,
``cluster.dashboard.guard``).

Invariants: a request that is refused has changed nothing; only processes that the launcher started are signalled, by
their keepers, and never by a number that came in a request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from cluster.refusal import ControlRefused
from tiedreq.core.errors import BadOption
from tiedreq.laws import FACTOR_MAX, parse_law
from tiedreq.slowness import parse_pause
from tiedreq.units import check_number, format_duration, format_number, parse_duration, parse_latency

if TYPE_CHECKING:
    from cluster.demo_state import DemoState
    from cluster.drive import TrafficDriver
    from cluster.keeper import Keeper
    from cluster.supervisor import Cluster

LINK_SECONDS = 30.0
"""How long a replica that was started again may take to be linked, before the next one is restarted."""

Request = Mapping[str, Any]


class Operator:
    """Carries out requests on ``cluster``. ``demo`` and ``driver`` are None when another service runs."""

    def __init__(self, cluster: Cluster, demo: DemoState | None, driver: TrafficDriver | None) -> None:
        self._cluster = cluster
        self._demo = demo
        self._driver = driver
        self._busy: set[str] = set()
        self._scaling = False
        self._verbs: dict[str, Callable[[Request], Awaitable[str]]] = {
            "pause": self._pause,
            "resume": self._resume,
            "kill": self._kill,
            "restart": self._restart,
            "drain": self._drain,
            "scale": self._scale,
            "slow": self._slow,
            "latency": self._latency,
            "partition": self._partition,
            "heal": self._heal,
            "work": self._work,
            "traffic": self._traffic,
        }

    async def carry_out(self, request: Request) -> str:
        """Do it, and say in one line what was done.

        Raises ``BadOption`` for a request that can't be understood, ``ControlRefused`` for one that can't be done now.
        """
        verb = self._verbs.get(str(request.get("do")))
        if verb is None:
            raise BadOption(f"do: {str(request.get('do'))[:60]!r} is none of status, {', '.join(self._verbs)}")
        return await verb(request)

    def status(self) -> dict[str, Any]:
        """The replicas with their states and last reports, faults, work and traffic, as plain values."""
        cluster, driver = self._cluster, self._driver
        return {
            "replicas": {
                keeper.name: {
                    "state": keeper.shown_state,
                    "pid": keeper.pid,
                    "url": keeper.url,
                    "status": keeper.status,
                }
                for keeper in cluster.keepers
            },
            "faults": self.faults(),
            "work": self.work(),
            "traffic": None
            if driver is None
            else {"running": driver.running, **asdict(driver.load), "progress": driver.progress},
        }

    def work(self) -> dict[str, Any] | None:
        """See ``DemoState.view``; None when another service runs."""
        return None if self._demo is None else self._demo.view()

    def faults(self) -> dict[str, Any]:
        """See ``Faults.view``; with the slowness that the demo's work was started with."""
        view = self._cluster.faults.view()
        if self._demo is not None:
            view["slow"] = {**self._demo.slow_factors(), **view["slow"]}
        view["slow"] = {name: factor for name, factor in view["slow"].items() if factor != 1}
        return view

    # ---- processes --------------------------------------------------------------------------------------------

    async def _pause(self, request: Request) -> str:
        keeper = self._replica(request)
        keeper.freeze()
        return f"{keeper.name} is paused (process {keeper.pid})"

    async def _resume(self, request: Request) -> str:
        keepers = self._replicas(request)
        frozen = [keeper for keeper in keepers if keeper.frozen]
        if not frozen:
            raise ControlRefused(f"{_names(keepers)}: not paused")
        for keeper in frozen:
            keeper.thaw()
        return f"{_names(frozen)}: resumed"

    async def _kill(self, request: Request) -> str:
        keeper = self._replica(request)
        keeper.crash()
        return f"{keeper.name} was killed (process {keeper.pid})"

    async def _restart(self, request: Request) -> str:
        """One after the other: the next one only when the one before is linked to the others again."""
        keepers = self._replicas(request)
        for keeper in keepers:
            keeper.must_be("up", "drained", "failed")
        with self._alone(keepers):
            for keeper in keepers:
                await self._restart_one(keeper)
        return f"{_names(keepers)}: restarted"

    async def _restart_one(self, keeper: Keeper) -> None:
        timeout = self._cluster.drain_timeout
        in_time = True
        if keeper.state in ("drained", "failed"):
            keeper.start_again()
        else:
            in_time = await keeper.leave(timeout, again=True)
        if not await self._cluster.linked_within(keeper, LINK_SECONDS):
            raise ControlRefused(
                f"{keeper.name} is not linked to the others again after {format_duration(LINK_SECONDS)}"
            )
        if not in_time:
            raise ControlRefused(f"{keeper.name} did not drain within {format_duration(timeout)} and was killed")

    async def _drain(self, request: Request) -> str:
        keeper = self._replica(request)
        with self._alone([keeper]):
            if not await keeper.leave(self._cluster.drain_timeout, again=False):
                timeout = format_duration(self._cluster.drain_timeout)
                raise ControlRefused(f"{keeper.name} did not drain within {timeout} and was killed; it stays down")
        return f"{keeper.name} has drained and stays down until it is restarted"

    async def _scale(self, request: Request) -> str:
        """``replicas``: how many there are to be."""
        count = request.get("replicas")
        if isinstance(count, bool) or not isinstance(count, int):
            raise BadOption(f"replicas: {str(count)[:60]!r} is not a whole number")
        if self._scaling:
            raise ControlRefused("replicas are being added or taken away")
        before = len(self._cluster.keepers)
        self._scaling = True
        try:
            with self._alone(list(self._cluster.keepers[max(count, 0) :])):
                names = await self._cluster.scale(count)
        finally:
            self._scaling = False
        if not names:
            return f"there are {count} replicas already"
        return f"{', '.join(names)}: {'joined' if count > before else 'drained and left'}; there are {count} replicas"

    def _alone(self, keepers: list[Keeper]) -> _Alone:
        return _Alone(self._busy, {keeper.name for keeper in keepers})

    # ---- faults -----------------------------------------------------------------------------------------------

    async def _slow(self, request: Request) -> str:
        keeper = self._replica(request)
        factor = _number(request, "factor")
        check_number(factor, "factor", low=0, high=FACTOR_MAX)
        if factor < 1 and self._demo is None:
            raise BadOption("factor: 1 or more; only the demo's work can be made faster")
        keeper.post({"do": "slow", "factor": factor})
        self._cluster.faults.slow[keeper.name] = factor
        return (
            f"{keeper.name} takes {format_number(factor)} times as long"
            if factor != 1
            else f"{keeper.name} is not slow"
        )

    async def _latency(self, request: Request) -> str:
        faults = self._cluster.faults
        text = request.get("spec")
        spec = parse_latency(text) if isinstance(text, str) else None
        if spec is None:
            raise BadOption("spec: is missing; write for example 1ms, 1ms~0.3ms or 1ms;r0-r1=20ms")
        self._cluster.check_names(spec)
        for keeper in self._cluster.keepers:
            keeper.post({"do": "mesh_latency", "spec": str(spec)})
        faults.latency = spec
        return f"the latency between replicas is {spec}"

    async def _partition(self, request: Request) -> str:
        """``from`` and ``to``; without ``to`` from all others; ``one_way``: only what goes from ``from`` to ``to``."""
        source = self._keeper(request.get("from"), "from")
        others = [self._keeper(request["to"], "to")] if request.get("to") else self._cluster.keepers
        targets = [keeper for keeper in others if keeper is not source]
        if not targets:
            raise BadOption(f"to: {source.name} can't be cut off from itself")
        one_way = request.get("one_way", False) is True
        faults = self._cluster.faults
        for target in targets:
            faults.cut(source.name, target.name)
            if not one_way:
                faults.cut(target.name, source.name)
        self._tell_blocked()
        how = "hears nothing from" if one_way else "is cut off from"
        first, second = (_names(targets), source.name) if one_way else (source.name, _names(targets))
        return f"{first} {how} {second}"

    async def _heal(self, request: Request) -> str:
        """All partitions, or those between two replicas; ``all``: latency, slowness and pauses as well."""
        faults = self._cluster.faults
        pair = [self._keeper(request[name], name).name for name in ("from", "to") if request.get(name)]
        if len(pair) == 1:
            raise BadOption("to: heal takes two replicas, or none for all")
        faults.mend([(pair[0], pair[1]), (pair[1], pair[0])] if pair else None)
        self._tell_blocked()
        if request.get("all") is not True:
            return f"{' and '.join(pair)} reach each other again" if pair else "all replicas reach each other again"
        before = faults.latency_before
        if before is not None:
            await self._latency({"spec": str(before)})
        for keeper in self._cluster.keepers:
            keeper.thaw()
            if self.faults()["slow"].get(keeper.name, 1) != 1:
                await self._slow({"replica": keeper.name, "factor": 1})
        return "all replicas reach each other again; none is paused or slow; latency is as at the start"

    def _tell_blocked(self) -> None:
        for keeper in self._cluster.keepers:
            keeper.post({"do": "blocked", "peers": list(self._cluster.faults.cut_from(keeper.name))})

    # ---- the demo's work and the traffic ----------------------------------------------------------------------

    async def _work(self, request: Request) -> str:
        """``service`` is a law, ``pause`` as in ``--pause`` or empty for none; what is not given stays."""
        if self._demo is None:
            raise ControlRefused("work: only the demo's work can be changed, and another service runs")
        demo = self._demo
        service, pause = demo.service, demo.pause
        if "service" in request:
            service = parse_law(_text(request, "service"), field="service")
        if "pause" in request:
            text = request["pause"]
            if text is not None and not isinstance(text, str):
                raise BadOption(f"pause: {str(text)[:60]!r} is not a text such as 200ms@5s")
            pause = (parse_pause(text),) if text and text not in ("0", "none") else ()
        demo.change(service, pause)
        for keeper in self._cluster.keepers:
            keeper.post({"do": "work", "service": str(service), "pause": demo.pause_of(keeper.name)})
        return f"work takes {service}, {f'with pauses {pause[0]}' if pause else 'without pauses'}"

    async def _traffic(self, request: Request) -> str:
        """``rate`` in calls per second, 0 for none, ``policy``, ``backup_after``, ``work``; what is not given stays."""
        if self._driver is None:
            raise ControlRefused("traffic: is driven against the demo only, and another service runs")
        changes: dict[str, Any] = {}
        if "rate" in request:
            changes["rate"] = _number(request, "rate")
        if "policy" in request:
            changes["policy"] = _text(request, "policy")
        if "work" in request:
            changes["work"] = request["work"]
        if "backup_after" in request:
            after = request["backup_after"]
            changes["backup_after"] = None if after in (None, "", "auto") else parse_duration(str(after))
        load = replace(self._driver.load, **changes)
        self._driver.adjust(load)
        if not load.rate:
            return "no traffic is driven"
        return (
            f"{format_number(load.rate)} calls/s with {load.policy} to {'work' if load.work else 'lookup and search'}"
        )

    # ---- whom it is about -------------------------------------------------------------------------------------

    def _replica(self, request: Request) -> Keeper:
        return self._keeper(request.get("replica"), "replica")

    def _replicas(self, request: Request) -> list[Keeper]:
        """The one that is named, or all."""
        return list(self._cluster.keepers) if request.get("replica") in (None, "all") else [self._replica(request)]

    def _keeper(self, name: object, field: str) -> Keeper:
        for keeper in self._cluster.keepers:
            if keeper.name == name:
                return keeper
        names = [keeper.name for keeper in self._cluster.keepers]
        known = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        raise BadOption(f"{field}: no replica is named {str(name)[:60]!r}; there is {known}")


class _Alone:
    """While it is entered, no other restart or drain of the same replicas is begun."""

    def __init__(self, busy: set[str], names: set[str]) -> None:
        self._busy = busy
        self._names = names

    def __enter__(self) -> None:
        taken = sorted(self._busy & self._names)
        if taken:
            raise ControlRefused(f"{', '.join(taken)}: a restart or drain is under way")
        self._busy |= self._names

    def __exit__(self, *_: object) -> None:
        self._busy -= self._names


def _names(keepers: list[Keeper]) -> str:
    return ", ".join(keeper.name for keeper in keepers)


def _text(request: Request, field: str) -> str:
    value = request.get(field)
    if not isinstance(value, str) or not value:
        raise BadOption(f"{field}: {str(value)[:60]!r} is not a text")
    return value


def _number(request: Request, field: str) -> float:
    value = request.get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadOption(f"{field}: {str(value)[:60]!r} is not a number")
    return float(value)
