"""A replica's process after ``spare_the_loop``: in a process of its own, since it is for good."""

from __future__ import annotations

import subprocess
import sys

PROBE = """
import gc, weakref
import tiedreq
from tiedreq.net.collecting import YOUNG_MAX, spare_the_loop

class Ring:
    pass

def ring():
    made = Ring()
    made.me = made
    return weakref.ref(made)

before = ring()
spare_the_loop()
assert before() is None, "what was garbage before is gone"
assert gc.get_freeze_count() > 10_000 and gc.get_threshold()[0] == YOUNG_MAX and gc.isenabled()
after = ring()
kept = [[] for _ in range(2 * YOUNG_MAX)]
assert after() is None, "rings that come later go, too"
full = gc.get_stats()[2]["collections"]
for _ in range(100):
    kept = [[] for _ in range(2 * YOUNG_MAX)]
assert gc.get_stats()[2]["collections"] == full, "nothing was looked at in full"
for _ in range(30):
    kept = [[] for _ in range(50_000)]
    for each in kept:
        each.append(each)  # a ring that outlives collections, and is garbage after them
assert gc.get_stats()[2]["collections"] > full, "rings that lived for a while are found before they are many"
print("fine")
"""


def test_what_lives_for_good_is_not_looked_at_and_garbage_still_goes() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=50)
    assert done.stdout == "fine\n", done.stderr
