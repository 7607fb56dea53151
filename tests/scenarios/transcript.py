"""The text of a scenario: blocks of commands, ``----``, and what they led to; comments begin with ``#``.

Blocks are parted by an empty line. The first comment is the title. Rewriting keeps comments and commands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

RULER = "----"


@dataclass(frozen=True)
class Block:
    """Comments, then commands, then the expected lines; one without commands is a comment of its own."""

    comments: tuple[str, ...]
    commands: tuple[str, ...]
    expected: tuple[str, ...]

    def render(self) -> str:
        lines = [*self.comments, *self.commands]
        if self.commands:
            lines += [RULER, *self.expected]
        return "\n".join(lines)

    def told(self, lines: list[str]) -> Block:
        return replace(self, expected=tuple(lines))


def parse(text: str) -> list[Block]:
    blocks = []
    for chunk in text.strip("\n").split("\n\n"):
        lines = [line.rstrip() for line in chunk.strip("\n").split("\n")]
        at = lines.index(RULER) if RULER in lines else len(lines)
        comments = [line for line in lines[:at] if line.startswith("#")]
        commands = [line for line in lines[:at] if line and not line.startswith("#")]
        blocks.append(Block(tuple(comments), tuple(commands), tuple(lines[at + 1 :])))
    return blocks


def render(blocks: list[Block]) -> str:
    return "\n\n".join(block.render() for block in blocks) + "\n"
