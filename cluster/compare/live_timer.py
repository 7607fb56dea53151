"""Timers that are punctual to some 50 µs, for everything in a Trio program.

Trio waits in ``epoll``, whose time-outs are whole milliseconds, rounded up: a sleep of 10 ms takes up to 11.2 ms, and a
link shaped to 0.5 ms has more than 1 ms. A laboratory that compares policies at such times needs better: a kernel timer
(``timerfd``) that is set to the same moment just before each wait ends it in time.

Each timer that rings so has a pass of the loop to itself, where Trio's whole milliseconds gather several. A loop that
is busy for more than ``BUSY_MAX`` of the time can't afford that and is left to Trio's own until it is less busy: by
then it is not the timers that make things late.

Where the kernel has no such timer (it is Linux's), everything works with Trio's own timers.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

__all__ = ["punctual_timers"]

FAR = 1.0
"""Waits of more seconds are not worth a timer."""
LATER = 5e-6
"""Set so much later, so that it never ends a wait a moment too early, which would cost another wait."""

BUSY_MAX = 0.75
"""The share of the time in which a loop may do something, rather than wait, and have punctual timers."""
WINDOW = 0.05
"""For how many seconds that is measured."""

_CLOCK_MONOTONIC = 1
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC if sys.platform == "linux" else 0


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSetting(ctypes.Structure):
    _fields_ = (("interval", _Time), ("value", _Time))


class Load:
    """Whether a loop that tells when it has something to do, and when it has not, was busy lately."""

    def __init__(self, now: float) -> None:
        self.high = False
        self._woke = self._since = now
        self._busy = 0.0

    def wakes(self, now: float) -> None:
        """It has something to do."""
        self._woke = now

    def rests(self, now: float) -> None:
        """It has done that."""
        self._busy += now - self._woke
        passed = now - self._since
        if passed >= WINDOW:
            self.high = self._busy > BUSY_MAX * passed
            self._since, self._busy = now, 0.0


class _TimerDescriptor(trio.abc.Instrument):
    """Wakes ``epoll`` when Trio's own time-out is over, before it is rounded up."""

    def __init__(self, libc: ctypes.CDLL, descriptor: int) -> None:
        self._set = libc.timerfd_settime
        self._descriptor = descriptor
        self._setting = _TimerSetting()
        self._address = ctypes.byref(self._setting)
        self._load = Load(time.perf_counter())

    def after_io_wait(self, timeout: float) -> None:
        """The loop has something to do."""
        self._load.wakes(time.perf_counter())

    def before_io_wait(self, timeout: float) -> None:
        """Set the timer to the end of the wait that begins."""
        self._load.rests(time.perf_counter())
        if 0 < timeout < FAR and not self._load.high:
            value = self._setting.value
            value.seconds = 0
            value.nanoseconds = math.ceil((timeout + LATER) * 1e9)
            if value.nanoseconds >= 1_000_000_000:
                value.seconds, value.nanoseconds = 1, 0
            self._set(self._descriptor, 0, self._address, None)

    async def run(self) -> None:
        """Take note of each ringing, until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            with suppress(BlockingIOError):
                os.read(self._descriptor, 8)


_punctual: trio.lowlevel.RunVar[bool] = trio.lowlevel.RunVar("punctual", default=False)


@asynccontextmanager
async def punctual_timers() -> AsyncIterator[bool]:
    """All timers of this Trio program are punctual inside the block; yields False where that can't be had.

    Inside another such block it adds nothing, and ends nothing: the outer one is to last longer.
    """
    if _punctual.get():
        yield True
        return
    descriptor = -1
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
    if descriptor < 0:
        yield False
        return
    timer = _TimerDescriptor(libc, descriptor)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timer.run)
            trio.lowlevel.add_instrument(timer)
            _punctual.set(True)
            try:
                yield True
            finally:
                _punctual.set(False)
                trio.lowlevel.remove_instrument(timer)
            nursery.cancel_scope.cancel()
    finally:
        os.close(descriptor)
