"""The registry of broken cores. Each is a subclass of a production core with a rule of the design broken, and says in
its docstring which.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import pytest

from tests.mutants import (
    brake_mutants,
    call_mutants,
    exclusive_mutants,
    link_mutants,
    replica_mutants,
    telling_mutants,
)
from tiedreq.core.budget import LinkLostBudget, WorkBudget
from tiedreq.core.call import CallCore
from tiedreq.core.governor import Governor
from tiedreq.core.lessons import CallAccount
from tiedreq.core.link import LinkCore
from tiedreq.core.pulse import Pulse
from tiedreq.core.replica import ReplicaCore

PARTS: dict[type, tuple[str, ...]] = {
    WorkBudget: ("tiedreq.core.learning.WorkBudget", "tests.properties.test_brake.WorkBudget"),
    LinkLostBudget: ("tiedreq.core.learning.LinkLostBudget", "tests.properties.test_brake.LinkLostBudget"),
    Governor: ("tiedreq.core.learning.Governor", "tests.properties.test_governor.Governor"),
    CallAccount: ("tiedreq.core.call.CallAccount", "tiedreq.core.call_copies.CallAccount"),
    Pulse: ("tiedreq.core.link.Pulse",),
}
"""Parts of cores that mutants stand in for, and where they are made."""


@dataclass(frozen=True)
class Mutant:
    """Three cores of which at most one is broken, or a part of one. ``rule`` is the place in the design, ``broken``
    what is wrong.
    """

    name: str
    rule: str
    broken: str
    replica_core: type[ReplicaCore] = ReplicaCore
    call_core: type[CallCore] = CallCore
    link_core: type[LinkCore] = LinkCore
    part: type | None = None

    @contextmanager
    def put_in(self) -> Iterator[None]:
        """Let the part stand in for the right one, wherever that is made."""
        with pytest.MonkeyPatch.context() as patch:
            for base, places in PARTS.items():
                if self.part is not None and issubclass(self.part, base):
                    for place in places:
                        patch.setattr(place, self.part)
            yield


UNBROKEN = Mutant("unbroken", "", "nothing")
"""The control: the production cores."""


def _mutants_of(module: ModuleType) -> list[Mutant]:
    found = []
    for kind in vars(module).values():
        if not isinstance(kind, type) or kind.__module__ != module.__name__ or ": " not in (kind.__doc__ or ""):
            continue
        rule, _, broken = inspect.cleandoc(kind.__doc__ or "").partition(": ")
        name = re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).lower()
        told = " ".join(broken.split())
        if issubclass(kind, ReplicaCore):
            found.append(Mutant(name, rule, told, replica_core=kind))
        elif issubclass(kind, CallCore):
            found.append(Mutant(name, rule, told, call_core=kind))
        elif issubclass(kind, LinkCore):
            found.append(Mutant(name, rule, told, link_core=kind))
        elif issubclass(kind, tuple(PARTS)):
            found.append(Mutant(name, rule, told, part=kind))
    return found


MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for module in (
        replica_mutants,
        telling_mutants,
        exclusive_mutants,
        call_mutants,
        brake_mutants,
        link_mutants,
    )
    for mutant in _mutants_of(module)
}
