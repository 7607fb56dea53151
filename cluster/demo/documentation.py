"""Read the documentation of the standard library from its source, without importing any of it.

Every ``.py`` file is parsed with ``ast``. What has a public name and a docstring becomes an ``Entry``, and so does
every public class. A name that a package re-exports is listed as callers know it: ``asyncio.run``, not
``asyncio.runners.run``.

Invariants: nothing is executed, a file that can't be read, decoded or parsed is left out and the rest goes on, the same
tree gives the same entries in the same order. Not for modules written in C: they have no docstrings in the source.
"""

from __future__ import annotations

import ast
import os
import stat
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

FILE_BYTES_MAX = 1_000_000
"""Longer files are data, not code, and are left out."""

DOC_LENGTH_MAX = 20_000
"""Docstrings are cut here, in characters."""

SUMMARY_LENGTH_MAX = 200
SIGNATURE_LENGTH_MAX = 500

SKIPPED_DIRECTORIES = frozenset(
    {
        "dist-packages",
        "encodings",
        "ensurepip",
        "idle_test",
        "idlelib",
        "pydoc_data",
        "site-packages",
        "test",
        "tests",
        "turtledemo",
    }
)
"""Tests, what was installed, whole programs, and tables that are only written as code."""

PUBLIC_NAMES = {
    "_collections_abc": "collections.abc",
    "_pydatetime": "datetime",
    "_pydecimal": "decimal",
    "_pyio": "io",
    "posixpath": "os.path",
}
"""Modules that hold, in Python source, what is known by the name of another module."""

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Entry:
    """One documented thing. ``kind`` is ``module``, ``class``, ``function`` or ``method``.

    ``name`` is dotted and complete, ``signature`` is empty for a module, ``summary`` is the docstring's first line.
    A class may have no docstring; then ``summary`` and ``doc`` are empty.
    """

    name: str
    kind: str
    signature: str
    summary: str
    doc: str


def read_documentation(root: Path) -> Iterator[Entry]:
    """The public modules, classes, functions and methods below ``root``, each name once."""
    seen: set[str] = set()
    for directory, subdirectories, files in os.walk(root):
        subdirectories[:] = sorted(name for name in subdirectories if _is_searched(name))
        parts = Path(directory).relative_to(root).parts
        for entry in _read_directory(Path(directory), ".".join(parts), files):
            if entry.name not in seen:
                seen.add(entry.name)
                yield entry


class _Exports:
    """What a package's ``__init__`` imports from the package's own modules."""

    def __init__(self, package: str, tree: ast.Module | None = None) -> None:
        self.package = package
        self._names: dict[str, set[str]] = {}
        for node in _imports(tree.body) if tree else ():
            source = "." * node.level + (node.module or "")
            module = source.removeprefix("." if node.level else f"{package}.")
            if module != source:
                self._names.setdefault(module, set()).update(alias.name for alias in node.names)

    def has_any(self, module: str) -> bool:
        """True when any name of ``module`` is also the package's."""
        return module in self._names

    def has(self, module: str, name: str, listed: set[str] | None) -> bool:
        """True when ``name`` of ``module`` is also the package's; ``listed`` is the module's ``__all__``."""
        names = self._names.get(module, set())
        return name in names or ("*" in names and (listed is None or name in listed))


def _imports(body: list[ast.stmt]) -> Iterator[ast.ImportFrom]:
    """The imports of a module, those in a module-level ``__getattr__`` (imported on first use) included."""
    for node in body:
        match node:
            case ast.ImportFrom():
                yield node
            case ast.FunctionDef(name="__getattr__") | ast.If() | ast.Try():
                yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.ImportFrom))


def _is_searched(directory: str) -> bool:
    return directory.isidentifier() and not directory.startswith("_") and directory not in SKIPPED_DIRECTORIES


