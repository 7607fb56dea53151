"""The language of expectations: what it says, and what it refuses."""

import pytest

from cluster.compare.expect import check_expectations, parse_expectation
from cluster.compare.rows import COLUMNS, Row
from tiedreq.core.errors import BadOption


def row(policy: str, **values: float | None) -> Row:
    return {**dict.fromkeys(COLUMNS), "policy": policy, **values}


GROUP = {"tied": row("tied", p999_ms=60.0, errors=0), "tied-classic": row("tied-classic", p999_ms=200.0)}


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("tied.p999_ms < 0.7 * tied-classic.p999_ms", True),
        ("tied.p999_ms<tied-classic.p999_ms*.3", False),
        ("tied.p999_ms <= 60", True),
        ("tied.p999_ms > 60", False),
        ("tied.errors == 0", True),
        ("tied-classic.p999_ms - tied.p999_ms >= 100 + 40", True),
        ("tied-classic.p999_ms - tied.p999_ms >= 1e2 + 41", False),
        ("2 * 3 * tied.p999_ms == 360", True),
    ],
)
def test_what_it_says(text: str, met: bool) -> None:
    failures, checks = check_expectations([parse_expectation(text)], [GROUP])
    assert (checks, not failures) == (1, met)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tied.p999_ms",
        "tied.p999_ms < ",
        "1 < 2",
        "tied.p999_ms < 2 < 3",
        "tied.p999_ms < * 2",
        "tied.p999_ms 3 < 2",
        "tied.nothing < 2",
        "tied.policy < 2",
        "tied.p999_ms_ci < 2",
        "tied.p999_ms < __import__('os')",
        "tied.p999_ms < 2 / 3",
        "tied.p999_ms < " + "1 + " * 200 + "1",
    ],
)
def test_what_is_not_understood_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadOption, match=r"^expect: [^\n]*$"):
        parse_expectation(text)


def test_a_failure_names_its_rows_and_numbers() -> None:
    (failure,), _ = check_expectations([parse_expectation("tied.p999_ms < 0.1 * tied-classic.p999_ms")], [GROUP])
    assert [told["policy"] for told in failure.rows] == ["tied", "tied-classic"]
    assert failure.why == "60 < 20 is not so"


def test_null_meets_nothing() -> None:
    failures, _ = check_expectations([parse_expectation("tied.p50_ms >= 0")], [GROUP])
    assert failures[0].why == "null >= 0 is not so"


def test_a_group_without_one_of_the_policies_is_passed_over() -> None:
    assert check_expectations([parse_expectation("hedged.p50_ms >= tied.p50_ms")], [GROUP]) == ([], 0)
