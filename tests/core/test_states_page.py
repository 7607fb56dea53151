"""docs/states.md says what the tables say. That it is current is checked by scripts/check."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts import _states


def test_every_row_is_on_the_page_once_in_the_table_and_once_in_the_diagram() -> None:
    page = _states.page()
    for _, source, table in _states.SECTIONS:
        assert source in page
        for state, target, triggers in _states.arrows(table):
            told = ", ".join(map(_states.spoken, triggers))
            assert f"| {state.name} | {told} | {target.name} |" in page
            assert f"    {state.name} --> {target.name} : {told}" in page
        assert sum(len(triggers) for _, _, triggers in _states.arrows(table)) == len(table.rows)


def test_terminal_states_are_those_that_nothing_leads_out_of() -> None:
    copy, call, dialer, acceptor = (table for _, _, table in _states.SECTIONS)
    assert [state.name for state in _states.ends(copy)] == [
        state.name for state in type(copy.initial) if getattr(state, "terminal", False)
    ]
    for table, name in ((call, "DONE"), (dialer, "CLOSED"), (acceptor, "CLOSED")):
        assert [state.name for state in _states.ends(table)] == [name]


def test_check_tells_a_stale_page_and_writing_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_states, "PAGE", tmp_path / "states.md")
    monkeypatch.setattr(sys, "argv", ["_states.py", "--check"])
    assert _states.main() == 1
    assert "+## A copy, at its replica" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["_states.py"])
    assert _states.main() == 0
    monkeypatch.setattr(sys, "argv", ["_states.py", "--check"])
    assert _states.main() == 0
    assert capsys.readouterr().out == ""
