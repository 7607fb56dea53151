"""``hands_on`` is a shortcut for ``step``: a link that uses it where it may says the same at the same times."""

from __future__ import annotations

from random import Random

import pytest

import tests.link.pair as pairs
from tests.link.pair import Pair, mesh
from tiedreq.core import link_commands as c
from tiedreq.core import link_events as e
from tiedreq.core.link import LinkCore
from tiedreq.core.messages import Cancel, Draining, Goodbye, Heartbeat, HeartbeatEcho, Message, Proof, Submit
from tiedreq.core.types import CopyId, CopyKind

COPY = CopyId(7, 1, 0, -1)
SUBMIT = Submit(COPY, CopyKind.FIRST, "work", b"", 1.0, (), True, False, False, None, ())
OWNERS: list[Message] = [Cancel(COPY), Draining(), SUBMIT]
LINKS: list[Message] = [Heartbeat(5), HeartbeatEcho(1), HeartbeatEcho(99), Goodbye("closed", "over"), Proof(b"")]


class ByShortcut(LinkCore):
    """As the driver uses a core."""

    taken = 0

    def step(self, event: e.LinkEvent, now: float) -> list[c.LinkCommand]:
        if not isinstance(event, e.FrameArrived) or event.unknown_types:
            return super().step(event, now)
        if not self.hands_on(event.epoch, event.messages, now):
            return super().step(event, now)
        ByShortcut.taken += 1
        return [c.Deliver(event.epoch, tuple(event.messages))]


def story(seed: int, make) -> tuple[object, ...]:
    """Frames of all kinds at all times, with stalls, silence, loss, and frames of connections that are over."""
    rng = Random(seed)
    pair: Pair = make().start(rng.choice([0.0005, 0.0015, 0.0025, 0.1]))
    epochs = [0]
    for _ in range(40):
        side = rng.choice([pair.dialer, *pair.acceptors[-1:]])
        epochs.append(side.core.epoch)
        match rng.randrange(10):
            case 0:
                pair.run(rng.choice([0.001, 0.2, 0.6, 2.0]))
            case 1:
                pair.stall(rng.choice([0.1, 0.5, 3.0]))
            case 2 if rng.random() < 0.3:
                pair.silent = not pair.silent
            case 3 if side.core.up and rng.random() < 0.3:
                pair.step(side, e.TransportLost(side.core.epoch, "reset"))
            case 4 if side.core.up:
                pair.step(side, e.FrameArrived(rng.choice(epochs), (rng.choice(OWNERS),)))
            case 5:
                pair.send(side, *rng.choices(OWNERS + LINKS, k=3))
            case _:
                pair.send(side, *rng.choices(OWNERS, k=rng.randint(1, 3)))
        pair.run(rng.choice([0.0, 0.001, 0.05]))
    sides = [pair.dialer, *pair.acceptors]
    return tuple((side.heard, side.sent, side.core.describe(), side.core.wake_at, side.core.failures) for side in sides)


@pytest.mark.parametrize("make", [Pair, mesh])
def test_a_link_with_the_shortcut_is_the_same_link(make, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(150):
        plain = story(seed, make)
        with monkeypatch.context() as patched:
            patched.setattr(pairs, "LinkCore", ByShortcut)
            assert story(seed, make) == plain, seed
    assert ByShortcut.taken > 500


def test_no_messages_and_link_messages_are_left_to_step() -> None:
    core = Pair().start(1).dialer.core
    assert core.hands_on(core.epoch, [Cancel(COPY)], 101.0)
    assert not core.hands_on(core.epoch, [], 101.0)
    assert not core.hands_on(core.epoch, [Cancel(COPY), Heartbeat(1)], 101.0)
    assert not core.hands_on(core.epoch + 1, [Cancel(COPY)], 101.0)
