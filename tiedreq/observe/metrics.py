"""Prometheus metrics of a replica and of a client, made from their snapshots when they are asked for.

Nothing is counted twice and nothing costs anything between two scrapes: gauges are read from the queue itself, counters
from the core's own. Labels are bounded: replicas, states and causes are few by nature, and of methods the first
``METHODS_MAX`` that are called have rows of their own, the rest share ``(others)``. Which these are is decided once, by
the collector's first look at each: a method that changed rows would make the counters of one of them fall.

This module needs ``prometheus-client``, the extra ``metrics``. A client's metrics also go into a registry of your own::

    prometheus_client.REGISTRY.register(ClientCollector(client.observer))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tiedreq.observe.client import OTHERS, ClientObserver
from tiedreq.observe.histogram import BOUNDS, HistogramView
from tiedreq.observe.lag import LagView
from tiedreq.observe.pauses import PausesView
from tiedreq.observe.replica import ReplicaObserver
from tiedreq.observe.snapshot import ClientMethodView

METHODS_MAX = 100
LINKS_MAX = 256
LESSONS_MAX = 100
BRAKE_STATES = ("ok", "saturated", "useless", "off")

Row = tuple[list[str], float | None]


def exposition(observer: ReplicaObserver | ClientObserver) -> Callable[[str], tuple[bytes, str]]:
    """A function that makes the page of metrics: from the ``Accept`` header to the body and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector_of(observer))
    ProcessCollector(registry=registry)

    def page(accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    return page


def collector_of(observer: ReplicaObserver | ClientObserver) -> Collector:
    """The collector that fits."""
    return ReplicaCollector(observer) if isinstance(observer, ReplicaObserver) else ClientCollector(observer)


class ReplicaCollector(Collector):
    """The metrics of one replica. See ``docs/operating.md``."""

    def __init__(self, observer: ReplicaObserver) -> None:
        self._observer = observer
        self._rows = _Rows()

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are not checked against those of other collectors."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All of them, now."""
        picture = self._observer.snapshot()
        family = _Families("replica", picture["name"])
        info = ["incarnation", "service", "cluster"]
        values = [picture["incarnation"], picture["service"], picture["cluster"]]
        yield family.gauge("info", "Which replica this is; always 1.", info, [(values, 1)])
        for name, text in (
            ("queue", "Copies that wait."),
            ("running", "Slots that are taken."),
            ("free", "Slots that are free."),
            ("slots", "Handlers that may run at once."),
            ("callers", "Clients that are connected."),
            ("draining", "1 while the replica refuses new calls and finishes what runs."),
        ):
            yield family.gauge(name, text, [], [([], float(picture[name]))])  # type: ignore[literal-required]
        yield family.gauge("uptime_seconds", "Seconds since it started.", [], [([], picture["uptime"])])
        yield _lag(family, picture["loop_lag"])
        yield _pauses(family, picture["loop_pauses"])
        counters = picture["counters"]
        for name, text in (
            ("submitted", "Copies that callers sent."),
            ("duplicate_submits", "Copies that had been here before."),
            ("notices", "Notices from other replicas: their copy started, or is next."),
            ("late_notices", "Notices that met a copy which had started."),
            ("notices_unsent", "Notices that no link could take."),
            ("stale_notices", "Notices over an old link, or from a replica that is not the partner."),
            ("double_starts", "Two copies of one tie started, decided here."),
            ("items", "Items of streams that were sent."),
            ("items_wasted", "Items of copies that ended without an answer, sent or not."),
            ("markers_evicted", "Notices that were forgotten because too many waited for their copy."),
            ("messages", "Messages to peers and to and from callers."),
        ):
            yield family.counter(name, text, [], [([], counters[name])])
        endings = [
            ([state, cause], float(count))
            for state, causes in picture["endings"].items()
            for cause, count in causes.items()
        ]
        yield family.counter("endings", "Copies that ended without an answer.", ["state", "cause"], endings)
        yield from self._methods(family, picture["methods"])
        links = list(picture["links"].items())[:LINKS_MAX]
        for name, text in (
            ("up", "1 while the link to this peer is up."),
            ("round_trip", "Smoothed round trip to this peer, in seconds."),
            ("notice_latency", "Half of it: how long a notice takes, in seconds."),
            ("messages_waiting", "Messages in the outbox to this peer."),
        ):
            unit = "_seconds" if name in ("round_trip", "notice_latency") else ""
            rows: list[Row] = [([peer], _number(view[name])) for peer, view in links]  # type: ignore[literal-required]
            yield family.gauge(f"link_{name}{unit}", text, ["peer"], rows)
        held: list[Row] = [([name], float(size)) for name, size in picture["sizes"].items()]
        yield family.gauge("held", "The length of each collection of the core.", ["what"], held)

    def _methods(self, family: _Families, methods: dict[str, Any]) -> Iterator[Metric]:
        groups = self._rows.groups(methods.items(), lambda view: int(view["started"]))
        rows = {
            (label, end): sum(view[end] for view in views)
            for label, views in groups
            for end in ("answered", "failed", "wasted")
        }
        ends: list[Row] = [([*key], float(count)) for key, count in rows.items()]
        text = "Executions that ended; those wasted were stopped, or nobody took their result."
        yield family.counter("executions", text, ["method", "end"], ends)
        for name, text in (
            ("busy_seconds", "Seconds that executions took."),
            ("wasted_seconds", "The part of it whose result nobody took."),
        ):
            sums: list[Row] = [([label], sum(view[name] for view in views)) for label, views in groups]
            yield family.counter(name, text, ["method"], sums)
        for name, text in (
            ("service", "From the start of an execution to its answer or failure."),
            ("queue_wait", "From the arrival of a copy to its start, of those that answered or failed."),
        ):
            shown = [([label], [view[name] for view in views]) for label, views in groups]
            yield family.histogram(f"{name}_seconds", text, ["method"], shown)


class ClientCollector(Collector):
    """The metrics of one client. See ``docs/operating.md``."""

    def __init__(self, observer: ClientObserver) -> None:
        self._observer = observer
        self._rows = _Rows()

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are not checked against those of other collectors."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All of them, now."""
        picture = self._observer.snapshot(recent=0)
        family = _Families("client", None)
        yield family.gauge("in_flight", "Calls that are open.", [], [([], picture["in_flight"])])
        yield family.gauge("uptime_seconds", "Seconds since it connected.", [], [([], picture["uptime"])])
        yield _lag(family, picture["loop_lag"])
        counters = picture["counters"]
        for name, text in (
            ("ties", "Calls that were tied."),
            ("ties_withheld", "Calls that went untied because double starts had emptied the budget."),
            ("ties_observed", "Ties that observe_only kept from being sent."),
            ("backups_sent", "Backups that left."),
            ("backups_won", "Backups that answered first."),
            ("backups_denied", "Backups that a call wanted and the brake denied."),
            ("backups_observed", "Backups that observe_only kept from being sent."),
            ("backups_without_target", "Backups for which there was no replica."),
            ("failovers", "Rounds after the first one."),
            ("failovers_denied", "Rounds that the budget denied."),
        ):
            yield family.counter(name, text, [], [([], counters[name])])
        yield from self._methods(family, picture["methods"])
        replicas = list(picture["replicas"].items())[:LINKS_MAX]
        for name, metric, text in (
            ("outstanding", "replica_outstanding", "Copies that are out at this replica."),
            ("queued", "replica_queue", "The replica's queue as it last said."),
            ("round_trip", "replica_round_trip_seconds", "Smoothed round trip to this replica."),
            ("draining", "replica_draining", "1 while this replica takes no new calls."),
            ("on_probation", "replica_on_probation", "1 while this replica is avoided."),
        ):
            rows: list[Row] = [([replica], _number(view[name])) for replica, view in replicas]
            yield family.gauge(metric, text, ["replica"], rows)
        yield from self._brake(family, picture["learned"][:LESSONS_MAX])

    def _methods(self, family: _Families, methods: list[ClientMethodView]) -> Iterator[Metric]:
        labels = ["method", "policy"]
        ranked = self._rows.groups(
            (((view["method"], view["policy"]), view) for view in methods), lambda view: int(view["calls"])
        )
        groups = [([*key] if isinstance(key, tuple) else [key, key], views) for key, views in ranked]
        outcomes: dict[tuple[str, ...], int] = {}
        for label, views in groups:
            for view in views:
                for outcome, count in view["outcomes"].items():
                    key = (*label, outcome)
                    outcomes[key] = outcomes.get(key, 0) + count
        ended: list[Row] = [([*key], float(count)) for key, count in outcomes.items()]
        yield family.counter("calls", "Calls that have ended, by outcome.", [*labels, "outcome"], ended)
        for name, text in (
            ("copies", "Copies that were sent."),
            ("executions", "Copies that are known to have started."),
            ("duplicate_executions", "Calls of which more than one copy started."),
            ("useful_seconds", "Seconds of work that answered a call."),
            ("wasted_seconds", "Seconds of work whose answer was not used, as far as this client knows."),
        ):
            sums: list[Row] = [(label, sum(view[name] for view in views)) for label, views in groups]
            yield family.counter(name, text, labels, sums)
        shown = [(label, [view["latency"] for view in views]) for label, views in groups]
        yield family.histogram("latency_seconds", "From a call to its outcome.", labels, shown)

    @staticmethod
    def _brake(family: _Families, learned: Sequence[dict[str, Any]]) -> Iterator[Metric]:
        labels = ["method", "backup"]
        states: list[Row] = [
            ([lesson["method"], lesson["backup"], state], float(lesson["state"] == state))
            for lesson in learned
            for state in BRAKE_STATES
        ]
        yield family.gauge("brake", "1 for the state that the brake is in.", [*labels, "state"], states)
        for name, metric, text in (
            ("delay", "backup_delay_seconds", "After how long a backup is sent now."),
            ("balance", "budget_seconds", "Seconds of extra work that the budget holds."),
            ("mean", "mean_service_seconds", "Mean service time as it was learned."),
        ):
            rows: list[Row] = [([lesson["method"], lesson["backup"]], _number(lesson[name])) for lesson in learned]
            yield family.gauge(metric, text, labels, rows)


class _Families:
    """Makes metrics called ``tiedreq_<kind>_…``; those of a replica are labelled with its name."""

    def __init__(self, kind: str, replica: str | None) -> None:
        self._prefix = f"tiedreq_{kind}"
        self._names = [] if replica is None else ["replica"]
        self._values = [] if replica is None else [replica]

    def gauge(self, name: str, text: str, labels: list[str], rows: Iterable[Row]) -> Metric:
        """Values that go up and down; None: not known, no sample."""
        made = GaugeMetricFamily(f"{self._prefix}_{name}", text, labels=[*self._names, *labels])
        for values, value in rows:
            if value is not None:
                made.add_metric([*self._values, *values], value)
        return made

    def counter(self, name: str, text: str, labels: list[str], rows: Iterable[Row]) -> Metric:
        """Values that only grow."""
        made = CounterMetricFamily(f"{self._prefix}_{name}", text, labels=[*self._names, *labels])
        for values, value in rows:
            if value is not None:
                made.add_metric([*self._values, *values], value)
        return made

    def histogram(
        self, name: str, text: str, labels: list[str], rows: Iterable[tuple[list[str], list[HistogramView]]]
    ) -> Metric:
        """Histograms; those in one row add up."""
        made = HistogramMetricFamily(f"{self._prefix}_{name}", text, labels=[*self._names, *labels])
        for values, views in rows:
            counts = [sum(column) for column in zip(*(view["counts"] for view in views), strict=True)]
            buckets, passed = [], 0
            for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
                passed += count
                buckets.append((bound, float(passed)))
            made.add_metric([*self._values, *values], buckets, sum(view["sum"] for view in views))
        return made


def _lag(family: _Families, lag: LagView) -> Metric:
    rows: list[Row] = [(["last"], lag["last"]), (["mean"], lag["mean"]), (["max"], lag["max"])]
    text = "How late the event loop woke up: last, and mean and largest of the last 10 to 20 seconds."
    return family.gauge("loop_lag_seconds", text, ["stat"], rows)


def _pauses(family: _Families, pauses: PausesView) -> Metric:
    rows: list[Row] = [(["p99"], pauses["p99"]), (["p999"], pauses["p999"]), (["max"], pauses["max"])]
    text = "From one look at the sockets to the next: percentiles and the longest of the last 10 to 20 seconds."
    return family.gauge("loop_pause_seconds", text, ["stat"], rows)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


class _Rows:
    """Which keys have rows of their own: the first ``METHODS_MAX``, for good; all others share ``OTHERS``.

    Of those that are new at one scrape, the ones with the most weight come first. Where there are more keys than rows,
    one without weight takes none yet: all that it has counted so far is zero, so it may leave ``OTHERS`` later.
    """

    def __init__(self) -> None:
        self._own: Final[set[Any]] = set()

    def groups(self, rows: Iterable[tuple[Any, Any]], weight: Callable[[Any], int]) -> list[tuple[Any, list[Any]]]:
        """The views of each row; those of ``OTHERS`` last, if there are any."""
        ranked = sorted(rows, key=lambda row: weight(row[1]), reverse=True)
        few = len({key for key, _ in ranked}) <= METHODS_MAX
        own: dict[Any, list[Any]] = {}
        rest: list[Any] = []
        for key, view in ranked:
            if len(self._own) < METHODS_MAX and OTHERS not in (key, key[0]) and (few or weight(view)):
                self._own.add(key)
            (own.setdefault(key, []) if key in self._own else rest).append(view)
        return [*own.items(), *([(OTHERS, rest)] if rest else [])]
