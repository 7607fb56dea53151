"""The limits a process chooses: sensible as they come, refused when they contradict the protocol or each other."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tiedreq.core.errors import BadOption
from tiedreq.core.types import CopyId, CopyKind, Identity
from tiedreq.wire import limits as lim
from tiedreq.wire.codec import encode_message
from tiedreq.wire.limits import DEFAULT_LIMITS, WireLimits, chunk_bytes_sent_max

FIELDS = [field.name for field in dataclasses.fields(WireLimits)]
HUGE = {"message_bytes_max": 2**31, "chunk_total_bytes_max": 2**34}


def with_room(field: str, value: int) -> WireLimits:
    """``field`` at ``value``, the others so that they allow it."""
    options = {**(HUGE if field == "payload_bytes_max" else {}), field: value}
    if field == "message_bytes_max":
        options = {"payload_bytes_max": 1024, "chunk_total_bytes_max": 2**34, **options}
    if field == "chunk_total_bytes_max":
        options = {"payload_bytes_max": 1024, "message_bytes_max": 2**20, **options}
    return WireLimits(**options)


@pytest.mark.parametrize("field", FIELDS)
class TestRange:
    def test_edges(self, field: str) -> None:
        low, high = lim._RANGES[field]
        for value in (low, high):
            assert getattr(with_room(field, value), field) == value
        for value in (low - 1, high + 1):
            with pytest.raises(BadOption, match=rf"^{field} must be a whole number from {low} to {high}, not {value}$"):
                with_room(field, value)

    @pytest.mark.parametrize("value", [None, True, 65_536.0, "65536", float("nan")])
    def test_kind(self, field: str, value: Any) -> None:
        with pytest.raises(BadOption, match=f"^{field} must be a whole number"):
            with_room(field, value)


def test_together() -> None:
    least = DEFAULT_LIMITS.payload_bytes_max + lim.MESSAGE_BYTES_BESIDE_PAYLOAD
    assert WireLimits(message_bytes_max=least).message_bytes_max == least
    with pytest.raises(BadOption, match=f"message_bytes_max must be at least {least} with payload_bytes_max=33554432"):
        WireLimits(message_bytes_max=least - 1)
    total = chunk_bytes_sent_max(DEFAULT_LIMITS.payload_bytes_max)
    assert WireLimits(chunk_total_bytes_max=total).chunk_total_bytes_max == total
    with pytest.raises(BadOption, match=f"chunk_total_bytes_max must be at least {total}"):
        WireLimits(chunk_total_bytes_max=total - 1)
    with pytest.raises(BadOption, match="chunk_total_bytes_max must be at least 134217729 with message_bytes_max"):
        WireLimits(message_bytes_max=2**27 + 1)


def test_a_ten_megabyte_reply_fits() -> None:
    assert DEFAULT_LIMITS.payload_bytes_max > 10_000_000


def test_a_chunk_and_a_split_frame_stay_far_below_what_every_receiver_takes() -> None:
    assert lim.FRAME_SPLIT_BYTES + DEFAULT_LIMITS.chunk_bytes <= lim.FRAME_BYTES_SENT_MAX


def test_largest_submit_stays_within_what_is_allowed_beside_a_payload() -> None:
    wide = "\U0001f600"
    submit = lim_submit(wide)
    assert len(encode_message(submit)) < lim.MESSAGE_BYTES_BESIDE_PAYLOAD


def lim_submit(wide: str) -> Any:
    from tiedreq.core.messages import Submit

    names = [f"{rank}" + wide * (lim.NAME_CHARS_MAX - 1) for rank in range(lim.PARTNERS_MAX)]
    keys = [f"{i:02}" + wide * (lim.METADATA_KEY_CHARS_MAX - 2) for i in range(lim.METADATA_ENTRIES_MAX)]
    return Submit(
        CopyId(2**64 - 1, 2**64 - 1, 2**64 - 1, lim.PARTNERS_MAX - 1),
        CopyKind.TIE,
        wide * lim.METHOD_CHARS_MAX,
        b"",
        lim.SECONDS_MAX,
        tuple(Identity(name, 2**64 - 1) for name in names),
        True,
        True,
        True,
        wide * lim.KEY_CHARS_MAX,
        tuple((key, wide * lim.METADATA_VALUE_CHARS_MAX) for key in keys),
    )
