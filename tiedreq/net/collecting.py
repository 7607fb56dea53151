"""The garbage collector of a process that is a replica and nothing else.

A full collection looks at everything that lives, imported modules and tens of thousands of tombstones too, and stops
the loop for tens of milliseconds: a slow moment such as this project is about. What a replica makes for a call is
freed without the collector's help; what isn't are mostly errors with their tracebacks.
"""

from __future__ import annotations

import gc

YOUNG_MAX = 5_000
"""So many more containers made than freed, and the youngest are looked at: about half a millisecond."""
MIDDLE_EVERY, OLD_EVERY = 20, 100
"""Every so many collections of the youngest those older are looked at, and of these so many a full one."""


def spare_the_loop() -> None:
    """Call it once, when everything that lives as long as the process has been made and the loop may still wait."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, MIDDLE_EVERY, OLD_EVERY)
