"""What ``tiedreq.core.names`` leaves out for speed is looked at here: that ``new`` is given all fields of its kind."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tiedreq
from tiedreq.core import names
from tiedreq.core.names import new

PACKAGE = Path(tiedreq.__file__).parent


class Pair(NamedTuple):
    """Two fields, one with a default that ``new`` knows nothing of."""

    first: int
    second: int = 2


class Use(NamedTuple):
    """``new`` somewhere in the code: the kind's name, and how many fields it is given; None: that can't be told."""

    module: str
    line: int
    kind: str
    given: int | None


def _fields(function: ast.AST, argument: ast.expr) -> int | None:
    """How many fields a tuple has that stands there, or was given a name in the same function."""
    if isinstance(argument, ast.Name):
        named = [
            node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            and ast.dump(node.targets[0]) == ast.dump(ast.Name(argument.id, ast.Store()))
        ]
        argument = named[0] if len(named) == 1 else argument
    if not isinstance(argument, ast.Tuple) or any(isinstance(part, ast.Starred) for part in argument.elts):
        return None
    return len(argument.elts)


def _uses() -> Iterator[Use]:
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(("tiedreq", *path.relative_to(PACKAGE).with_suffix("").parts))
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in ("new", "tuple.__new__"):
                    kind, argument = node.args
                    yield Use(module, node.lineno, ast.unparse(kind), _fields(function, argument))


def test_new_is_given_all_fields() -> None:
    uses = list(_uses())
    assert len(uses) > 20
    for use in uses:
        kind = getattr(importlib.import_module(use.module), use.kind)
        assert use.given == len(kind._fields), f"{use.module}, line {use.line}: {use.kind} has {kind._fields}"


@pytest.mark.parametrize(
    ("given", "found"), [("(1, 2)", 2), ("both", 2), ("(1, *rest)", None), ("unknown", None), ("()", 0)]
)
def test_fields_are_counted(given: str, found: int | None) -> None:
    function = ast.parse(f"def make():\n    both = (1, 2)\n    return new(Pair, {given})").body[0]
    (call,) = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    assert _fields(function, call.args[1]) == found


def test_new_makes_what_the_kind_itself_makes() -> None:
    made = new(Pair, (1, 2))
    assert type(made) is Pair and made == Pair(1) and repr(made) == repr(Pair(1))


def test_the_names_are_those_of_the_members() -> None:
    others: dict[str, Any] = {"NO_CAUSE": "NONE", "OVER": "DONE", "STARTED_MARK": "STARTED"}
    members = {name: member for name, member in vars(names).items() if name.isupper()}
    assert len(members) > 20
    for name, member in members.items():
        assert member.name == others.get(name, name)
