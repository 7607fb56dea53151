"""One row for each method that was called: what replicas measured of it, and what the traffic's client knows.

Pure. Rates and shares are of the last ten seconds; what is not known is None, as is all of the client's part for a
method that only other clients call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cluster.dashboard.window import NO_DELTA, MethodDelta, Window
from cluster.drive import TrafficDriver


def method_views(windows: Iterable[Window], driver: TrafficDriver | None) -> list[dict[str, Any]]:
    """The rows, in the order of their names."""
    served: dict[str, MethodDelta] = {}
    for window in windows:
        for name, delta in window.methods().items():
            served[name] = served.get(name, NO_DELTA).plus(delta)
    client = driver.client if driver is not None and driver.client is not None else None
    called: Mapping[str, Any] = client["recently"] if client is not None else {}
    rows = []
    for name in sorted({*served, *called}):
        brake = (
            _brake(name, client["snapshot"]["learned"], driver) if client is not None and driver is not None else None
        )
        rows.append({"name": name, **_served(served.get(name, NO_DELTA)), **_called(called.get(name)), "brake": brake})
    return rows


def _served(delta: MethodDelta) -> dict[str, Any]:
    """What the replicas say."""
    quantiles = {
        "service_p50_ms": delta.service_quantile(0.50),
        "service_p99_ms": delta.service_quantile(0.99),
        "wait_p99_ms": delta.wait_quantile(0.99),
    }
    return {
        "executions_per_second": delta.started / delta.seconds if delta.seconds else None,
        "wasted_share": delta.wasted / delta.busy if delta.busy else None,
        **{name: None if value is None else 1000 * value for name, value in quantiles.items()},
    }


def _called(view: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the client saw."""
    names = ("calls", "errors", "duplicate_execution_rate", "curve")
    return {name: None if view is None else view[name] for name in names}


def _brake(method: str, learned: list[dict[str, Any]], driver: TrafficDriver) -> dict[str, Any] | None:
    """The brake on backups of the policy that is driven now; None where it sends none."""
    backup = getattr(driver.load.policy_value, "backup", None)
    for lesson in learned:
        if lesson["method"] == method and lesson["backup"] == str(backup):
            return {
                "state": lesson["state"],
                "reason": lesson["state_reason"],
                "delay_ms": None if lesson["delay"] is None else 1000 * lesson["delay"],
                "delay_reason": lesson["reason"],
                "balance": lesson["balance"],
                "denied": lesson["denied"],
            }
    return None
