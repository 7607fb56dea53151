"""Policies and limits: frozen, printable, and refused at once when they are wrong."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tiedreq.core.checks import check_count, check_flag, check_number
from tiedreq.core.errors import BadOption, UsageError
from tiedreq.core.limits import ClientLimits, ReplicaLimits
from tiedreq.core.policy import Auto, Backup, Hedged, Plain, Policy, Tied, check_policy

BACKUP = Backup(after=0.03)


# ---- values ---------------------------------------------------------------------------------------------------


def test_policies_are_values_that_print_themselves() -> None:
    policy = Tied(copies=3, stagger=0.001, backup=BACKUP, exclusive=True, yield_=False)
    assert eval(repr(policy)) == policy
    assert hash(policy) == hash(dataclasses.replace(policy))
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.copies = 4  # type: ignore[misc]


def test_whole_numbers_of_seconds_become_floats() -> None:
    backup = Backup(after=1, min_after=0)
    assert (type(backup.after), type(backup.min_after), type(Tied(backup=None, stagger=1).stagger)) == (
        float,
        float,
        float,
    )


def test_a_delay_is_at_least_its_minimum_and_the_ceiling_a_multiple_with_a_floor() -> None:
    assert Backup(after=0.0).delay == 0.001
    assert Backup(after=0.0).ceiling == 0.25
    assert Backup(after=0.1).ceiling == 1.0
    assert Backup(after=0.01, min_after=0.2).delay == 0.2
    assert (Backup().delay, Backup().ceiling) == (None, 0.25)
    assert (Backup(after="p99.5").quantile, Backup().quantile) == (pytest.approx(0.995), None)


# ---- refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [-0.1, 3601, math.nan, math.inf, -math.inf, True, None, [], b"1"])
def test_seconds_that_are_none(bad: object) -> None:
    with pytest.raises(BadOption, match=r"^after: "):
        Backup(after=bad)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match=r"^min_after: "):
        Backup(after=1.0, min_after=bad)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match=r"^stagger: "):
        Tied(backup=None, stagger=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [0, 9, -1, 1.0, True, "2", None])
def test_counts_that_are_none(bad: object) -> None:
    with pytest.raises(BadOption, match=r"^max_per_call: "):
        Backup(after=1.0, max_per_call=bad)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match=r"^copies: "):
        Tied(backup=None, copies=bad)  # type: ignore[arg-type]


def test_counts_at_the_edge() -> None:
    assert (Tied(backup=None, copies=2).copies, Tied(backup=None, copies=8).copies) == (2, 8)
    with pytest.raises(BadOption, match="copies: 1 is not between 2 and 8"):
        Tied(backup=None, copies=1)
    assert (Backup(after=1, max_per_call=1).max_per_call, Backup(after=1, max_per_call=8).max_per_call) == (1, 8)


@pytest.mark.parametrize("bad", [0.03, "auto", Backup, Plain()])
def test_a_backup_that_is_none(bad: object) -> None:
    for make in (Hedged, lambda backup: Tied(backup=backup)):
        with pytest.raises(BadOption, match=r"^backup: "):
            make(bad)  # type: ignore[arg-type]


def test_other_fields_that_are_wrong() -> None:
    with pytest.raises(BadOption, match="since: 'sent' is not 'start' or 'send'"):
        Backup(after=1.0, since="sent")  # type: ignore[arg-type]
    for bad in ("soon", "p", "p0", "p100", "pnan", "95", "q95", ""):
        with pytest.raises(BadOption, match=r"after: .*is not 'auto', a number of seconds, or a percentile"):
            Backup(after=bad)
    for budget in (-0.1, 1.1, math.nan, True, "5%"):
        with pytest.raises(BadOption, match=r"^budget: "):
            Backup(budget=budget)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="backup: Auto needs a Backup"):
        Auto(None)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="observe_only: 1"):
        Plain(observe_only=1)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match=r"a hedged call needs a Backup\(since='send'"):
        Hedged(None)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="yield_: 1"):
        Tied(backup=None, yield_=1)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="exclusive: 'no'"):
        Tied(backup=None, exclusive="no")  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="stagger: 'slow'"):
        Tied(backup=None, stagger="slow")  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [Plain(), Hedged(BACKUP), Tied(backup=None), Tied(backup=BACKUP), Auto()])
def test_check_policy_takes_every_policy(policy: Policy) -> None:
    assert check_policy(policy) is policy


@pytest.mark.parametrize(("bad", "told"), [(Tied, r"write Tied\(\), not Tied"), ("tied", "'tied' is not"), (None, "")])
def test_check_policy_says_what_is_wrong(bad: object, told: str) -> None:
    with pytest.raises(BadOption, match=f"^policy: .*{told}"):
        check_policy(bad)


# ---- limits ---------------------------------------------------------------------------------------------------

FIELDS = [(kind, field) for kind in (ReplicaLimits, ClientLimits) for field in dataclasses.fields(kind)]


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=lambda value: getattr(value, "name", None))
def test_every_limit_is_checked(kind: type, field: dataclasses.Field[object]) -> None:
    counts = isinstance(field.default, int)
    most = 2**40 if "held" in field.name or "unfinished" in field.name else 100_000_000
    bad = (
        [0, -1, 1.5, True, "1", None, most + 1]
        if counts
        else [0.0, -1.0, math.nan, math.inf, True, "1", None, 86_401.0]
    )
    for value in bad:
        with pytest.raises(BadOption, match=f"^{field.name}: "):
            kind(**{field.name: value})
    for value in [1, most] if counts else [1e-6, 86_400]:
        made = getattr(kind(**{field.name: value}), field.name)
        assert made == value
        assert type(made) is type(field.default)


def test_limits_know_no_unknown_field_and_do_not_change() -> None:
    with pytest.raises(TypeError):
        ReplicaLimits(queue=1)  # type: ignore[call-arg]
    with pytest.raises(dataclasses.FrozenInstanceError):
        ReplicaLimits().queue_length_max = 2  # type: ignore[misc]


def test_checks_name_field_value_and_limit() -> None:
    with pytest.raises(BadOption, match=r"^timeout: 7 is not between 0 and 5$"):
        check_number("timeout", 7, 0, 5)
    with pytest.raises(BadOption, match=r"^timeout: 'x' is not a number from 0 to 5 seconds$"):
        check_number("timeout", "x", 0, 5, "seconds")
    with pytest.raises(BadOption, match=r"^slots: 2.0 is not a whole number from 1 to 5$"):
        check_count("slots", 2.0, 1, 5)
    assert check_flag("x", False) is False
    assert issubclass(BadOption, UsageError) and issubclass(BadOption, ValueError)
