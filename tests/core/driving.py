"""What a driver does between messages and events, without a network."""

from __future__ import annotations

from tiedreq.core import events as e
from tiedreq.core import messages as m
from tiedreq.core.picker import ReplicaView
from tiedreq.core.types import Load


def replica_event(link: int, message: m.Message) -> e.ReplicaEvent | None:
    """What a message is to the replica that it reaches."""
    match message:
        case m.Submit():
            return e.SubmitReceived(link, message)
        case m.Cancel(copy):
            return e.CancelReceived(link, copy)
        case m.Started(copy, remaining):
            return e.PeerStarted(link, copy, remaining)
        case m.Next(copy, remaining):
            return e.PeerNext(link, copy, remaining)
        case m.Claim(copy, arbiter, claimant):
            return e.PeerClaimed(link, copy, arbiter, claimant)
        case m.Granted(copy):
            return e.ClaimGranted(link, copy)
        case m.Denied(copy, started):
            return e.ClaimDenied(link, copy, started)
        case _:
            return None


def call_event(link: int, message: m.Message, *, bad: bytes) -> e.CallEvent:
    """What a message is to the call that it is about; ``bad`` is the payload that ``accept`` turns down."""
    match message:
        case m.Started(copy=copy):
            return e.CopyStarted(link, copy)
        case m.Result(copy, payload, service_time, queue_wait):
            return e.ResultReceived(link, copy, payload != bad, service_time, queue_wait)
        case m.Failed(copy, code, text, details, retryable, service_time):
            return e.FailureReceived(link, copy, code, text, details, retryable, service_time)
        case m.Ended(copy, state, cause, retry_after, service_time):
            return e.CopyEnded(link, copy, state, cause, retry_after, service_time)
        case _:
            raise AssertionError(f"a client gets no {type(message).__name__} about a copy")


def tell_view(view: ReplicaView, message: m.Message, now: float) -> None:
    """What a message says of the replica that sent it."""
    load = getattr(message, "load", None)
    if isinstance(load, Load):
        view.take_load(load, now)
    if isinstance(message, m.Draining):
        view.draining = True
    if isinstance(message, m.Report):
        view.notice_latencies = dict(message.notice_latencies)
