"""The time of day of what was noted in Trio's time.

Records hold Trio's time, which no clock step touches; only what is shown is in seconds since 1970.
"""

from __future__ import annotations

import time

import trio


def offset() -> float:
    """What Trio's time lacks to the time of day, now, in seconds."""
    return time.time() - trio.current_time()
