"""House rules: what each module must have, how long things may get, what must not be written anywhere."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy._tree import ROOT, files, found_below, listed_by_git, modules

SOURCE = modules("tiedreq", "cluster", "scripts")
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

# Modules that may be longer than that, each with its own limit. Better to split one than to add one.
LONGER: dict[str, int] = {}

# What stands at the top of the repository. A new entry belongs here when it belongs to the project.
TOP = frozenset(
    ".ci .containerignore .gitattributes .gitignore CHANGELOG.md CONTRIBUTING.md LICENSE README.md SECURITY.md cluster "
    "deploy docs examples pyproject.toml requirements scripts tests tiedreq".split()
)

# Spelled in parts, so that this file is not its own finding.
HOSTS = [
    r"\b" + re.escape(".".join(parts)) + r"\b"
    for parts in [
        ("pypi", "org"),
        ("files", "pythonhosted", "org"),
        ("registry", "npmjs", "org"),
        ("deb", "debian", "org"),
        ("security", "debian", "org"),
        ("crates", "io"),
        ("proxy", "golang", "org"),
    ]
]
INDEX_OPTIONS = [r"--(extra-)?index-url[ =]\S", r"--find-links[ =]\S", r"--trusted-host[ =]\S"]
UNFINISHED = [rf"\b{first}{second}\b" for first, second in [("TO", "DO"), ("FIX", "ME"), ("XX", "X")]]
HOMES = [r"(?<![\w.~-])/(root|home|Users)/\w"]


def texts() -> Iterator[tuple[Path, str]]:
    for path in files():
        try:
            yield path, (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def matches(patterns: list[str], text: str) -> list[str]:
    pattern = re.compile("|".join(f"(?:{part})" for part in patterns))
    return [f"line {n}: {line.strip()[:120]}" for n, line in enumerate(text.splitlines(), 1) if pattern.search(line)]


def found(patterns: list[str]) -> list[str]:
    return [f"{path} {match}" for path, text in texts() for match in matches(patterns, text)]


def has_docstring(source: str) -> bool:
    return bool((ast.get_docstring(ast.parse(source)) or "").strip())


def long_functions(source: str, limit: int) -> list[str]:
    """Functions of more than ``limit`` lines, their docstrings not counted."""
    return [
        f"line {node.lineno}: {node.name} has {length} lines"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (length := lines_of(node)) > limit
    ]


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    length = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        length -= (first.end_lineno or first.lineno) - first.lineno + 1
    return length


@pytest.mark.parametrize("path", SOURCE, ids=str)
class TestModule:
    def test_has_a_docstring(self, path: Path) -> None:
        assert has_docstring((ROOT / path).read_text())

    def test_is_not_too_long(self, path: Path) -> None:
        lines = len((ROOT / path).read_text().splitlines())
        assert lines <= LONGER.get(str(path), MODULE_LINES_MAX), "split it by what a reader looks for"

    def test_has_no_long_function(self, path: Path) -> None:
        assert not long_functions((ROOT / path).read_text(), FUNCTION_LINES_MAX)


def test_longer_modules_are_needed() -> None:
    sizes = {str(path): len((ROOT / path).read_text().splitlines()) for path in SOURCE}
    assert not [name for name in LONGER if sizes.get(name, 0) <= MODULE_LINES_MAX], "take these off the list"


def test_without_git_no_file_is_overlooked() -> None:
    try:
        listed = listed_by_git()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git here")
    assert set(listed) <= set(found_below(ROOT))


def test_top_of_the_repository() -> None:
    assert {path.parts[0] for path in files()} <= TOP


def test_no_foreign_lock_file() -> None:
    assert not [path for path in files() if path.suffix == ".lock" or path.name.endswith("-lock.json")]


def test_nothing_unfinished() -> None:
    assert not found(UNFINISHED), "finish it, or file an issue"


def test_no_package_index() -> None:
    assert not found(HOSTS + INDEX_OPTIONS), "where packages come from is the machine's business"


def test_no_path_of_a_machine() -> None:
    here = [] if len(ROOT.parts) < 3 else [re.escape(str(ROOT)) + r"\b"]
    assert not found(HOMES + here)


def test_these_rules_can_fail() -> None:
    assert not has_docstring("import os") and not has_docstring('"""  """')
    assert has_docstring('"""What it does."""')

    body = "def f():\n    '''One\n    two.'''\n" + "    g()\n" * 5
    assert long_functions(body, 5) == ["line 1: f has 6 lines"]
    assert long_functions(body, 6) == []
    assert long_functions("class C:\n    async def f(self):\n" + "        g()\n" * 5, 5)

    assert matches(UNFINISHED, "ok\n# " + "TO" + "DO: more") == ["line 2: # " + "TO" + "DO: more"]
    assert not matches(UNFINISHED, "methodology, mastodon")
    assert matches(HOSTS, "https://" + "pypi" + ".org/simple")
    assert matches(INDEX_OPTIONS, "pip install --index-url" + " https://a.test")
    assert not matches(HOSTS + INDEX_OPTIONS, "wss://a:7000 https://example.org --no-emit-index-url")
    assert matches(HOMES, "cd " + "/ho" + "me/someone/x") and matches(HOMES, '"' + "/ro" + 'ot/x"')
    assert not matches(HOMES, "~/home/x ./root/x GET api/root/x")
