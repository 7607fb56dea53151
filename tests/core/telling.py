"""Short names for copies, messages, events and commands, for traces that people read.

A copy is ``CALL/rROUND.RANK`` when it is tied and ``CALL/uSERIAL`` when it is not: ``1/r0.1`` is copy 1 of the first
tie of call 1, ``1/u0`` the first untied copy of call 1.
"""

from __future__ import annotations

import re

from tiedreq.core import commands as c
from tiedreq.core import events as e
from tiedreq.core import messages as m
from tiedreq.core.types import UNTIED, Cause, CopyId

NONCE = 0xC
_COPY = re.compile(r"(\d+)/(?:r(\d+)\.(\d+)|u(\d+))")


def copy_id(name: str, client: int = NONCE) -> CopyId:
    """The copy that ``name`` stands for."""
    found = _COPY.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not a copy: CALL/rROUND.RANK or CALL/uSERIAL")
    call, round_, rank, serial = found.groups()
    if serial is not None:
        return CopyId(client, int(call), int(serial), UNTIED)
    return CopyId(client, int(call), int(round_), int(rank))


def copy_name(copy: CopyId) -> str:
    return str(copy).partition("-")[2]


def tell_number(value: float) -> str:
    return f"{value:.6g}"


def _ending(state: object, cause: Cause) -> str:
    return f"{getattr(state, 'label', state)!s} ({cause.label})"


def tell_message(message: m.Message) -> str:
    name = type(message).__name__
    match message:
        case m.Submit(copy, kind, method, _, remaining, partners):
            tie = f" tie={','.join(partner.name for partner in partners)}" if partners else ""
            return f"{name} {copy_name(copy)} {kind.label} {method} remaining={tell_number(remaining)}{tie}"
        case m.Failed(copy=copy, code=code, retryable=retryable):
            return f"{name} {copy_name(copy)} {code}{' retryable' if retryable else ''}"
        case m.Ended(copy, state, cause, retry_after):
            hint = f" retry_after={tell_number(retry_after)}" if retry_after else ""
            return f"{name} {copy_name(copy)} {_ending(state, cause)}{hint}"
        case m.Denied(copy, started):
            return f"{name} {copy_name(copy)} ({'started' if started else 'unknown'})"
        case _:
            about = getattr(message, "copy", None)
            return f"{name} {copy_name(about)}" if isinstance(about, CopyId) else name


def tell_event(event: e.ReplicaEvent | e.CallEvent) -> str:
    name = type(event).__name__
    match event:
        case e.SubmitReceived(_, submit):
            return f"{name} {copy_name(submit.copy)}"
        case e.CopyEnded(_, copy, state, cause):
            return f"{name} {copy_name(copy)} {_ending(state, cause)}"
        case e.ResultReceived(_, copy, acceptable):
            return f"{name} {copy_name(copy)}{'' if acceptable else ' unacceptable'}"
        case e.FailureReceived(copy=copy, code=code, retryable=retryable):
            return f"{name} {copy_name(copy)} {code}{' retryable' if retryable else ''}"
        case e.WorkFinished(copy, outcome):
            told = {e.Answer: "returned", e.Fault: "raised"}.get(type(outcome), "stopped")
            return f"{name} {copy_name(copy)} {told}"
        case e.ClaimDenied(_, copy, started):
            return f"{name} {copy_name(copy)} ({'started' if started else 'unknown'})"
        case e.PeerConnected(_, peer):
            return f"{name} {peer.name}"
        case _:
            about = getattr(event, "copy", None)
            return f"{name} {copy_name(about)}" if isinstance(about, CopyId) else name


def tell_outcome(outcome: c.Outcome) -> str:
    by = f" by {copy_name(outcome.copy)}" if outcome.copy is not None else ""
    why = f" ({outcome.cause.label})" if outcome.cause != Cause.NONE else f" ({outcome.code})" if outcome.code else ""
    return f"{outcome.kind.name}{by}{why}"


def tell_command(command: c.ReplicaCommand | c.CallCommand, target: str) -> str:
    """One line; ``target`` is who is at the other end of the command's link, if it has one."""
    name = type(command).__name__
    match command:
        case c.SendPeer(_, message) | c.SendCaller(_, message):
            return f"{name} {target} {tell_message(message)}"
        case c.SendCopy(_, submit):
            return f"{name} {target} {tell_message(submit)}"
        case c.CancelCopy(_, copy):
            return f"{name} {target} {copy_name(copy)}"
        case c.StartWork(submit):
            return f"{name} {copy_name(submit.copy)}"
        case c.StopWork(copy, cause):
            return f"{name} {copy_name(copy)} ({cause.label})"
        case c.CompleteCall(outcome):
            return f"{name} {tell_outcome(outcome)}"
        case _:
            return name
