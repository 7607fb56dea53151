"""The outbox: what it takes, in which order it gives, what it gives up."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.net_layer.ends import WELCOME, cancel, copy, notice, reply
from tiedreq.core.errors import BadOption
from tiedreq.core.messages import Chunk, Goodbye, Heartbeat, Message, Submit
from tiedreq.core.types import UNTIED, CopyId, CopyKind, MethodInfo
from tiedreq.errors import TooLarge
from tiedreq.net import outbox_waits
from tiedreq.net.frames import FrameDecoder
from tiedreq.net.outbox import Outbox, OutboxLimits
from tiedreq.wire.codec import decode_frame, encode_message
from tiedreq.wire.limits import FRAME_BYTES_SENT_MAX, FRAME_MESSAGES_MAX, FRAME_SPLIT_BYTES, WireLimits

WIRE = WireLimits()


def outbox(wire: WireLimits = WIRE, **limits: int) -> Outbox:
    return Outbox(OutboxLimits(**limits), wire)


def submit(number: int, size: int = 1) -> Submit:
    copy_ = CopyId(7, number, 0, UNTIED)
    return Submit(copy_, CopyKind.FIRST, "work", bytes(size), 1.0, (), False, False, False, None, ())


def frames(box: Outbox) -> list[bytes]:
    taken = []
    while (frame := box.take_frame()) is not None:
        assert len(frame) <= FRAME_BYTES_SENT_MAX
        taken.append(frame)
        box.written()
    return taken


def pieces(frame: bytes) -> list[object]:
    return list(decode_frame(frame, WIRE))


def arriving(all_frames: list[bytes], wire: WireLimits = WIRE) -> list[Message]:
    decoder = FrameDecoder(wire)
    return [message for frame in all_frames for message in decoder.decode(frame, takes_chunks=True).messages]


class TestOrder:
    def test_everything_that_waits_leaves_in_one_frame(self) -> None:
        box = outbox()
        messages = [cancel(number) for number in range(100)]
        for message in messages:
            assert box.put(message)
        assert len(box) == 100
        assert [pieces(frame) for frame in frames(box)] == [messages]
        assert len(box) == 0 == box.small_bytes

    def test_frames_are_split(self) -> None:
        box = outbox()
        for number in range(40):
            box.put(reply(number, 5000))
        sizes = [len(frame) for frame in frames(box)]
        assert len(sizes) == 4 and all(size <= FRAME_SPLIT_BYTES for size in sizes)

    def test_a_frame_holds_a_bounded_number_of_messages(self) -> None:
        box = outbox()
        for number in range(FRAME_MESSAGES_MAX * 2):
            box.put(cancel(number))
        box.put(reply(1, 200_000))
        counts = [len(pieces(frame)) for frame in frames(box)]
        assert max(counts) <= FRAME_MESSAGES_MAX

    def test_the_links_own_messages_go_first(self) -> None:
        box = outbox()
        box.put(cancel(1))
        box.put(reply(1, 200_000))
        box.put_link(Heartbeat(5))
        first = pieces(frames(box)[0])
        assert first[:2] == [Heartbeat(5), cancel(1)] and isinstance(first[2], Chunk)

    def test_a_large_message_gives_way_to_small_ones_but_never_starves(self) -> None:
        box = outbox(bytes_max=10_000_000)
        big = reply(0, 1_000_000)
        box.put(big)
        rounds = 0
        taken = []
        while box.bulk_bytes:
            for number in range(20):
                box.put(reply(number, 5000))  # more small ones than fit
            frame = box.take_frame()
            assert frame is not None
            taken.append(frame)
            kinds = [type(piece) for piece in pieces(frame)]
            assert kinds.count(Chunk) == 1 and len(kinds) > 5
            rounds += 1
        assert rounds == -(-len(encode_message(big)) // (WIRE.chunk_bytes - 32))

    def test_large_messages_take_turns(self) -> None:
        box = outbox()
        for number in range(6):
            box.put(reply(number, 300_000))
        streams = [piece.stream for frame in frames(box) for piece in pieces(frame) if isinstance(piece, Chunk)]
        assert streams[:8] == [1, 2, 3, 4, 1, 2, 3, 4] and set(streams) == {1, 2, 3, 4, 5, 6}

    def test_a_long_welcome_is_ahead_of_everything(self) -> None:
        box = outbox()
        welcome = WELCOME._replace(
            methods=tuple(MethodInfo(f"{n:04}" + "m" * 100, True, True, 1.0) for n in range(1000))
        )
        box.put_link(welcome)
        box.put(cancel(1))
        box.put(reply(1, 100_000))
        assert arriving(frames(box)) == [welcome, cancel(1), reply(1, 100_000)]

    def test_messages_under_way_fit_into_what_the_other_side_keeps(self) -> None:
        wire = WireLimits(message_bytes_max=2**20, payload_bytes_max=2**19, chunk_total_bytes_max=1_310_720)
        box = outbox(wire)
        for number in range(6):
            assert box.put(reply(number, 2**19))
        assert len(arriving(frames(box), wire)) == 6, "the assembler never had too much"

    @given(
        st.lists(
            st.tuples(st.sampled_from(["cancel", "reply", "submit"]), st.integers(0, 300_000), st.booleans()),
            max_size=12,
        )
    )
    def test_whatever_is_put_arrives_whole_and_once(self, script: list[tuple[str, int, bool]]) -> None:
        box = outbox(bulk_bytes_max=10_000_000)
        put: list[Message] = []
        taken: list[bytes] = []
        for number, (kind, size, take) in enumerate(script):
            message: Message = {"cancel": cancel(number), "reply": reply(number, size), "submit": submit(number, size)}[
                kind
            ]
            assert box.put(message)
            put.append(message)
            if take and (frame := box.take_frame()) is not None:
                taken.append(frame)
        got = arriving(taken + frames(box))
        assert sorted(map(repr, got)) == sorted(map(repr, put))
        small = [message for message in put if len(encode_message(message)) <= WIRE.chunk_bytes]
        assert [message for message in got if message in small] == small, "small ones stay in order"
        assert len(box) == box.small_bytes == box.small_messages == box.bulk_bytes == 0
        assert not box._submits


class TestBounds:
    def test_messages(self) -> None:
        box = outbox(messages_max=3)
        assert [box.put(reply(number, 10)) for number in range(4)] == [True, True, True, False]
        assert [box.put(cancel(number)) for number in range(4)] == [True, True, True, False], "owed, within a bound"
        assert len(arriving(frames(box))) == 6
        assert box.put(reply(4, 10))

    def test_bytes(self) -> None:
        box = outbox(bytes_max=100_000)
        assert box.put(reply(1, 60_000)) and not box.put(reply(2, 60_000)) and box.put(cancel(1))

    def test_a_large_message_always_fits_into_an_empty_lane(self) -> None:
        box = outbox(bulk_bytes_max=1)
        assert box.put(reply(1, 5_000_000)) and not box.put(reply(2, 100_000))
        assert box.put(cancel(1)), "small ones have their own bounds"

    def test_the_links_own_lane(self) -> None:
        box = outbox()
        assert sum(box.put_link(Heartbeat(number)) for number in range(100)) == 64
        assert box.put_link(Goodbye("closed", "")), "there is always room for a goodbye"
        assert len(arriving(frames(box))) == 65

    def test_too_large_for_anybody(self) -> None:
        box = outbox(WireLimits(message_bytes_max=2**20, payload_bytes_max=2**10))
        with pytest.raises(TooLarge, match="at most") as caught:
            box.put(reply(1, 2**20))
        assert len(box) == 0 and caught.value.limit == 2**10 + 131_072

    def test_what_the_other_side_said_it_takes(self) -> None:
        box = outbox()
        box.agree(1000)
        assert box.put(reply(1, 131_000))
        with pytest.raises(TooLarge):
            box.put(reply(1, 132_100))

    def test_what_cannot_be_encoded(self) -> None:
        box = outbox()
        with pytest.raises(BadOption):
            box.put(submit(1)._replace(method=""))
        assert len(box) == 0

    @pytest.mark.parametrize("limits", [{"messages_max": 0}, {"bulk_bytes_max": -1}, {"bytes_max": 1000}])
    def test_bad_limits(self, limits: dict[str, int]) -> None:
        with pytest.raises(BadOption):
            OutboxLimits(**limits)


class TestTakingBack:
    def test_a_small_submit(self) -> None:
        box = outbox()
        for number in range(3):
            box.put(submit(number))
        assert box.discard(submit(1).copy) and not box.discard(submit(1).copy)
        assert (len(box), box.small_messages) == (2, 2)
        assert arriving(frames(box)) == [submit(0), submit(2)]
        assert not box.discard(submit(0).copy)

    def test_only_discarded_ones_waited(self) -> None:
        box = outbox()
        box.put(submit(1))
        box.discard(submit(1).copy)
        assert box.take_frame() is None and len(box) == 0 and not box._small

    def test_a_large_submit_before_its_turn(self) -> None:
        box = outbox()
        box.put(submit(1, 500_000))
        assert box.discard(submit(1).copy) and box.take_frame() is None and box.bulk_bytes == 0

    def test_a_large_submit_that_left_in_part(self) -> None:
        box = outbox()
        box.put(submit(1, 500_000))
        taken = [box.take_frame(), box.take_frame()]
        assert box.discard(submit(1).copy) and box.bulk_bytes == 0
        taken += frames(box)
        decoder = FrameDecoder(WIRE)
        got = [decoder.decode(frame, takes_chunks=True).messages for frame in taken if frame is not None]
        assert got == [[], [], []] and decoder._assembler.streams == 0, "the other side keeps nothing of it"

    def test_other_messages_of_a_copy_stay(self) -> None:
        box = outbox()
        box.put(cancel(1))
        assert not box.discard(copy(1)) and len(box) == 1

    def test_notices_are_shed_oldest_first(self) -> None:
        box = outbox()
        box.put(cancel(0))
        for number in range(5):
            box.put(notice(number))
        assert box.shed_oldest_notices(2) == 2
        assert arriving(frames(box)) == [cancel(0), notice(2), notice(3), notice(4)]
        assert box.shed_oldest_notices(2) == 0

    def test_notices_are_not_looked_for_among_all_that_waits(self) -> None:
        """A peer that reads nothing may leave thousands of other messages waiting; each notice would look at them."""

        class NotLookedThrough(deque[object]):
            def __iter__(self) -> Iterator[object]:
                raise AssertionError("every message was looked at")

        box = outbox()
        box._small = NotLookedThrough()
        for number in range(9):
            box.put(cancel(number))
            box.put(notice(number))
        first = box.take_frame()
        for number in range(50):
            assert box.put(cancel(100 + number)) and box.put(notice(100 + number))
            assert box.shed_oldest_notices(1) == 1 and box.shed_oldest_notices(1) == 0
        assert first is not None and arriving([first])[-1] == notice(8)
        assert arriving(frames(box)) == [cancel(100 + number) for number in range(50)] and box.places == 0

    def test_a_writer_that_stands_still_is_left_no_places_of_what_was_shed_or_taken_back(self) -> None:
        box, limit = outbox(messages_max=100), 100
        for number in range(5_000):
            taken_back = submit(10_000 + number, 1_000)
            for message in (notice(number), taken_back):
                while not box.put(message):
                    assert box.shed_oldest_notices(8)
            assert box.discard(taken_back.copy)
            assert len(box) <= limit and box.places <= 2 * limit + 64
        kept = len(box)
        assert arriving(frames(box)) == [notice(number) for number in range(5_000 - kept, 5_000)]
        assert box.places == len(box) == box.small_bytes == 0


class TestWaiting:
    async def test_room(self) -> None:
        box = outbox(bulk_bytes_max=150_000)
        box.put(reply(1, 100_000))
        order: list[str] = []

        async def wait() -> None:
            assert await outbox_waits.room(box, 100_000)
            order.append("room")
            assert box.put(reply(2, 100_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            order.append("taken")
            frames(box)
        assert order == ["taken", "room"]

    async def test_drained(self) -> None:
        box = outbox()
        assert await outbox_waits.drained(box)
        box.put(cancel(1))
        results: list[bool] = []

        async def wait() -> None:
            results.append(await outbox_waits.drained(box))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert box.take_frame() is not None
            await trio.testing.wait_all_tasks_blocked()
            assert results == [], "taken is not yet written"
            box.written()
        assert results == [True]

    async def test_a_closed_one_lets_everybody_go_and_keeps_the_goodbye(self) -> None:
        box = outbox(bulk_bytes_max=1)
        box.put(reply(1, 500_000))
        box.put(cancel(1))
        box.put_link(Goodbye("closed", ""))
        results: list[bool] = []

        async def wait(condition) -> None:
            results.append(await condition())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, lambda: outbox_waits.drained(box))
            nursery.start_soon(wait, lambda: outbox_waits.room(box, 500_000))
            await trio.testing.wait_all_tasks_blocked()
            box.close()
        assert results == [False, False]
        assert not box.put(cancel(2)) and not box.put_link(Heartbeat(1))
        assert arriving(frames(box)) == [Goodbye("closed", "")]
        await outbox_waits.anything(box)  # returns at once

    async def test_the_writer_sleeps_until_something_waits(self) -> None:
        box = outbox()
        woken: list[bytes | None] = []

        async def writer() -> None:
            await outbox_waits.anything(box)
            woken.append(box.take_frame())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer)
            await trio.testing.wait_all_tasks_blocked()
            box.put(cancel(1))
            box.put(cancel(2))
        assert len(woken) == 1 and woken[0] is not None and len(pieces(woken[0])) == 2
