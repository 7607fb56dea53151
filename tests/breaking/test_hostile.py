"""Hostile input in bulk at a real replica: below WebSocket, in its frames, and in the messages of a link."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil
import pytest
import trio

import tiedreq
from tests.breaking import _app
from tests.cluster._launcher import Child
from tests.net.raw import raw_link
from tests.net_layer.servers import SHAKE
from tests.net_layer.test_hostile import HOSTILE, HOSTILE_FRAMES
from tiedreq.core.link_options import LinkSide
from tiedreq.core.messages import Cancel, Chunk, Started, Submit
from tiedreq.core.types import CopyId
from tiedreq.net.network import WebsocketNetwork
from tiedreq.wire.limits import wire_limits
from tiedreq.wire.packing import packers

TOKEN = "of-the-test-under-fire"
WARM_SECONDS = 2.0
SHORT_SECONDS = 4.0
GROWTH_MAX = 0.2
TOMBSTONES = 100
"""So many ended copies does the replica remember here, so that this table is full before memory is looked at."""
PATIENT_SECONDS = 60.0
"""Within which an honest call is answered, also where other work takes the processors for a while."""
LINES_MAX, LINES_PER_SECOND_MAX = 200, 2
BAD_VALUES = [
    b"\x91" * 100_000,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc1",
    b"\xd9\x02\xff\xff",
    b"\x81\x91\x01\x02",
    b"\x82\x01\x02\x01\x03",
    b"\xc7\x0c\xff" + bytes(12),
    b"\xd4\x7f\x00",
    b"\xcf" + b"\xff" * 8,
    b"\x90",
    b"\x91\x91\x05",
    b"",
]


class Fire:
    """One attacker at each layer, over and over; ``shots`` counts them."""

    def __init__(self, url: str, seed: int) -> None:
        self.shots: Counter[str] = Counter()
        self._url = url
        self._port = int(url.rpartition(":")[2])
        self._rng = Random(seed)
        self._network = WebsocketNetwork(wire_limits(1024 * 1024))

    async def below(self) -> None:
        """Anything but a WebSocket."""
        junk = self._rng.randbytes(self._rng.randrange(2000))
        await self._raw(b"", self._rng.choice([*HOSTILE.values(), junk]))

    async def frames(self) -> None:
        """A WebSocket's handshake, then frames that are none, or that carry junk."""
        body = self._rng.randbytes(self._rng.randrange(126))
        junk = bytes([0x82, 0x80 | len(body), 0, 0, 0, 0]) + body
        await self._raw(SHAKE + b"\r\n", self._rng.choice([*HOSTILE_FRAMES.values(), junk, junk]))

    async def messages(self) -> None:
        """A proven link, of a client or of a replica, that then says what no honest side says."""
        rng = self._rng
        role = rng.choice(["client", "replica"])
        side = LinkSide("tiedreq", role, "a0" if role == "replica" else "raw", rng.getrandbits(60) + 1)
        with trio.move_on_after(2):
            async with raw_link(self._network, self._url, side=side, token=TOKEN) as raw:
                number = rng.randrange(1000)
                submit = raw.submit(number, "square", payload=rng.choice(BAD_VALUES), remaining=1.0)
                notice = Started(CopyId(rng.getrandbits(60), number, 0, rng.randrange(2)), 5.0, None)
                said: Submit | Started | Cancel | Chunk = rng.choice(
                    [submit, notice, raw.cancel(number), Chunk(number, False, rng.randbytes(50_000))]
                )
                whole = bytearray(packers.pack([(1, *said)]))
                for _ in range(rng.randrange(4)):
                    whole[rng.randrange(len(whole))] = rng.randrange(256)
                with suppress(Exception):  # the other side may have closed it: that is its good right
                    await raw.send_unchecked(said)
                    await trio.sleep(rng.choice([0, 0.005]))  # so that some of it is carried out
                    assert raw.transport is not None
                    await raw.transport.send_frame(bytes(rng.choice([whole, rng.choice(BAD_VALUES)])))
                    await trio.sleep(0.01)

    async def _raw(self, first: bytes, then: bytes) -> None:
        with suppress(OSError, trio.BrokenResourceError), trio.move_on_after(0.3):
            async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
                if first:
                    await stream.send_all(first)
                    await stream.receive_some(4096)
                await stream.send_all(then)
                await trio.sleep(0.002)

    async def at(self, layer: Callable[[], Awaitable[None]]) -> None:
        """Shoot at a layer until cancelled."""
        while True:
            await layer()
            self.shots[layer.__name__] += 1


async def honest(client: tiedreq.Client, answered: list[int]) -> None:
    """Calls that must go on: each is answered, and rightly."""
    while True:
        number = len(answered)
        answer = await client.call("square", {"number": number}, timeout=PATIENT_SECONDS)
        assert answer["square"] == number**2
        answered.append(number)
        await trio.sleep(0.02)


@pytest.mark.hostile
async def test_a_replica_under_fire(tmp_path: Path, minutes: float) -> None:
    """B37, B38: it lives, it serves, its memory is flat, it keeps no descriptor, and its log is not flooded."""
    _app.write(tmp_path)
    (tmp_path / "token").write_text(TOKEN)
    arguments = ["-m", "tiedreq", "serve", "app:service", "--name", "r0", "--token-file", "token"]
    arguments += ["--limit", f"tombstones_max={TOMBSTONES}"]
    child = await trio.to_thread.run_sync(Child, arguments, tmp_path)
    try:
        url = (await trio.to_thread.run_sync(child.line, 120)).split()[-1]
        process, answered = psutil.Process(child.pid), list[int]()
        async with tiedreq.connect([url], token=TOKEN) as client, trio.open_nursery() as nursery:
            files = len(os.listdir(f"/proc/{child.pid}/fd"))
            nursery.start_soon(honest, client, answered)
            fire = Fire(url, seed=1)
            for layer in (fire.below, fire.frames, fire.messages):
                nursery.start_soon(fire.at, layer)
            await trio.sleep(WARM_SECONDS)
            before = process.memory_info().rss
            seconds = SHORT_SECONDS + 60 * max(0.0, minutes - 2)
            await trio.sleep(seconds)
            after = process.memory_info().rss
            nursery.cancel_scope.cancel()
        assert min(fire.shots.values()) > 20 and len(fire.shots) == 3 and len(answered) > 50, (
            fire.shots,
            len(answered),
        )
        assert after < before * (1 + GROWTH_MAX), f"{before} bytes before, {after} after {fire.shots}"
        with trio.fail_after(20):
            while len(os.listdir(f"/proc/{child.pid}/fd")) >= files:  # noqa: ASYNC110 - the client has left, too
                await trio.sleep(0.1)
        async with tiedreq.connect([url], token=TOKEN) as client:
            assert (await client.call("square", {"number": 12}))["square"] == 144
            told = (await client.inquire("snapshot"))["r0"]
            assert (told["queue"], told["running"]) == (0, 0)
        child.popen.terminate()
        assert await trio.to_thread.run_sync(child.wait) == 0
        assert "Traceback" not in child.stderr and TOKEN not in child.stderr
        told = f"{dict(fire.shots)}, {len(answered)} honest calls, {before} bytes before, {after} after"
        print(f"{told}, {len(child.error)} lines of log")
        assert len(child.error) < LINES_MAX + LINES_PER_SECOND_MAX * seconds, "a few of each kind in ten seconds"
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(child.end)
