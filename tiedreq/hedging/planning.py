"""How many copies a delay comes to, counted in calls, and the delay that comes to as many as a budget names.

Who hedges a service that is not its own pays for each request, whatever work it is, and a call may get several backups.
The k-th leaves t(k) = d + (k - 1) · later · d after the call. With S the time of a copy, all copies alike, a delay d
comes to so many copies per call beyond the first:

    copies(d) = sum over k of  P(S > t(k)) · P(S > t(k) - t(1)) · … · P(S > t(k) - t(k - 1))

Not for whether a backup is worth it (``core.delay``), nor for who pays (``core.budget``). Pure; times are seconds.
"""

from __future__ import annotations

import math

from tiedreq.core.latency import RELATIVE_ERROR, Law

THIN = 0.1
"""A bucket is thinly filled when fewer copies end in it than that share of those that last longer."""


def copies(law: Law, delay: float, backups: int, later: float) -> float:
    """Copies per call beyond the first, with up to ``backups``: the module's formula."""
    total, times = 0.0, [delay + number * later * delay for number in range(backups)]
    for number, time in enumerate(times):
        total += beyond(law, time) * math.prod(beyond(law, time - earlier) for earlier in times[:number])
    return total


def beyond(law: Law, time: float) -> float:
    """P(S > time); of what is not known, the share of which nothing is known."""
    survival = law.survival(time)
    return law.unknown if survival is None else survival


def spending(law: Law, share: float, backups: int, later: float) -> float | None:
    """The shortest delay that comes to no more than ``share`` copies per call beyond the first; None: none is known.

    To a bucket of the law, which is 2 % wide: it is the bucket's middle where few copies end in it, as nothing more is
    known; of one that many end in (the usual time of a law with atoms) the end is waited for.
    """
    low, high = 0, len(law.cells)
    while low < high:
        middle = (low + high) // 2
        if copies(law, law.cells[middle].edge, backups, later) <= share:
            high = middle
        else:
            low = middle + 1
    if low == len(law.cells):
        return None
    cell = law.cells[low]
    return cell.edge * (1 - RELATIVE_ERROR) if cell.mass < THIN * beyond(law, cell.edge) else cell.edge
