"""Shortcuts for the messages of every call: the usual shape of each, checked in one condition.

A reader returns the message, or None when anything at all is unusual; a tester says whether a message is fit to be
packed without a closer look. Neither decides that something is wrong: that is left to the layout's checks, which are
the only authority. (Written out because a call sends several of these: a check per field would cost four times more.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiedreq.core import messages as m
from tiedreq.core.types import UNTIED, CopyId, CopyKind, Identity, Load, Window
from tiedreq.wire.fields import END_STATES, RANK_MAX, WIRE_CAUSES
from tiedreq.wire.limits import (
    COUNT_MAX,
    KEY_CHARS_MAX,
    METADATA_KEY_CHARS_MAX,
    METADATA_VALUE_CHARS_MAX,
    METHOD_CHARS_MAX,
    NAME_CHARS_MAX,
    PARTNERS_MAX,
    SECONDS_MAX,
    WireLimits,
)

Reader = Callable[[tuple[Any, ...], WireLimits], Any]
Tester = Callable[[Any], bool]

_new = tuple.__new__
_KINDS = tuple(CopyKind)
_METADATA_ENTRIES = 4
_KNOWN_MAX = 256
_END_STATE = {int(state): state for state in END_STATES}
_CAUSE = {int(cause): cause for cause in WIRE_CAUSES}


def _copy(raw: Any) -> CopyId | None:
    if type(raw) is tuple and len(raw) == 4:
        client, number, round_, rank = raw
        if (
            type(client) is int
            and type(number) is int
            and type(round_) is int
            and type(rank) is int
            and client >= 0
            and number >= 0
            and round_ >= 0
            and UNTIED <= rank <= RANK_MAX
        ):
            return _new(CopyId, raw)
    return None


def _load(raw: Any) -> Load | None:
    if type(raw) is tuple and len(raw) == 4:
        queued, free, received, pushback = raw
        if (
            type(queued) is int
            and type(free) is int
            and type(received) is int
            and type(pushback) is float
            and 0 <= queued <= COUNT_MAX
            and 0 <= free <= COUNT_MAX
            and received >= 0
            and 0.0 <= pushback <= SECONDS_MAX
        ):
            return _new(Load, raw)
    return None


def _window(raw: Any) -> Window | None:
    if type(raw) is tuple and len(raw) == 3:
        items, size, judged = raw
        if type(items) is int and type(size) is int and type(judged) is bool and items > 0 and size > 0:
            return _new(Window, raw)
    return None


_known_partners: dict[tuple[Any, ...], tuple[Identity, ...]] = {}
_known_methods: dict[str, str] = {}
"""What was read before: the same few ties and methods come again and again. Read again, they are the same objects, so
that a queue of copies holds them once. At most ``_KNOWN_MAX`` of each, then all anew."""


def _partners(raw: tuple[Any, ...], rank: int) -> tuple[Identity, ...] | None:
    if not raw:
        return () if rank == UNTIED else None
    if not max(1, rank) < len(raw) <= PARTNERS_MAX or rank == UNTIED:
        return None
    try:
        known = _known_partners.get(raw)
    except TypeError:  # an empty map in it
        return None
    if known is not None:
        for row in raw:
            if type(row[1]) is not int:  # True and 1.0 are equal to 1
                return None
        return known
    checked = _check_partners(raw)
    if checked is not None:
        if len(_known_partners) >= _KNOWN_MAX:
            _known_partners.clear()
        _known_partners[checked] = checked
    return checked


def _remember_method(method: str) -> str:
    if len(_known_methods) >= _KNOWN_MAX:
        _known_methods.clear()
    _known_methods[method] = method
    return method


def _check_partners(raw: tuple[Any, ...]) -> tuple[Identity, ...] | None:
    names = set()
    for row in raw:
        if type(row) is not tuple or len(row) != 2:
            return None
        name, incarnation = row
        if not (type(name) is str and type(incarnation) is int and incarnation >= 0):
            return None
        if not (0 < len(name) <= NAME_CHARS_MAX and name.isprintable()):
            return None
        names.add(name)
    if len(names) != len(raw):
        return None
    return tuple([_new(Identity, row) for row in raw])


def _metadata(raw: Any) -> bool:
    """Up to four entries in order; more are left to the layout."""
    if type(raw) is not tuple or len(raw) > _METADATA_ENTRIES:
        return False
    previous = ""
    for row in raw:
        if type(row) is not tuple or len(row) != 2:
            return False
        key, value = row
        if not (type(key) is str and type(value) is str and previous < key and len(key) <= METADATA_KEY_CHARS_MAX):
            return False
        if len(value) > METADATA_VALUE_CHARS_MAX or not key.isprintable():
            return False
        previous = key
    return True


def read_submit(raw: tuple[Any, ...], limits: WireLimits) -> m.Submit | None:
    """A Submit with little metadata."""
    if len(raw) == 12:  # of a speaker that knows no streams
        raw = (*raw, None)
    elif len(raw) != 13:
        return None
    _, copy_raw, kind, method, payload, remaining, partners_raw, yield_, exclusive, layered, key, metadata, window = raw
    copy = _copy(copy_raw)
    if window is not None:
        window = _window(window)
        if window is None:
            return None
    if (
        copy is not None
        and type(kind) is int
        and 0 <= kind < len(_KINDS)
        and type(method) is str
        and 0 < len(method) <= METHOD_CHARS_MAX
        and method.isprintable()
        and type(payload) is bytes
        and len(payload) <= limits.payload_bytes_max
        and type(remaining) is float
        and 0.0 <= remaining <= SECONDS_MAX
        and type(partners_raw) is tuple
        and type(yield_) is bool
        and type(exclusive) is bool
        and type(layered) is bool
        and (key is None or (type(key) is str and 0 < len(key) <= KEY_CHARS_MAX))
        and (metadata == () or _metadata(metadata))
    ):
        partners = _partners(partners_raw, copy[3])
        if partners is not None:
            method = _known_methods.get(method) or _remember_method(method)
            return _new(
                m.Submit,
                (
                    copy,
                    _KINDS[kind],
                    method,
                    payload,
                    remaining,
                    partners,
                    yield_,
                    exclusive,
                    layered,
                    key,
                    metadata,
                    window,
                ),
            )
    return None


def read_cancel(raw: tuple[Any, ...], _limits: WireLimits) -> m.Cancel | None:
    """A Cancel."""
    if len(raw) == 2:
        copy = _copy(raw[1])
        if copy is not None:
            return _new(m.Cancel, (copy,))
    return None


def read_started(raw: tuple[Any, ...], _limits: WireLimits) -> m.Started | None:
    """A Started, to a caller or to a partner."""
    if len(raw) == 4:
        _, copy_raw, remaining, load_raw = raw
        copy = _copy(copy_raw)
        if copy is not None and type(remaining) is float and 0.0 <= remaining <= SECONDS_MAX:
            if load_raw is None:
                return _new(m.Started, (copy, remaining, None))
            load = _load(load_raw)
            if load is not None:
                return _new(m.Started, (copy, remaining, load))
    return None


def read_next(raw: tuple[Any, ...], _limits: WireLimits) -> m.Next | None:
    """A Next."""
    if len(raw) == 3:
        _, copy_raw, remaining = raw
        copy = _copy(copy_raw)
        if copy is not None and type(remaining) is float and 0.0 <= remaining <= SECONDS_MAX:
            return _new(m.Next, (copy, remaining))
    return None


def read_result(raw: tuple[Any, ...], limits: WireLimits) -> m.Result | None:
    """A Result."""
    if len(raw) != 6:
        return None
    _, copy_raw, payload, service_time, queue_wait, load_raw = raw
    copy = _copy(copy_raw)
    load = _load(load_raw)
    if (
        copy is not None
        and load is not None
        and type(payload) is bytes
        and len(payload) <= limits.payload_bytes_max
        and type(service_time) is float
        and type(queue_wait) is float
        and 0.0 <= service_time <= SECONDS_MAX
        and 0.0 <= queue_wait <= SECONDS_MAX
    ):
        return _new(m.Result, (copy, payload, service_time, queue_wait, load))
    return None


def read_item(raw: tuple[Any, ...], limits: WireLimits) -> m.Item | None:
    """An Item."""
    if len(raw) != 7:
        return None
    _, copy_raw, number, payload, service_time, queue_wait, load = raw
    copy = _copy(copy_raw)
    if load is not None:
        load = _load(load)
        if load is None:
            return None
    if (
        copy is not None
        and type(number) is int
        and number >= 0
        and type(payload) is bytes
        and len(payload) <= limits.payload_bytes_max
        and type(service_time) is float
        and type(queue_wait) is float
        and 0.0 <= service_time <= SECONDS_MAX
        and 0.0 <= queue_wait <= SECONDS_MAX
    ):
        return _new(m.Item, (copy, number, payload, service_time, queue_wait, load))
    return None


def read_ended(raw: tuple[Any, ...], _limits: WireLimits) -> m.Ended | None:
    """An Ended."""
    if len(raw) != 7:
        return None
    _, copy_raw, state_raw, cause_raw, retry_after, service_time, load_raw = raw
    if type(state_raw) is not int or type(cause_raw) is not int:
        return None
    copy = _copy(copy_raw)
    load = _load(load_raw)
    state = _END_STATE.get(state_raw)
    cause = _CAUSE.get(cause_raw)
    if (
        copy is not None
        and load is not None
        and state is not None
        and cause is not None
        and type(retry_after) is float
        and type(service_time) is float
        and 0.0 <= retry_after <= SECONDS_MAX
        and 0.0 <= service_time <= SECONDS_MAX
    ):
        return _new(m.Ended, (copy, state, cause, retry_after, service_time, load))
    return None


def fit_submit(message: m.Submit) -> bool:
    """What a user or the clock may have put outside its limits is inside them."""
    key, rank, ranks, window = message.key, message.copy.rank, len(message.partners), message.window
    return (
        0.0 <= message.remaining <= SECONDS_MAX
        and (max(1, rank) < ranks <= PARTNERS_MAX if rank != UNTIED else ranks == 0)
        and 0 < len(message.method) <= METHOD_CHARS_MAX
        and message.method.isprintable()
        and (message.metadata == () or _metadata(message.metadata))
        and (key is None or 0 < len(key) <= KEY_CHARS_MAX)
        and (window is None or (window.items > 0 and window.bytes > 0))
    )


def fit_cancel(_message: m.Cancel) -> bool:
    """Nothing in it comes from a user or a clock."""
    return True


def fit_started(message: m.Started) -> bool:
    """Its durations are inside their limits."""
    load = message.load
    return 0.0 <= message.remaining <= SECONDS_MAX and (load is None or 0.0 <= load.pushback <= SECONDS_MAX)


def fit_next(message: m.Next) -> bool:
    """Its duration is inside its limits."""
    return 0.0 <= message.remaining <= SECONDS_MAX


def fit_result(message: m.Result) -> bool:
    """Its durations are inside their limits."""
    return (
        0.0 <= message.service_time <= SECONDS_MAX
        and 0.0 <= message.queue_wait <= SECONDS_MAX
        and 0.0 <= message.load.pushback <= SECONDS_MAX
    )


def fit_item(message: m.Item) -> bool:
    """Its durations are inside their limits."""
    load = message.load
    return (
        message.number >= 0
        and 0.0 <= message.service_time <= SECONDS_MAX
        and 0.0 <= message.queue_wait <= SECONDS_MAX
        and (load is None or 0.0 <= load.pushback <= SECONDS_MAX)
    )


def fit_ended(message: m.Ended) -> bool:
    """Its durations are inside their limits."""
    return (
        0.0 <= message.retry_after <= SECONDS_MAX
        and 0.0 <= message.service_time <= SECONDS_MAX
        and 0.0 <= message.load.pushback <= SECONDS_MAX
    )


def fit_chunk(message: m.Chunk) -> bool:
    """It carries something."""
    return len(message.data) > 0


READERS: dict[type[Any], Reader] = {
    m.Submit: read_submit,
    m.Cancel: read_cancel,
    m.Started: read_started,
    m.Next: read_next,
    m.Item: read_item,
    m.Result: read_result,
    m.Ended: read_ended,
}

TESTERS: dict[type[Any], Tester] = {
    m.Submit: fit_submit,
    m.Cancel: fit_cancel,
    m.Started: fit_started,
    m.Next: fit_next,
    m.Item: fit_item,
    m.Result: fit_result,
    m.Ended: fit_ended,
    m.Chunk: fit_chunk,
}
