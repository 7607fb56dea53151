"""docs/cases.md names every case once, and tests that exist; what it says of Hypothesis holds for every test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import hypothesis
import pytest

from tests.tidy._tree import ROOT

CASES = (
    "01 02 03 06 07 09 10 11 12 14 15 17 18 19 21 22 23 24 27 28 29 30 32 34 35 37 38 39 40 42 43 46 47 48 50 51 53 "
    "55 56 57"
).split()
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows() -> dict[str, str]:
    """What stands in the table, by case; a case that stands twice is an error."""
    found: dict[str, str] = {}
    for line in (ROOT / "docs" / "cases.md").read_text().splitlines():
        if match := re.match(r"\| B(\d\d) \| [^|]+ \| (.+) \|$", line):
            assert match[1] not in found
            found[match[1]] = match[2]
    return found


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds) and node.name.startswith("test_"))


def missing_in(text: str) -> list[str]:
    """The tests that a text names and that are not there."""
    named = NAMED.findall(text)
    assert text.count(".py::") == len(named)
    return [f"{path}::{test}" for path, test in named if test not in names_in(path)]


def test_tests_that_the_page_on_security_names_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    assert len(NAMED.findall(page)) > 10 and not missing_in(page)


def test_every_case_has_its_row() -> None:
    assert list(rows()) == CASES


@pytest.mark.parametrize("case", CASES)
def test_a_row_names_tests_that_exist_or_says_why_there_are_none(case: str) -> None:
    row = rows()[case]
    assert not missing_in(row)
    assert NAMED.search(row) or "out of scope" in row


def modules_with(word: str) -> Iterator[tuple[str, ast.Module]]:
    """The modules of tests in which ``word`` stands."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if word in text:
            yield str(path.relative_to(ROOT)), ast.parse(text)


def is_settings(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name == "settings"


def test_no_example_has_a_time_limit() -> None:
    """B56: an example that starts a loop takes as long as the machine lets it; only the test as a whole has a limit."""
    for profile in ("dev", "ci", "nightly"):
        assert hypothesis.settings.get_profile(profile).deadline is None
    limited = [
        f"{path}:{node.lineno}"
        for path, tree in modules_with("settings(")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and is_settings(node)
        for option in node.keywords
        if option.arg == "deadline" and not (isinstance(option.value, ast.Constant) and option.value.value is None)
    ]
    assert not limited


def decorated_by_given(function: ast.AsyncFunctionDef | ast.FunctionDef) -> bool:
    return any("given(" in ast.unparse(decorator) for decorator in function.decorator_list)


def fixtures_with_clocks(function: ast.AsyncFunctionDef | ast.FunctionDef) -> list[str]:
    return [each.arg for each in function.args.args if each.arg in ("autojump_clock", "mock_clock", "nursery")]


def test_a_loop_is_made_inside_the_example() -> None:
    """B56: a clock or a nursery that all examples of a test share would carry one example's time into the next."""
    functions = [
        (path, node)
        for path, tree in modules_with("given(")
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) and decorated_by_given(node)
    ]
    assert len(functions) > 10
    assert not [f"{path}:{node.name}" for path, node in functions if fixtures_with_clocks(node)]
    assert not [f"{path}:{node.name}" for path, node in functions if isinstance(node, ast.AsyncFunctionDef)]
