import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.demo.arguments import Arguments
from tiedreq.service import Failure

Read = Callable[[Arguments], object]


def arguments(values: Any) -> Arguments:
    return Arguments(values, known=("text", "number", "whole", "choice"))


READERS: dict[str, Read] = {
    "text": lambda a: a.text("text", longest=5),
    "number": lambda a: a.number("number", 0.5, 10),
    "whole": lambda a: a.whole_number("whole", 1, 10, default=3),
    "choice": lambda a: a.choice("choice", ("red", "blue"), default="red"),
}


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("text", "abc", "abc"),
        ("number", 1, 1.0),
        ("number", 0.5, 0.5),
        ("whole", 10, 10),
        ("whole", None, 3),
        ("choice", "blue", "blue"),
        ("choice", None, "red"),
    ],
)
def test_good_arguments_are_read(field: str, value: object, read: object) -> None:
    assert READERS[field](arguments({field: value})) == read


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("text", None, "text: is missing"),
        ("text", 5, "text: a text is needed, not a whole number"),
        ("text", b"abc", "text: a text is needed, not bytes"),
        ("text", "", "text: 0 characters; 1 to 5 are allowed"),
        ("text", "abcdef", "text: 6 characters; 1 to 5 are allowed"),
        ("text", "a\0b", "text: holds a character that is no text"),
        ("text", "\ud800", "text: holds a character that is no text"),
        ("number", "1", "number: a number is needed, not a text"),
        ("number", True, "number: a number is needed, not true or false"),
        ("number", math.nan, "number: outside 0.5 to 10"),
        ("number", math.inf, "number: outside 0.5 to 10"),
        ("number", 10**400, "number: outside 0.5 to 10"),
        ("whole", 0, "whole: outside 1 to 10"),
        ("whole", 11, "whole: outside 1 to 10"),
        ("whole", 3.0, "whole: a whole number is needed, not a number with a fraction"),
        ("whole", True, "whole: a whole number is needed, not true or false"),
        ("choice", "green", "choice: one of red, blue is needed"),
        ("choice", [], "choice: one of red, blue is needed"),
    ],
)
def test_bad_arguments_name_the_field_and_the_limit(field: str, value: object, why: str) -> None:
    with pytest.raises(Failure, match=re.escape(why)) as caught:
        READERS[field](arguments({field: value}))
    assert caught.value.code == "bad_argument"
    assert not caught.value.retryable


@pytest.mark.parametrize("values", [5, "text", [1], True, {"size": 1}, {1: 2}, {"x" * 10_000: 1}])
def test_what_is_no_map_of_known_fields_is_refused(values: Any) -> None:
    with pytest.raises(Failure, match=r"^bad_argument: arguments: ") as caught:
        arguments(values)
    assert len(str(caught.value)) < 400


def test_no_arguments_are_an_empty_map() -> None:
    assert READERS["whole"](arguments(None)) == 3


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(), st.lists))
def test_whatever_is_sent_is_read_or_refused(value: Any) -> None:
    for field, read in READERS.items():
        for values in (value, {field: value}):
            try:
                read(arguments(values))
            except Failure as failure:
                assert failure.code == "bad_argument"
