"""A path through a small world as a numbered history, for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tests.exhaustive.links import CALLER_SIDE
from tests.exhaustive.parts import NAMES
from tests.exhaustive.world import Move, World
from tiedreq.core.commands import (
    CancelCopy,
    CompleteCall,
    FinishDrain,
    SendCaller,
    SendCopy,
    SendPeer,
    StartWork,
    StopWork,
)
from tiedreq.core.messages import Ended, Message, Submit
from tiedreq.core.types import UNTIED, CopyId


def tell(world: World, path: Iterable[Move]) -> list[str]:
    """The moves of ``path``, one line each, with what the cores decided."""
    return [f"{number:3}. {_line(world, move)}" for number, move in enumerate(path, 1)]


def _line(world: World, move: Move) -> str:
    name = process(move.who)
    what = f"{name} {move.what}"
    if move.what.startswith("hears"):
        letter = world.tables.letters[move.about]
        what = f"{name} {move.what} {message(letter.message)} from {process(letter.sender)}, link {letter.link}"
    elif isinstance(move.about, int):
        ends = " - ".join(process(end) for end in world.links.ends(move.about))
        what = f"{name}: {move.what}, link {move.about} ({ends})"
    elif move.about is not None:
        what = f"{name}: {move.what}{_copy_in(move.about)}"
    told = [text for effect in move.effects for text in _commands(world, effect)]
    mark = " [fault]" if move.fault else ""
    return what + mark + (f"  =>  {'; '.join(told)}" if told else "")


def process(who: int) -> str:
    """The name of a process."""
    return "caller" if who == CALLER_SIDE else NAMES[who]


def copy(identity: CopyId) -> str:
    """A copy's identity, short: call, then round and rank."""
    if identity.rank == UNTIED:
        return f"[call {identity.number} untied {identity.round}]"
    return f"[call {identity.number} round {identity.round} rank {identity.rank}]"


def message(sent: Message) -> str:
    """A message, short."""
    name = type(sent).__name__
    identity = getattr(sent, "copy", None)
    text = f"{name} {copy(identity)}" if identity is not None else name
    if isinstance(sent, Submit):
        return f"{text} ({sent.kind.label})"
    if isinstance(sent, Ended):
        return f"{text} ({sent.state.label}, {sent.cause.label})"
    return text


def _copy_in(given: Any) -> str:
    event = getattr(given, "event", None)
    identity = getattr(event, "copy", None)
    return f" {copy(identity)}" if isinstance(identity, CopyId) else ""


def _commands(world: World, effect: int) -> Iterator[str]:
    for command in world.tables.effects[effect].commands:
        match command:
            case SendPeer(link, sent) | SendCaller(link, sent):
                yield f"sends {message(sent)} on {link}"
            case SendCopy(link, submit):
                yield f"sends {message(submit)} on {link}"
            case CancelCopy(link, identity):
                yield f"cancels {copy(identity)} on {link}"
            case StartWork(submit):
                yield f"starts {copy(submit.copy)}"
            case StopWork(identity, cause):
                yield f"stops {copy(identity)} ({cause.label})"
            case CompleteCall(outcome):
                yield f"the call ends {outcome.kind.name.lower()}"
            case FinishDrain():
                yield "has drained"
