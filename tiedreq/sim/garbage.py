"""The garbage collector while a world runs.

What the cores and the simulator make for a call is freed without the collector's help: no cycle is among it
(``tests/sim/test_garbage.py``). So every collection looks at all that lives, hundreds of thousands of tombstones,
markers and records of calls, and finds nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected in this block, in the whole process. Inside another such block it changes nothing."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
