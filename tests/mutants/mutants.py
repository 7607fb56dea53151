"""The registry of broken cores. Each is a subclass of a production core with a rule of the design broken, and says in
its docstring which.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from types import ModuleType

from tests.mutants import call_mutants, exclusive_mutants, replica_mutants
from tiedreq.core.call import CallCore
from tiedreq.core.replica import ReplicaCore


@dataclass(frozen=True)
class Mutant:
    """Two cores of which at most one is broken. ``rule`` is the place in the design, ``broken`` what is wrong."""

    name: str
    rule: str
    broken: str
    replica_core: type[ReplicaCore] = ReplicaCore
    call_core: type[CallCore] = CallCore


UNBROKEN = Mutant("unbroken", "", "nothing")
"""The control: the production cores."""


def _mutants_of(module: ModuleType) -> list[Mutant]:
    found = []
    for kind in vars(module).values():
        if not isinstance(kind, type) or kind.__module__ != module.__name__:
            continue
        rule, _, broken = inspect.cleandoc(kind.__doc__ or "").partition(": ")
        name = re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).lower()
        told = " ".join(broken.split())
        if issubclass(kind, ReplicaCore):
            found.append(Mutant(name, rule, told, replica_core=kind))
        elif issubclass(kind, CallCore):
            found.append(Mutant(name, rule, told, call_core=kind))
    return found


MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for module in (replica_mutants, exclusive_mutants, call_mutants)
    for mutant in _mutants_of(module)
}
