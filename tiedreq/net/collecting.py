"""The garbage collector of a process that is a replica and nothing else.

A full collection looks at everything that lives, imported modules and tens of thousands of tombstones too, and stops
the loop for tens of milliseconds: a slow moment such as this project is about. What a replica makes for a call is
freed without the collector's help; what isn't are mostly errors with their tracebacks.
"""

from __future__ import annotations

import gc

YOUNG_MAX = 2_000
"""So many more containers made than freed, and the youngest are looked at: a fifth of a millisecond, and up to 1.6 ms
where they are in no cache."""
MIDDLE_EVERY, OLD_EVERY = 5, 100
"""Every so many collections of the youngest those older are looked at (at 20 times 5,000 of them that took 22 ms in a
process of ten busy replicas), and of these so many a full one: 3 to 7 ms with a full table of tombstones.

So a million containers may wait for it, those of rings that outlived a collection: errors that a handler keeps while it
waits, say, with what their tracebacks hold. At ten million a service whose calls leave 20 KB so grew by a gigabyte.
"""


def spare_the_loop() -> None:
    """Call it once, when everything that lives as long as the process has been made and the loop may still wait."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, MIDDLE_EVERY, OLD_EVERY)
