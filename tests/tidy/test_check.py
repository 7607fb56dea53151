"""The runner of the checks: all are run, each has its line, one failure fails the whole."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from tests.tidy._tree import ROOT


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_check", ROOT / "scripts" / "_check.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "_check", module)  # dataclasses look there
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["scripts/check"])
    return module


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_all_are_run_when_one_fails(runner, capsys, monkeypatch) -> None:
    checks = (
        runner.Check("one", python("print('hidden')")),
        runner.Check("two", python("import sys; print('the reason'); sys.exit(3)")),
        runner.Check("three", python("import sys; sys.exit(3)")),
        runner.Check("four", python("")),
        runner.Check("five", python("raise SystemExit(1)"), needs="no/such/file"),
    )
    monkeypatch.setattr(runner, "CHECKS", checks)
    assert runner.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if line.endswith(" s") or "no/such" in line] == [
        ["ok", "one"],
        ["FAIL", "two"],
        ["FAIL", "three"],
        ["ok", "four"],
        ["none", "five"],
    ]
    assert "the reason" in lines and "exit code 3" in lines and "hidden" not in lines


def test_nothing_failed(runner, capsys, monkeypatch) -> None:
    monkeypatch.setattr(runner, "CHECKS", (runner.Check("one", python("")),))
    assert runner.main() == 0
    assert capsys.readouterr().out.startswith("ok ")


def test_fix_comes_before_the_check(runner, tmp_path, monkeypatch) -> None:
    mark = str(tmp_path / "mark")
    check = runner.Check("one", python(f"open({mark!r})"), fix=python(f"open({mark!r}, 'w').close()"))
    monkeypatch.setattr(runner, "CHECKS", (check,))
    assert runner.main() == 1
    monkeypatch.setattr(sys, "argv", ["scripts/check", "--fix"])
    assert runner.main() == 0
