"""The artificial work of this process, for who changes it while it runs: the replica program, told by the launcher.

Not for handlers: they find theirs in ``ctx.state``.
"""

from __future__ import annotations

from cluster.demo.workload import Workload

METHODS = ("work",)
"""The methods that the workload makes slow by itself."""

_current: list[Workload] = []


def attach(workload: Workload) -> None:
    """This is the work of the replica that runs in this process."""
    _current[:] = [workload]


def workload() -> Workload | None:
    """The work of this process; None when it is no replica of the demo."""
    return _current[0] if _current else None
