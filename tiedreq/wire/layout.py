"""The type code and the fields of every message: the one table that encoding, decoding and the documentation follow.

A message travels as an array: its type code, then its fields in the order of its class. Codes 1 to 19 belong to the
link, 20 to 39 pass between a caller and a replica, 40 to 59 are notices between replicas (Started also goes to the
caller).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tiedreq.core import messages as m
from tiedreq.core.types import UNTIED
from tiedreq.wire import fields as f
from tiedreq.wire import limits as lim

LINK_CODES = range(1, 20)
CALLER_CODES = range(20, 40)
PEER_CODES = range(40, 60)


def _no_rule(_message: Any) -> None:
    """Fields that are right one by one are right together."""


class Layout(NamedTuple):
    """How one message travels: its code, its class, a check per field, and a rule over several fields."""

    code: int
    message: type[Any]
    checks: tuple[f.Check, ...]
    rule: Callable[[Any], None] = _no_rule

    @property
    def name(self) -> str:
        """The message's name."""
        return self.message.__name__

    @property
    def field_names(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        names: tuple[str, ...] = self.message._fields
        return names

    @property
    def required(self) -> int:
        """How many fields there must be; those after them came later, and have a default where they are missing."""
        return len(self.message._fields) - len(self.message._field_defaults)


def _hello_makes_sense(hello: m.Hello) -> None:
    if hello.protocol_min > hello.protocol_max:
        raise f.BadField("protocol_min up to protocol_max")
    if hello.role == "replica" and not hello.name:
        raise f.BadField("a replica to have a name")


def _rank_among_partners(submit: m.Submit) -> None:
    rank, partners = submit.copy.rank, submit.partners
    if rank == UNTIED:
        if partners:
            raise f.BadField("no partners for an untied copy")
    elif not max(lim.PARTNERS_MIN, rank + 1) <= len(partners):
        raise f.BadField("a partner for each rank of a tie")


def _empty_only_last(chunk: m.Chunk) -> None:
    if not chunk.data and not chunk.last:
        raise f.BadField("data in a chunk that is not the last")


LAYOUTS = (
    Layout(
        1,
        m.Hello,
        (f.version, f.version, f.name_or_none, f.role, f.name_or_none, f.identifier, f.challenge, f.proof_or_none),
        _hello_makes_sense,
    ),
    Layout(2, m.Proof, (f.proof_or_none,)),
    Layout(3, m.Welcome, (f.count, f.flag, f.count, f.methods, f.name_or_none)),
    Layout(4, m.Goodbye, (f.code, f.reason)),
    Layout(5, m.Heartbeat, (f.identifier,)),
    Layout(6, m.HeartbeatEcho, (f.identifier,)),
    Layout(7, m.Chunk, (f.identifier, f.flag, f.chunk_data), _empty_only_last),
    Layout(8, m.Unsupported, (f.type_code,)),
    Layout(9, m.Draining, ()),
    Layout(
        20,
        m.Submit,
        (
            f.copy,
            f.kind,
            f.method,
            f.payload,
            f.seconds,
            f.partners,
            f.flag,
            f.flag,
            f.flag,
            f.key,
            f.metadata,
            f.optional_window,
        ),
        _rank_among_partners,
    ),
    Layout(21, m.Cancel, (f.copy,)),
    Layout(22, m.Result, (f.copy, f.payload, f.seconds, f.seconds, f.load)),
    Layout(
        23,
        m.Failed,
        (f.copy, f.code, f.failure_text, f.payload, f.flag, f.seconds, f.seconds, f.load),
    ),
    Layout(24, m.Ended, (f.copy, f.end_state, f.cause, f.seconds, f.seconds, f.load)),
    Layout(25, m.Report, (f.notice_latencies,)),
    Layout(26, m.Inquiry, (f.identifier, f.name_or_none)),
    Layout(27, m.Status, (f.identifier, f.payload)),
    Layout(28, m.Item, (f.copy, f.identifier, f.payload, f.seconds, f.seconds, f.optional_load)),
    Layout(29, m.Credit, (f.copy, f.granted, f.granted)),
    Layout(40, m.Started, (f.copy, f.seconds, f.optional_load)),
    Layout(41, m.Next, (f.copy, f.seconds)),
    Layout(42, m.Claim, (f.copy, f.identifier, f.identifier)),
    Layout(43, m.Granted, (f.copy,)),
    Layout(44, m.Denied, (f.copy, f.flag)),
)
