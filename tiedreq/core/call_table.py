"""The transitions of a call at its client."""

from __future__ import annotations

from enum import IntEnum

from tiedreq.core.transitions import Table


class CallState(IntEnum):
    """Where a call is. Only a stream is ever STREAMING: its race is decided, and its winner goes on."""

    NEW = 0
    RACING = 1
    WAITING = 2
    DONE = 3
    STREAMING = 4


class CallTrigger(IntEnum):
    """What moves a call."""

    ROUND_SENT = 0
    NONE_REACHABLE = 1
    ANSWERED = 2
    FAILED = 3
    ROUNDS_SPENT = 4
    DEADLINE_PASSED = 5
    CANCELLED = 6
    CONTENT_CAME = 7
    BROKE_OFF = 8


_S = CallState
_T = CallTrigger

CALL_TABLE: Table[CallState, CallTrigger] = Table(
    "call",
    CallState.NEW,
    {
        (_S.NEW, _T.ROUND_SENT): _S.RACING,
        (_S.NEW, _T.NONE_REACHABLE): _S.WAITING,
        (_S.NEW, _T.DEADLINE_PASSED): _S.DONE,
        (_S.NEW, _T.CANCELLED): _S.DONE,
        (_S.RACING, _T.ROUND_SENT): _S.RACING,
        (_S.RACING, _T.NONE_REACHABLE): _S.WAITING,
        (_S.RACING, _T.ANSWERED): _S.DONE,
        (_S.RACING, _T.FAILED): _S.DONE,
        (_S.RACING, _T.ROUNDS_SPENT): _S.DONE,
        (_S.RACING, _T.DEADLINE_PASSED): _S.DONE,
        (_S.RACING, _T.CANCELLED): _S.DONE,
        (_S.WAITING, _T.ROUND_SENT): _S.RACING,
        (_S.WAITING, _T.NONE_REACHABLE): _S.WAITING,
        (_S.WAITING, _T.ANSWERED): _S.DONE,
        (_S.WAITING, _T.FAILED): _S.DONE,
        (_S.WAITING, _T.ROUNDS_SPENT): _S.DONE,
        (_S.WAITING, _T.DEADLINE_PASSED): _S.DONE,
        (_S.WAITING, _T.CANCELLED): _S.DONE,
        (_S.RACING, _T.CONTENT_CAME): _S.STREAMING,
        (_S.WAITING, _T.CONTENT_CAME): _S.STREAMING,
        (_S.STREAMING, _T.ANSWERED): _S.DONE,
        (_S.STREAMING, _T.FAILED): _S.DONE,
        (_S.STREAMING, _T.BROKE_OFF): _S.DONE,
        (_S.STREAMING, _T.DEADLINE_PASSED): _S.DONE,
        (_S.STREAMING, _T.CANCELLED): _S.DONE,
    },
    {
        _T.ROUND_SENT: "copies went out: the first ones, or a new round after all were gone",
        _T.NONE_REACHABLE: "no reachable replica takes work; no round is spent (a backup may still be alive)",
        _T.ANSWERED: "an acceptable answer came; a stream has ended in order",
        _T.FAILED: "a failure that ends the race: not retryable, or nothing is left that may be tried",
        _T.ROUNDS_SPENT: "all copies are gone and the rounds are spent",
        _T.DEADLINE_PASSED: "the call's time is up",
        _T.CANCELLED: "the user cancelled",
        _T.CONTENT_CAME: "(streams) the first item with content decides the race; the losers are cancelled",
        _T.BROKE_OFF: "(streams) the winner is lost, or ended, in the middle",
    },
)
