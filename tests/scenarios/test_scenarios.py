"""Golden transcripts of the named races. ``pytest tests/scenarios --rewrite`` writes them anew.

Every cluster of a scenario ends in calm, which is not in its transcript: all faults are mended and nothing may be left.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.core.calm import calm
from tests.scenarios.language import BadLine, Stage
from tests.scenarios.transcript import Block, parse, render

FOLDER = Path(__file__).parent
RACES = FOLDER.parent.parent / "docs" / "races.md"
FILES = sorted(FOLDER.glob("*.txt"))


def play(blocks: list[Block]) -> list[Block]:
    """The same blocks with what really happened; at the end nothing may be left."""
    stage = Stage()
    played = []
    for block in blocks:
        told: list[str] = []
        for line in block.commands:
            if line.startswith("cluster ") and stage.replicas:
                assert calm(stage.triangle, stage.replicas) == []
            told += stage.run(line)
        played.append(block.told(told or ["ok"]) if block.commands else block)
    assert calm(stage.triangle, stage.replicas) == []
    return played


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    blocks = parse(path.read_text())
    told = render(play(blocks))
    if request.config.getoption("--rewrite", default=False):
        path.write_text(told)
    assert told == path.read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_has_a_title_and_its_history_is_told(path: Path) -> None:
    assert path.read_text().startswith("# ")
    assert f"tests/scenarios/{path.name}" in RACES.read_text()


def test_every_history_has_its_scenario() -> None:
    named = set(re.findall(r"tests/scenarios/([\w-]+\.txt)", RACES.read_text()))
    assert named == {path.name for path in FILES}


def test_the_same_scenario_twice_tells_the_same() -> None:
    blocks = parse(FILES[0].read_text())
    assert play(blocks) == play(blocks)


def test_a_rewritten_file_keeps_its_comments_and_commands() -> None:
    text = "# Title\n\n# why\ncluster ab\n----\nold\n\n# end\n"
    assert render(parse(text)) == text
    assert "old" not in render(play(parse(text)))


@pytest.mark.parametrize(
    "line", ["sing", "deliver", "deliver u>a Song", "settle a x=1", "call fast", "call tied speed=3", "cancel 1 2"]
)
def test_a_line_that_says_nothing_known_is_an_error(line: str) -> None:
    stage = Stage()
    with pytest.raises(BadLine):
        stage.run("flush")
    stage.run("cluster ab")
    stage.run("call plain")
    with pytest.raises(BadLine):
        stage.run(line)
