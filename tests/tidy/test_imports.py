"""The walls between the packages, as far as they concern single modules and the standard library.

import-linter (in scripts/check) follows chains of imports between the layers; these tests read the import statements,
also those below functions and `if TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.tidy._tree import ROOT, module_name, modules

# A core that touches one of these would decide differently in another process, or on another day.
IMPURE = frozenset(
    "asyncio concurrent ctypes datetime io logging multiprocessing os pathlib queue secrets select selectors signal "
    "socket ssl subprocess sys tempfile threading time uuid warnings".split()
)
# Writes docs/states.md from the tables: a program, which nothing in core may import.
STATES = "tiedreq.core.statesdoc"


@dataclass(frozen=True)
class Import:
    line: int
    name: str
    """Absolute; `package.module` or `module.attribute` for a `from` import."""

    def below(self, *packages: str) -> bool:
        return any(self.name == package or self.name.startswith(package + ".") for package in packages)


def imports(name: str, tree: ast.AST, *, is_package: bool = False) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".")
                above = parts[: len(parts) - node.level + is_package]
                base = ".".join([*above, *filter(None, [base])])
            yield from (Import(node.lineno, f"{base}.{alias.name}") for alias in node.names)


def seeds_itself(tree: ast.AST) -> bool:
    """Whether `Random()` is made here, seeded by the machine, instead of taken as an argument."""
    return any(
        isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "Random" and not node.args
        for node in ast.walk(tree)
    )


def core(found: Import) -> str | None:
    if found.below("tiedreq") and not found.below("tiedreq.core"):
        return "core knows nothing of tiedreq's other packages"
    if found.below(STATES):
        return "statesdoc is a program, not a part of core"
    if found.below("random") and found.name != "random.Random":
        return "core takes random numbers from a `random.Random` that it is given"
    if found.below(*IMPURE):
        return "core is pure: time and the world come in as arguments and go out as commands"
    if found.below("trio", "trio_websocket", "msgpack", "click", "rich"):
        return "core needs the standard library's data types only"
    return None


def wire(found: Import) -> str | None:
    if found.below("tiedreq") and not found.below("tiedreq.core", "tiedreq.wire"):
        return "wire knows core alone"
    if found.below("trio", "trio_websocket", "time", "random", "asyncio", "socket"):
        return "wire is pure"
    return None


def net(found: Import) -> str | None:
    return "net doesn't know sim" if found.below("tiedreq.sim") else None


def sim(found: Import) -> str | None:
    if found.below("tiedreq.net"):
        return "sim doesn't know net"
    if found.below("trio", "trio_websocket", "asyncio", "time"):
        return "sim runs in virtual time, without a loop"
    return None


def library(found: Import) -> str | None:
    if found.below("cluster", "tests", "scripts"):
        return "the library doesn't know the programs"
    return None


def not_the_websocket_module(found: Import) -> str | None:
    if found.below("trio_websocket", "wsproto"):
        return "tiedreq.net.websocket is the only one to know the websocket library"
    return None


def not_the_http_module(found: Import) -> str | None:
    if found.below("h11"):
        return "only tiedreq.observe.http and tiedreq.proxy speak HTTP by themselves"
    return None


Rule = Callable[[Import], str | None]
RULES: dict[str, Rule] = {
    "tiedreq.core": core,
    "tiedreq.wire": wire,
    "tiedreq.net": net,
    "tiedreq.sim": sim,
    "tiedreq": library,
}


def violations(name: str, source: str, *, is_package: bool = False) -> list[str]:
    tree = ast.parse(source)
    inside = f"{name}."
    rules = [rule for package, rule in RULES.items() if inside.startswith(f"{package}.") and name != STATES]
    if name != "tiedreq.net.websocket":
        rules.append(not_the_websocket_module)
    if name != "tiedreq.observe.http" and not inside.startswith("tiedreq.proxy."):
        rules.append(not_the_http_module)
    found = sorted(imports(name, tree, is_package=is_package), key=lambda entry: entry.line)
    told = [
        f"{name}:{entry.line} imports {entry.name}: {reason}"
        for entry in found
        for rule in rules
        if (reason := rule(entry))
    ]
    if inside.startswith("tiedreq.core.") and seeds_itself(tree):
        told.append(f"{name} makes a Random() of its own: {core(Import(0, 'random.random'))}")
    return told


@pytest.mark.parametrize("path", modules("tiedreq", "cluster"), ids=str)
def test_module_keeps_to_its_side_of_the_walls(path) -> None:
    source = (ROOT / path).read_text()
    assert not violations(module_name(path), source, is_package=path.name == "__init__.py")


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tiedreq.core.replica", "import trio"),
        ("tiedreq.core.replica", "import time"),
        ("tiedreq.core.replica", "def f():\n    from time import monotonic"),
        ("tiedreq.core.replica", "from random import random"),
        ("tiedreq.core.replica", "from random import Random\nr = Random()"),
        ("tiedreq.core.replica", "import os.path"),
        ("tiedreq.core.replica", "import logging, dataclasses"),
        ("tiedreq.core.replica", "from tiedreq.errors import BadOption"),
        ("tiedreq.core.replica", "from ..wire import codec"),
        ("tiedreq.core.replica", "from .. import errors"),
        ("tiedreq.core.replica", "from tiedreq.core import statesdoc"),
        ("tiedreq.core.replica", "from tiedreq import wire"),
        ("tiedreq.wire.codec", "from tiedreq.service import Service"),
        ("tiedreq.wire.codec", "import trio"),
        ("tiedreq.net.server", "from tiedreq import sim"),
        ("tiedreq.net.server", "import tiedreq.sim.clock"),
        ("tiedreq.net.server", "import trio_websocket"),
        ("tiedreq.sim.world", "import trio.testing"),
        ("tiedreq.sim.world", "from ..net import link"),
        ("tiedreq.cli", "import cluster.up"),
        ("tiedreq.cli", "from cluster import up"),
        ("cluster.up", "from trio_websocket import serve_websocket"),
        ("tiedreq.net.websocket", "import h11"),
    ],
)
def test_a_breach_is_found(name: str, source: str) -> None:
    assert len(violations(name, source)) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tiedreq.core.replica", "from random import Random\nimport dataclasses, heapq\nfrom . import workqueue"),
        ("tiedreq.core.replica", "from tiedreq.core.types import CopyId\nfrom .types import Load"),
        ("tiedreq.core.statesdoc", "import sys, pathlib\nfrom tiedreq.core import copy_table"),
        ("tiedreq.corelike", "import trio"),
        ("tiedreq.wire.codec", "import msgpack\nfrom tiedreq.core import messages\nfrom .limits import WireLimits"),
        ("tiedreq.net.websocket", "import trio, trio_websocket"),
        ("tiedreq.net.server", "import trio\nfrom .websocket import dial"),
        (
            "tiedreq.sim.world",
            "from tiedreq.core import replica\nfrom tiedreq.wire import codec\nfrom random import Random",
        ),
        ("cluster.up", "import trio, tiedreq.net, tiedreq.sim"),
        ("tiedreq.proxy.listener", "import h11, trio"),
    ],
)
def test_what_is_allowed_passes(name: str, source: str) -> None:
    assert violations(name, source) == []


def test_relative_imports_are_resolved() -> None:
    tree = ast.parse("from . import a\nfrom .b import c\nfrom ..d import e")
    assert [entry.name for entry in imports("p.q.module", tree)] == ["p.q.a", "p.q.b.c", "p.d.e"]
    assert [entry.name for entry in imports("p.q", tree, is_package=True)] == ["p.q.a", "p.q.b.c", "p.d.e"]
