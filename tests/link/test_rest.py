"""A mesh link at rest says little, and is not taken for silent because of that, however little patience it has."""

from __future__ import annotations

from itertools import count

import pytest

from tests.link.pair import REPLICA_A, REPLICA_B, UP, Pair, core
from tiedreq.core import link_commands as c
from tiedreq.core.link_options import LinkTiming


@pytest.mark.parametrize("round_trip", [0.002, 0.2, 0.4])
@pytest.mark.parametrize("misses", [2, 3, 4, 8])
def test_a_link_at_rest_stays_up(misses: int, round_trip: float) -> None:
    timing, epochs = LinkTiming(heartbeat_misses=misses), count(1).__next__
    dialer = core(REPLICA_A, dialing=True, expected_name="b", epochs=epochs, timing=timing)
    pair = Pair(
        dialer,
        lambda: core(REPLICA_B, dialing=False, epochs=epochs, timing=timing, seed=2),
        delay=round_trip / 2,
    ).start(60.0)
    assert pair.dialer.core.state is UP and not pair.dialer.announced(c.AnnounceDown)
