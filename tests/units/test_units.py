import math
import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiedreq.errors import BadOption, UsageError
from tiedreq.units import (
    DURATION_MAX,
    LatencyLaw,
    LatencySpec,
    LinkLatency,
    check_duration,
    check_number,
    format_duration,
    format_number,
    parse_duration,
    parse_latency,
    parse_number,
)

durations = st.floats(0, DURATION_MAX)
names = st.text("abcxyz0189_.", min_size=1, max_size=5)


@st.composite
def latency_laws(draw: st.DrawFn) -> LatencyLaw:
    mean = draw(durations)
    return LatencyLaw(mean, draw(st.floats(0, mean)))


@st.composite
def latency_specs(draw: st.DrawFn) -> LatencySpec:
    pairs = draw(st.lists(st.tuples(names, names), max_size=4, unique_by=frozenset))
    links = [LinkLatency(a, b, draw(latency_laws()), draw(st.booleans())) for a, b in pairs if a != b]
    return LatencySpec(draw(latency_laws()), tuple(links))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0.0", 0.0),
        ("-0ms", 0.0),
        ("500us", 0.0005),
        ("500µs", 0.0005),
        ("12ms", 0.012),
        ("0.3ms", 0.0003),
        (".5s", 0.5),
        (" 2 s ", 2.0),
        ("1e3ms", 1.0),
        ("1m", 60.0),
        ("1.5h", 5400.0),
        ("24h", DURATION_MAX),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert math.copysign(1, parse_duration(text)) == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("5", "'5' has no unit; write for example 5ms"),
        ("0.01", "has no unit"),
        ("", "is not a duration"),
        ("ms", "is not a duration"),
        ("1,5ms", "is not a duration"),
        ("5 parsecs", "unknown unit; one of us, ms, s, m (minutes), h"),
        ("5MS", "unknown unit"),
        ("-1ms", "'-1ms' is outside 0 to 86400s"),
        ("25h", "outside 0 to 86400s"),
        ("1e999s", "outside 0 to 86400s"),
        ("nan", "is not a duration"),
        ("infs", "is not a duration"),
        ("١ms", "is not a duration"),
        ("1ms1ms", "is not a duration"),
        ("9" * 20_000, "is not a duration"),
    ],
)
def test_a_bad_duration_is_refused_and_named(text: str, why: str) -> None:
    with pytest.raises(BadOption, match=f"^--mesh-latency: .*{re.escape(why)}") as caught:
        parse_duration(text, field="--mesh-latency")
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, UsageError)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0"), (0.0005, "500us"), (0.0003, "300us"), (0.012, "12ms"), (2.0, "2s"), (90.0, "90s"), (1e-9, "0.001us")],
)
def test_durations_are_written_with_a_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(durations)
def test_a_duration_reads_back_to_the_same_float(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_reads_back_to_the_same_float(value: float) -> None:
    assert parse_number(format_number(value), field="n", low=-math.inf, high=math.inf) == value


@pytest.mark.parametrize("text", ["", "x", "1_000", "inf", "nan", "0x10", "1 2"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match=r"^weight: "):
        parse_number(text, field="weight", low=0, high=1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 86_401.0, True, "1"])
def test_bad_seconds_are_refused(value: float) -> None:
    with pytest.raises(BadOption, match=r"^after: "):
        check_duration(value, "after")


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 1.1, True, "1"])
def test_bad_numbers_are_refused(value: float) -> None:
    with pytest.raises(BadOption, match=r"^weight: "):
        check_number(value, "weight", low=0, high=1)


def test_a_spec_without_names_counts_for_all_links() -> None:
    spec = parse_latency("1ms~0.3ms")
    assert spec.law("r0", "r1") == spec.law("r3", "r2") == LatencyLaw(0.001, 0.0003)


def test_a_pair_has_its_latency_both_ways_and_the_rest_has_the_default() -> None:
    spec = parse_latency("1ms;r0-r1=20ms")
    assert spec.law("r0", "r1").mean == spec.law("r1", "r0").mean == 0.020
    assert spec.law("r0", "r2").mean == 0.001


def test_a_direction_counts_more_than_its_pair_whatever_their_order() -> None:
    for text in ("r0-r1=20ms;r0>r1=5ms", "r0>r1=5ms;r0-r1=20ms"):
        spec = parse_latency(text)
        assert spec.law("r0", "r1").mean == 0.005
        assert spec.law("r1", "r0").mean == 0.020
        assert spec.law("r1", "r2").mean == 0.0


def test_names_with_dashes_need_the_one_way_form() -> None:
    spec = parse_latency("eu-1>us-1=40ms;us-1>eu-1=50ms")
    assert spec.law("eu-1", "us-1").mean == 0.040
    assert spec.law("us-1", "eu-1").mean == 0.050


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1", "mean: '1' has no unit"),
        ("1ms~2", "jitter: '2' has no unit"),
        ("1ms~2ms", "jitter: 2ms is more than the mean 1ms"),
        ("1ms;2ms", "second latency for all links"),
        ("r0-r1=1ms;r1-r0=2ms", "already has a latency"),
        ("r0>r1=1ms;r0>r1=2ms", "already has a latency"),
        ("r0=1ms", "names no pair"),
        ("r0-r0=1ms", "no link to itself"),
        ("-r1=1ms", "'' is not the name of a replica"),
        ("a-b-c=1ms", "a name with a dash needs each direction by itself"),
        ("r0>r1>r2=1ms", "is not the name of a replica"),
        ("1ms;", "'' is a second latency for all links"),
        ("", "is not a duration"),
        ("1ms" * 10_000, "more than 10000 characters"),
    ],
)
def test_a_bad_latency_is_refused_and_named(text: str, why: str) -> None:
    with pytest.raises(BadOption, match=f"^--mesh-latency: .*{re.escape(why)}"):
        parse_latency(text, field="--mesh-latency")


@given(latency_specs())
def test_a_latency_reads_back_to_an_equal_one(spec: LatencySpec) -> None:
    assert parse_latency(str(spec)) == spec


@given(latency_laws(), st.integers())
def test_a_sampled_latency_stays_within_its_jitter(law: LatencyLaw, seed: int) -> None:
    rng = Random(seed)
    slack = 1e-9 * law.mean
    for _ in range(20):
        assert max(0.0, law.mean - law.jitter - slack) <= law.sample(rng) <= law.mean + law.jitter + slack


def test_the_sampled_latency_has_its_mean() -> None:
    rng, law = Random(1), LatencyLaw(0.010, 0.004)
    mean = math.fsum(law.sample(rng) for _ in range(20_000)) / 20_000
    assert mean == pytest.approx(0.010, abs=4 * 0.004 / math.sqrt(3 * 20_000))
