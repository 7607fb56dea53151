"""Hypothesis strategies for messages, identities and payloads: everything that may travel, within its limits."""

from __future__ import annotations

from typing import Any

import hypothesis
from hypothesis import strategies as st

from tiedreq.core import messages as m
from tiedreq.core.types import UNTIED, CopyId, CopyKind, Identity, Load, MethodInfo, Window
from tiedreq.wire import limits as lim
from tiedreq.wire.fields import CONTROL, END_STATES, RANK_MAX, WIRE_CAUSES


def times(factor: float) -> hypothesis.settings:
    """As many examples as the profile asks for, times ``factor``."""
    return hypothesis.settings(max_examples=max(1, round(factor * hypothesis.settings.default.max_examples)))


u16 = st.integers(0, 2**16 - 1)
u32 = st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1))
u64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1), st.just(2**64 - 1))
seconds = st.one_of(st.floats(0.0, 100.0), st.floats(0.0, lim.SECONDS_MAX))
proofs = st.one_of(st.just(b""), st.binary(min_size=32, max_size=32))
payloads = st.binary(max_size=300)

ASCII = st.sampled_from("abcdefghijklmnopqrstuvwxyz0123456789-._")
WIDE = st.characters(exclude_categories=["Cs"])


def texts(longest: int, *, shortest: int = 0) -> st.SearchStrategy[str]:
    """Text of any characters, now and then of the greatest length."""
    return st.one_of(
        st.text(ASCII, min_size=shortest, max_size=min(12, longest)),
        st.text(WIDE, min_size=shortest, max_size=min(40, longest)),
        st.just("é" * longest),
    )


def lines(longest: int, *, shortest: int = 0) -> st.SearchStrategy[str]:
    """Text without characters that move what is shown around it."""
    return texts(longest, shortest=shortest).map(lambda text: CONTROL.sub("~", text))


names = lines(lim.NAME_CHARS_MAX, shortest=1)
identities = st.builds(Identity, names, u64)
loads = st.builds(Load, u32, u32, u64, seconds)
untied_copies = st.builds(CopyId, u64, u64, u64, st.just(UNTIED))
copies = st.builds(CopyId, u64, u64, u64, st.integers(UNTIED, RANK_MAX))
methods = lines(lim.METHOD_CHARS_MAX, shortest=1)
keys = st.none() | texts(lim.KEY_CHARS_MAX, shortest=1)
metadata = st.lists(
    st.tuples(
        lines(lim.METADATA_KEY_CHARS_MAX, shortest=1),
        texts(lim.METADATA_VALUE_CHARS_MAX),
    ),
    max_size=lim.METADATA_ENTRIES_MAX,
    unique_by=lambda entry: entry[0],
).map(tuple)
method_rows = st.builds(MethodInfo, methods, st.booleans(), st.booleans(), seconds, st.booleans())
granted = st.integers(1, 2**64 - 1)
windows = st.builds(Window, granted, granted, st.booleans())
codes = lines(lim.CODE_CHARS_MAX, shortest=1)


@st.composite
def hellos(draw: st.DrawFn) -> m.Hello:
    low, high = sorted((draw(u16), draw(u16)))
    role = draw(st.sampled_from(["client", "replica"]))
    name = draw(names if role == "replica" else st.just("") | names)
    cluster = draw(lines(lim.NAME_CHARS_MAX))
    challenge = draw(st.binary(min_size=32, max_size=32))
    return m.Hello(low, high, cluster, role, name, draw(u64), challenge, draw(proofs))


@st.composite
def submits(draw: st.DrawFn) -> m.Submit:
    partners: tuple[Identity, ...] = ()
    copy = draw(untied_copies)
    if draw(st.booleans()):
        size = st.integers(lim.PARTNERS_MIN, lim.PARTNERS_MAX)
        number = draw(st.just(2) | size)
        rows = st.lists(identities, min_size=number, max_size=number, unique_by=lambda identity: identity.name)
        partners = tuple(draw(rows))
        copy = copy._replace(rank=draw(st.integers(0, number - 1)))
    return m.Submit(
        copy,
        draw(st.sampled_from(CopyKind)),
        draw(methods),
        draw(payloads),
        draw(seconds),
        partners,
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(keys),
        draw(st.just(()) | metadata),
        draw(st.none() | windows),
    )


welcomes = st.builds(
    m.Welcome,
    u32,
    st.booleans(),
    u32,
    st.lists(method_rows, max_size=5, unique_by=lambda row: row.name).map(tuple),
    st.just("") | names,
)
chunks = st.builds(m.Chunk, u64, st.booleans(), st.binary(min_size=1, max_size=300)) | st.builds(
    m.Chunk, u64, st.just(True), st.just(b"")
)
reports = st.builds(
    m.Report,
    st.lists(st.tuples(names, seconds), max_size=5, unique_by=lambda row: row[0]).map(tuple),
)

BY_TYPE: dict[type[Any], st.SearchStrategy[Any]] = {
    m.Hello: hellos(),
    m.Proof: st.builds(m.Proof, proofs),
    m.Welcome: welcomes,
    m.Goodbye: st.builds(m.Goodbye, codes, lines(lim.REASON_CHARS_MAX)),
    m.Heartbeat: st.builds(m.Heartbeat, u64),
    m.HeartbeatEcho: st.builds(m.HeartbeatEcho, u64),
    m.Chunk: chunks,
    m.Unsupported: st.builds(m.Unsupported, u16),
    m.Draining: st.just(m.Draining()),
    m.Submit: submits(),
    m.Cancel: st.builds(m.Cancel, copies),
    m.Result: st.builds(m.Result, copies, payloads, seconds, seconds, loads),
    m.Failed: st.builds(
        m.Failed,
        copies,
        codes,
        texts(lim.FAILURE_CHARS_MAX),
        payloads,
        st.booleans(),
        seconds,
        seconds,
        loads,
    ),
    m.Ended: st.builds(
        m.Ended,
        copies,
        st.sampled_from(END_STATES),
        st.sampled_from(WIRE_CAUSES),
        seconds,
        seconds,
        loads,
    ),
    m.Report: reports,
    m.Started: st.builds(m.Started, copies, seconds, st.none() | loads),
    m.Next: st.builds(m.Next, copies, seconds),
    m.Claim: st.builds(m.Claim, copies, u64, u64),
    m.Granted: st.builds(m.Granted, copies),
    m.Denied: st.builds(m.Denied, copies, st.booleans()),
    m.Inquiry: st.builds(m.Inquiry, u64, st.just("") | names),
    m.Status: st.builds(m.Status, u64, payloads),
    m.Item: st.builds(m.Item, copies, u64, payloads, seconds, seconds, st.none() | loads),
    m.Credit: st.builds(m.Credit, copies, granted, granted),
}
"""One strategy per message."""

messages: st.SearchStrategy[m.Message] = st.sampled_from(list(BY_TYPE)).flatmap(lambda kind: BY_TYPE[kind])

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(WIDE, max_size=20),
    st.binary(max_size=20),
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(scalars, inner, max_size=4)),
    max_leaves=20,
)
"""Values that can be packed, without NaN (which is equal to nothing) and tuples (which come back as lists)."""
