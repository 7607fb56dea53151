"""Latencies that name zones, and the names that zones may have."""

from __future__ import annotations

import pytest

from tiedreq.core.errors import BadOption
from tiedreq.units import check_zone, parse_latency, parse_zones


def test_a_latency_may_name_zones_and_replicas_count_more() -> None:
    spec = parse_latency("1ms;a-b=5ms;a>c=60ms;r0-r3=20ms")
    assert spec.law("r0", "r1", "a", "b").mean == spec.law("r1", "r0", "b", "a").mean == 0.005
    assert spec.law("r0", "r2", "a", "c").mean == 0.060
    assert spec.law("r2", "r0", "c", "a").mean == 0.001
    assert spec.law("r0", "r3", "a", "b").mean == 0.020
    assert spec.law("r0", "r6", "a", "a").mean == spec.law("r0", "r1").mean == 0.001
    assert parse_latency(str(spec)) == spec


def test_zones_are_read_in_their_order() -> None:
    assert parse_zones("a, b,c") == ("a", "b", "c")
    assert parse_zones("eu-west-1a,eu-west-1a,eu-west-1b") == ("eu-west-1a", "eu-west-1a", "eu-west-1b")
    assert check_zone("") == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty name"),
        ("a,,b", "empty name"),
        ("a b", "not a word"),
        ("a=b", "not a word"),
        ("a;b", "not a word"),
        ("a>b", "not a word"),
        ("x" * 129, "not a word"),
        (",".join(["a"] * 65), "65 zones are more than 64"),
    ],
)
def test_a_bad_list_of_zones_is_refused_and_named(text: str, why: str) -> None:
    with pytest.raises(BadOption, match=rf"^zones: .*({why})"):
        parse_zones(text)


@pytest.mark.parametrize("zone", ["a\n", "a,b", None, 3, "\x1b[0m"])
def test_what_is_no_zone_is_refused(zone: object) -> None:
    with pytest.raises(BadOption, match=r"^zone: "):
        check_zone(zone)