def _read_directory(directory: Path, package: str, files: list[str]) -> Iterator[Entry]:
    exports = _Exports(package)
    modules = [file.removesuffix(".py") for file in files if file.endswith(".py")]
    # The package itself comes first, for its exports; the stand-ins last, so that the module proper describes itself.
    for module in sorted(modules, key=lambda name: (name != "__init__", name in PUBLIC_NAMES, name)):
        name = _public_name(package, module)
        tree = _parse(directory / f"{module}.py") if name or exports.has_any(module) else None
        if tree is None:
            continue
        if module == "__init__":
            exports = _Exports(package, tree)
        try:
            yield from list(_read_module(tree, module, name, exports))
        except RecursionError:
            continue  # A signature that is nested deeper than the interpreter's stack.


def _public_name(package: str, module: str) -> str | None:
    """The name that callers know a module by; None for a private one, of which only the package's exports count."""
    if module == "__init__":
        return package or None
    if not package and module in PUBLIC_NAMES:
        return PUBLIC_NAMES[module]
    if module.startswith("_") or not module.isidentifier():
        return None
    return f"{package}.{module}" if package else module


def _parse(path: Path) -> ast.Module | None:
    """The file's syntax tree, or None when it can't be had."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        with path.open("rb") as file:
            source = file.read(FILE_BYTES_MAX + 1)
        if len(source) > FILE_BYTES_MAX:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Old escape sequences in strings are not our concern.
            return ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _read_module(tree: ast.Module, module: str, name: str | None, exports: _Exports) -> Iterator[Entry]:
    doc = ast.get_docstring(tree)
    if doc and name:
        yield _entry(name, "module", "", doc)
    listed = _listed(tree)
    for node in _definitions(tree.body):
        home = exports.package if exports.has(module, node.name, listed) else name
        if home:
            yield from _read_definition(node, home, "function")


def _read_definition(node: _Function | ast.ClassDef, prefix: str, kind: str) -> Iterator[Entry]:
    name = f"{prefix}.{node.name}"
    doc = ast.get_docstring(node)
    if isinstance(node, ast.ClassDef):
        # Every public class is listed: without a docstring of its own, by what it says of how it is made.
        yield _entry(name, "class", _class_signature(node), doc or _initializer_doc(node))
        for inner in _definitions(node.body):
            yield from _read_definition(inner, name, "method")
    elif doc:
        yield _entry(name, kind, _function_signature(node), doc)


def _initializer_doc(node: ast.ClassDef) -> str:
    initializers = (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    return next((ast.get_docstring(n) or "" for n in initializers), "")


def _definitions(body: list[ast.stmt]) -> Iterator[_Function | ast.ClassDef]:
    """The public definitions in ``body``, those under ``if``, ``try`` and ``with`` included."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not node.name.startswith("_"):
                yield node
        elif isinstance(node, ast.If):
            yield from _definitions(node.body + node.orelse)
        elif isinstance(node, ast.Try | ast.TryStar):
            handlers = [statement for handler in node.handlers for statement in handler.body]
            yield from _definitions(node.body + handlers + node.orelse + node.finalbody)
        elif isinstance(node, ast.With):
            yield from _definitions(node.body)


def _listed(tree: ast.Module) -> set[str] | None:
    """The module's ``__all__`` where it is written out, else None."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=items) | ast.Tuple(elts=items)):
                return {item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)}
    return None


def _class_signature(node: ast.ClassDef) -> str:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    return f"class {node.name}({bases})" if bases else f"class {node.name}"


def _function_signature(node: _Function) -> str:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    return f"{word} {node.name}({ast.unparse(node.args)}){returns}"


def _entry(name: str, kind: str, signature: str, doc: str) -> Entry:
    doc = _clean(doc)[:DOC_LENGTH_MAX].strip()
    summary = doc.partition("\n")[0].strip()[:SUMMARY_LENGTH_MAX]
    return Entry(name, kind, _clean(signature)[:SIGNATURE_LENGTH_MAX], summary, doc)


def _clean(text: str) -> str:
    """``text`` without what UTF-8 and SQLite can't carry: lone surrogates and NUL."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "")
