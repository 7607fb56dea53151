"""How long something took, not counting what a busy machine made it wait."""

from __future__ import annotations

import os
import time
from pathlib import Path

PRESSURE = Path("/proc/pressure/cpu")


class Stopwatch:
    """Started when it is made.

    ``seconds`` leaves out the time in which some process of the machine was ready and waited for a processor, as the
    kernel counts it. Timeouts and delays are not in that, so they count on a busy machine as on an idle one; work,
    which takes several times as long there, counts about as on an idle one, or less.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._pressed = _pressed()

    @property
    def all_seconds(self) -> float:
        """All of it."""
        return time.monotonic() - self._began

    @property
    def seconds(self) -> float:
        """See above. Where the kernel doesn't count it (no pressure stall information): 0 on a busy machine."""
        pressed = _pressed()
        if pressed is None or self._pressed is None:
            return self.all_seconds if os.getloadavg()[0] < (os.cpu_count() or 1) else 0.0
        return self.all_seconds - (pressed - self._pressed)


def _pressed() -> float | None:
    try:
        some = PRESSURE.read_text().split("\n")[0]
    except OSError:
        return None
    return int(some.rpartition("total=")[2]) / 1e6
