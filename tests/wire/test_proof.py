"""Proofs of the token: right for this handshake and this side alone."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.wire.strategies import hellos
from tiedreq.core.errors import BadOption
from tiedreq.core.link_rules import transcript
from tiedreq.core.messages import Hello
from tiedreq.wire.proof import TokenAuthenticator

TOKEN = b"0123456789abcdef"
HOLDER = TokenAuthenticator(TOKEN)
DIALER = Hello(1, 1, "c", "replica", "r0", 5, b"d" * 32, b"")
ACCEPTOR = Hello(1, 1, "c", "replica", "r1", 6, b"a" * 32, b"")

CHANGES: list[dict[str, Any]] = [
    {"protocol_min": 0},
    {"protocol_max": 2},
    {"cluster": "d"},
    {"role": "client"},
    {"name": "r2"},
    {"incarnation": 7},
    {"challenge": b"x" * 32},
]


def by_the_page(prover: str, dialer: Hello, acceptor: Hello) -> bytes:
    """The proof as docs/protocol.md describes it, in other words."""
    parts = [b"tiedreq link", prover.encode()]
    for hello in (dialer, acceptor):
        numbers = [str(hello.protocol_min), str(hello.protocol_max)]
        rest = [hello.cluster, hello.role, hello.name, str(hello.incarnation)]
        parts += [text.encode("utf-8") for text in numbers + rest] + [hello.challenge, b""]
    mac = hmac.new(TOKEN, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(len(part).to_bytes(4, "big"))
        mac.update(part)
    return mac.digest()


@hypothesis.given(hellos(), hellos(), st.sampled_from(["dialer", "acceptor"]))
def test_is_what_the_page_says(dialer: Hello, acceptor: Hello, prover: str) -> None:
    proof = HOLDER.make(transcript(prover, dialer, acceptor))
    assert proof == by_the_page(prover, dialer, acceptor) and len(proof) == 32
    assert TokenAuthenticator(TOKEN).check(transcript(prover, dialer, acceptor), proof)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
@pytest.mark.parametrize("prover", ["dialer", "acceptor"])
class TestAnotherHandshake:
    def test_dialer_changed(self, change: dict[str, Any], prover: str) -> None:
        proof = HOLDER.make(transcript(prover, DIALER, ACCEPTOR))
        assert not HOLDER.check(transcript(prover, DIALER._replace(**change), ACCEPTOR), proof)

    def test_acceptor_changed(self, change: dict[str, Any], prover: str) -> None:
        proof = HOLDER.make(transcript(prover, DIALER, ACCEPTOR))
        assert not HOLDER.check(transcript(prover, DIALER, ACCEPTOR._replace(**change)), proof)


def test_can_not_be_sent_back() -> None:
    """Not even where both sides look the same: the label tells them apart."""
    proof = HOLDER.make(transcript("dialer", DIALER, DIALER))
    assert not HOLDER.check(transcript("acceptor", DIALER, DIALER), proof)
    swapped = HOLDER.make(transcript("acceptor", ACCEPTOR, DIALER))
    assert not HOLDER.check(transcript("dialer", DIALER, ACCEPTOR), swapped)


def test_fields_do_not_run_into_each_other() -> None:
    one = transcript("dialer", DIALER._replace(cluster="ab", name="c"), ACCEPTOR)
    other = transcript("dialer", DIALER._replace(cluster="a", name="bc"), ACCEPTOR)
    assert len(one) == len(other) and HOLDER.make(one) != HOLDER.make(other)


@pytest.mark.parametrize(
    ("maker", "checker", "right"),
    [
        (TOKEN, TOKEN, True),
        (None, None, True),
        (TOKEN, b"another token...", False),
        (TOKEN, None, False),
        (None, TOKEN, False),
        (TOKEN, TOKEN[:-1], False),
    ],
)
def test_both_sides_must_hold_the_same(maker: bytes | None, checker: bytes | None, right: bool) -> None:
    script = transcript("dialer", DIALER, ACCEPTOR)
    proof = TokenAuthenticator(maker).make(script)
    assert TokenAuthenticator(checker).check(script, proof) is right


@pytest.mark.parametrize("proof", [b"", bytes(31), bytes(32), bytes(33)])
def test_made_up_proofs(proof: bytes) -> None:
    assert not HOLDER.check(transcript("dialer", DIALER, ACCEPTOR), proof)


def test_empty_token() -> None:
    with pytest.raises(BadOption, match="token must not be empty"):
        TokenAuthenticator(b"")


def test_does_not_show_the_token() -> None:
    assert TOKEN.decode() not in repr(HOLDER) and "no token" in repr(TokenAuthenticator(None))
