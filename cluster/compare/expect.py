"""What a comparison must show: ``tied.p999_ms < 0.7 * hedged.p999_ms``, checked for every group of rows.

The language: sums and differences of products of numbers and ``POLICY.column``, on both sides of ``<``, ``<=``, ``>``,
``>=`` or ``==``. A group is the rows that share all but the policy. A value that a row doesn't have (null) makes the
expectation fail. Not a general evaluator: nothing else is understood, and nothing is executed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from cluster.compare.rows import COLUMNS, Row, Value
from tiedreq.core.errors import BadOption

__all__ = ["Expectation", "Failure", "check_expectations", "parse_expectation"]

LENGTH_MAX = 500
EXAMPLE = "tied.p999_ms < 0.7 * hedged.p999_ms"
NOT_NUMBERS = frozenset(name for name in COLUMNS if name.endswith("_ci")) | {"world", "scenario", "policy", "stable"}

_TOKEN = re.compile(
    r"\s*(?:(?P<reference>[a-z]+(?:-[a-z]+)*\.[a-z0-9_]+)|(?P<number>[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<compare><=|>=|==|<|>)|(?P<sign>[*+-]))"
)
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}


class Reference(NamedTuple):
    """A number of the row of a policy."""

    policy: str
    column: str

    def __str__(self) -> str:
        return f"{self.policy}.{self.column}"


Factor = float | Reference


class Term(NamedTuple):
    """A product, counted with its sign."""

    sign: int
    factors: tuple[Factor, ...]


class Expectation(NamedTuple):
    """A parsed expectation; ``text`` is as it was written."""

    text: str
    left: tuple[Term, ...]
    compare: str
    right: tuple[Term, ...]

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that it speaks of, each once."""
        terms = self.left + self.right
        return tuple(
            dict.fromkeys(factor.policy for term in terms for factor in term.factors if isinstance(factor, Reference))
        )


class Failure(NamedTuple):
    """An expectation that a group of rows doesn't meet, and the numbers in words."""

    expectation: Expectation
    rows: tuple[Row, ...]
    why: str


def parse_expectation(text: str) -> Expectation:
    """Read an expectation. Raises ``BadOption`` that says what is not understood."""
    if len(text) > LENGTH_MAX:
        raise BadOption(f"expect: more than {LENGTH_MAX} characters")
    tokens = _tokens(text)
    compares = [index for index, (kind, _) in enumerate(tokens) if kind == "compare"]
    if len(compares) != 1:
        raise BadOption(f"expect: {text!r} is no comparison; write for example '{EXAMPLE}'")
    middle = compares[0]
    expectation = Expectation(
        text.strip(), _terms(tokens[:middle], text), tokens[middle][1], _terms(tokens[middle + 1 :], text)
    )
    if not expectation.policies:
        raise BadOption(f"expect: {text!r} names no POLICY.column; write for example '{EXAMPLE}'")
    return expectation


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, position, text = [], 0, text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            wrong = text[position : position + 40].strip()
            raise BadOption(f"expect: {wrong!r} is not understood in {text!r}; write for example '{EXAMPLE}'")
        assert match.lastgroup is not None
        tokens.append((match.lastgroup, match[match.lastgroup]))
        position = match.end()
    return tokens


def _terms(tokens: list[tuple[str, str]], text: str) -> tuple[Term, ...]:
    terms: list[Term] = []
    sign, factors, awaited = 1, list[Factor](), True
    for kind, token in tokens:
        if kind in ("reference", "number"):
            if not awaited:
                raise BadOption(f"expect: something is missing before {token!r} in {text!r}")
            factors.append(float(token) if kind == "number" else _reference(token))
            awaited = False
        elif awaited:
            raise BadOption(f"expect: a number or POLICY.column is missing before {token!r} in {text!r}")
        else:
            awaited = True
            if token != "*":
                terms.append(Term(sign, tuple(factors)))
                sign, factors = (1 if token == "+" else -1), []
    if awaited:
        raise BadOption(f"expect: a number or POLICY.column is missing in {text!r}")
    return (*terms, Term(sign, tuple(factors)))


def _reference(token: str) -> Reference:
    policy, _, column = token.partition(".")
    if column not in COLUMNS:
        raise BadOption(f"expect: there is no column {column!r}")
    if column in NOT_NUMBERS:
        raise BadOption(f"expect: {column} is not a number")
    return Reference(policy, column)


def check_expectations(
    expectations: Iterable[Expectation], groups: Iterable[Mapping[str, Row]]
) -> tuple[list[Failure], int]:
    """What is not met, and how many checks were made. A group maps policies to rows that share all else.

    A group without one of the policies (its row was not finished) is passed over.
    """
    failures, checks = [], 0
    groups = list(groups)
    for expectation in expectations:
        for group in groups:
            if all(policy in group for policy in expectation.policies):
                checks += 1
                failure = _check(expectation, group)
                if failure is not None:
                    failures.append(failure)
    return failures, checks


def _check(expectation: Expectation, group: Mapping[str, Row]) -> Failure | None:
    rows = tuple(group[policy] for policy in expectation.policies)
    left, right = _value(expectation.left, group), _value(expectation.right, group)
    if left is not None and right is not None and _COMPARE[expectation.compare](left, right):
        return None
    return Failure(expectation, rows, f"{_shown(left)} {expectation.compare} {_shown(right)} is not so")


def _value(terms: Iterable[Term], group: Mapping[str, Row]) -> float | None:
    total = 0.0
    for term in terms:
        product = float(term.sign)
        for factor in term.factors:
            number = _number(group[factor.policy][factor.column]) if isinstance(factor, Reference) else factor
            if number is None:
                return None
            product *= number
        total += product
    return total


def _number(value: Value) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _shown(value: float | None) -> str:
    return "null" if value is None else f"{value:g}"
