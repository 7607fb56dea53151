"""The handshake: what each side says, and each way it can be refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from tests.link.pair import CLIENT, REPLICA_A, REPLICA_B, UP, WELCOME, Pair, core, mesh
from tiedreq.core import link_commands as c
from tiedreq.core import link_events as e
from tiedreq.core.errors import BadOption, UnknownTransition
from tiedreq.core.link_options import LinkSide, LinkTiming
from tiedreq.core.link_rules import transcript
from tiedreq.core.link_table import LinkState
from tiedreq.core.messages import Cancel, Draining, Goodbye, Heartbeat, Hello, Proof, Started, Unsupported, Welcome
from tiedreq.core.types import CopyId

COPY = CopyId(7, 1, 0, 0)


def kinds(messages) -> list[str]:
    return [type(message).__name__ for message in messages]


def handshake_only(messages) -> list[str]:
    return [kind for kind in kinds(messages) if not kind.startswith("Heartbeat")]


class TestClient:
    def test_comes_up(self) -> None:
        pair = Pair().start()
        assert (pair.dialer.core.state, pair.acceptor.core.state) == (UP, UP)
        assert handshake_only(pair.dialer.sent) == ["Hello", "Proof"]
        assert handshake_only(pair.acceptor.sent) == ["Hello", "Welcome"]
        (up,) = pair.dialer.announced(c.AnnounceUp)
        assert (up.peer.name, up.peer.incarnation, up.welcome, up.previous_incarnation) == ("a", 11, WELCOME, None)
        (up,) = pair.acceptor.announced(c.AnnounceUp)
        assert (up.peer.role, up.peer.incarnation, up.welcome) == ("client", 7, None)

    def test_epochs_of_both_sides_differ(self) -> None:
        pair = Pair().start()
        assert {pair.dialer.core.epoch, pair.acceptor.core.epoch} == {1, 2}

    def test_data_passes_both_ways(self) -> None:
        pair = Pair().start()
        pair.send(pair.dialer, Cancel(COPY), Draining())
        pair.send(pair.acceptor, Draining())
        pair.run(0.01)
        assert pair.acceptor.delivered == [Cancel(COPY), Draining()]
        assert pair.dialer.delivered == [Draining()]

    def test_refuses_an_acceptor_that_calls_itself_a_client(self) -> None:
        pair = Pair(acceptor=lambda: core(CLIENT, dialing=False, epochs=count(50).__next__, seed=2)).start(0.01)
        assert pair.dialer.last.code == "protocol"


class TestMesh:
    def test_both_are_welcomed(self) -> None:
        pair = mesh().start()
        assert (pair.dialer.core.state, pair.acceptor.core.state) == (UP, UP)
        assert handshake_only(pair.dialer.sent) == ["Hello", "Proof", "Welcome"]
        assert handshake_only(pair.acceptor.sent) == ["Hello", "Welcome"]
        assert pair.acceptor.announced(c.AnnounceUp)[0].welcome == WELCOME

    def test_acceptor_is_not_up_before_the_dialers_welcome(self) -> None:
        pair = mesh()
        pair.tamper = lambda side, message: None if side is pair.dialer and isinstance(message, Welcome) else message
        pair.start()
        assert pair.acceptor.core.state is not UP

    def test_welcome_leaves_before_the_owner_hears_that_it_is_up(self) -> None:
        """So that whatever the owner sends then arrives after it."""
        pair = mesh().start()
        commands = [type(command) for command in pair.dialer.heard]
        assert commands.index(c.TransmitWelcome) < commands.index(c.AnnounceUp)

    def test_messages_after_the_welcome_in_the_same_frame_are_delivered(self) -> None:
        pair = mesh()
        pair.start(0.0045)  # Hello, Hello, Proof, Welcome; the dialer's Welcome is under way
        assert pair.acceptor.core.state is LinkState.WELCOMING
        epoch = pair.acceptor.core.epoch
        pair.step(pair.acceptor, e.FrameArrived(epoch, (WELCOME, Started(COPY, 1.0, None))))
        assert [type(command) for command in pair.acceptor.heard[-3:]] == [c.AnnounceUp, c.Transmit, c.Deliver]


class TestRefusal:
    def refused(self, pair: Pair, code: str) -> c.AnnounceFailure:
        pair.start(0.02)
        assert pair.acceptor.announced(c.AnnounceUp) == []
        assert pair.dialer.announced(c.AnnounceUp) == []
        failure = pair.dialer.last
        assert isinstance(failure, c.AnnounceFailure) and failure.code == code
        return failure

    @staticmethod
    def against(acceptor: LinkSide = REPLICA_A, token: str = "secret", dialer: LinkSide = CLIENT, **options) -> Pair:
        epochs = count(1).__next__
        return Pair(
            core(dialer, dialing=True, epochs=epochs, **options),
            lambda: core(acceptor, dialing=False, token=token, epochs=epochs, seed=2),
        )

    def test_versions_that_do_not_meet_are_both_named(self) -> None:
        pair = self.against(replace(REPLICA_A, protocol_min=4, protocol_max=6))
        failure = self.refused(pair, "version")
        assert "1 to 1" in failure.reason and "4 to 6" in failure.reason and "\n" not in failure.reason
        assert failure.lasting

    def test_ranges_that_meet_will_do(self) -> None:
        pair = self.against(
            replace(REPLICA_A, protocol_min=1, protocol_max=3), dialer=replace(CLIENT, protocol_min=2, protocol_max=9)
        )
        assert pair.start().dialer.core.state is UP

    def test_another_cluster_learns_nothing(self) -> None:
        pair = self.against(replace(REPLICA_A, cluster="bank"))
        failure = self.refused(pair, "cluster")
        assert failure.lasting
        assert kinds(pair.acceptor.sent) == ["Goodbye"]
        assert "bank" not in str(pair.acceptor.sent) and "shop" not in str(pair.acceptor.sent)

    def test_dialer_refuses_an_acceptor_without_the_token(self) -> None:
        pair = self.against(token="guessed")
        failure = self.refused(pair, "auth")
        assert failure.lasting
        assert kinds(pair.dialer.sent) == ["Hello", "Goodbye"], "it proves nothing to one that has not proven itself"

    def test_acceptor_refuses_a_dialer_without_the_token(self) -> None:
        pair = self.against()
        pair.tamper = lambda side, message: Proof(bytes(32)) if isinstance(message, Proof) else message
        failure = self.refused(pair, "auth")
        assert failure.lasting
        assert "Welcome" not in kinds(pair.acceptor.sent)

    def test_acceptor_is_told_by_a_dialer_that_leaves(self) -> None:
        pair = self.against(token="guessed")
        pair.start(0.02)
        assert pair.acceptor.last == c.AnnounceFailure(2, "auth", "the tokens differ", True)

    def test_another_name_than_expected(self) -> None:
        pair = self.against(REPLICA_B, expected_name="a")
        failure = self.refused(pair, "identity")
        assert not failure.lasting, "the right replica may come back to this address"
        assert pair.dialer.sent[-1] == Goodbye("identity", failure.reason)

    def test_admit_is_asked_once_the_other_side_is_proven(self) -> None:
        asked: list[Hello] = []

        def admit(hello: Hello) -> tuple[str, str]:
            asked.append(hello)
            return ("full", "no more clients")

        epochs = count(1).__next__
        pair = Pair(
            core(CLIENT, dialing=True, epochs=epochs),
            lambda: core(REPLICA_A, dialing=False, epochs=epochs, admit=admit, seed=2),
        )
        failure = self.refused(pair, "full")
        assert (failure.reason, failure.lasting) == ("no more clients", False)
        assert [hello.role for hello in asked] == ["client"]
        pair.tamper = lambda side, message: Proof(bytes(32)) if isinstance(message, Proof) else message
        pair.run(3.0)
        assert len(asked) == 1

    def test_a_dialer_too_may_turn_down_whom_it_meets(self) -> None:
        met: list[Hello] = []

        def admit(hello: Hello) -> tuple[str, str] | None:
            met.append(hello)
            return ("spare", "there is a link already") if len(met) == 1 else None

        pair = self.against(REPLICA_A, admit=admit)
        failure = self.refused(pair, "spare")
        assert not failure.lasting and [hello.name for hello in met] == ["a"]
        assert kinds(pair.dialer.sent) == ["Hello", "Goodbye"], "it says nothing of itself to one that it does not want"
        assert pair.run(5.0).dialer.core.state is UP and len(met) == 2

    def test_a_dialer_asks_nothing_of_one_that_is_not_proven(self) -> None:
        pair = self.against(token="guessed", admit=lambda hello: pytest.fail("it is not proven"))
        self.refused(pair, "auth")

    def test_a_lasting_refusal_ends_a_link_that_must_not_retry(self) -> None:
        pair = self.against(token="guessed", retry_refused=False)
        self.refused(pair, "auth")
        assert pair.dialer.core.state is LinkState.CLOSED
        pair.run(60)
        assert len(pair.dials) == 1

    def test_a_mesh_link_goes_on_trying_and_comes_up_when_the_token_is_right(self) -> None:
        token = "guessed"
        epochs = count(1).__next__
        pair = Pair(
            core(REPLICA_A, dialing=True, epochs=epochs),
            lambda: core(REPLICA_B, dialing=False, token=token, epochs=epochs, seed=2),
        )
        pair.start(30)
        assert len(pair.dialer.announced(c.AnnounceFailure)) > 10
        token = "secret"
        pair.run(3)
        assert pair.dialer.core.state is UP


class TestReplay:
    def recorded(self) -> tuple[Hello, Proof]:
        pair = Pair().start()
        hello, proof = pair.dialer.sent[:2]
        assert isinstance(hello, Hello) and isinstance(proof, Proof)
        return hello, proof

    def test_a_recorded_hello_and_proof_open_nothing(self) -> None:
        hello, proof = self.recorded()
        acceptor = core(REPLICA_A, dialing=False, seed=3)
        acceptor.step(e.TransportConnected(0), 0.0)
        acceptor.step(e.FrameArrived(1, (hello,)), 0.0)
        commands = acceptor.step(e.FrameArrived(1, (proof,)), 0.0)
        assert commands[0] == c.Transmit(1, Goodbye("auth", "the tokens differ"))

    def test_a_recorded_acceptor_fools_no_dialer(self) -> None:
        pair = Pair().start()
        hello = pair.acceptor.sent[0]
        dialer = core(CLIENT, dialing=True, seed=4)
        dialer.step(e.LinkWanted(), 0.0)
        dialer.step(e.TransportConnected(1), 0.0)
        commands = dialer.step(e.FrameArrived(1, (hello,)), 0.0)
        assert commands[0] == c.Transmit(1, Goodbye("auth", "the tokens differ"))

    def test_a_proof_sent_back_to_its_maker_proves_nothing(self) -> None:
        """Somebody without the token dials, and answers the acceptor's challenge with the acceptor's own proof."""
        acceptor = core(REPLICA_A, dialing=False, seed=3)
        acceptor.step(e.TransportConnected(0), 0.0)
        stolen = Hello(1, 1, "shop", "replica", "a", 11, bytes(32), b"")
        (answer,) = acceptor.step(e.FrameArrived(1, (stolen,)), 0.0)
        commands = acceptor.step(e.FrameArrived(1, (Proof(answer.message.proof),)), 0.0)
        assert commands[0].message.code == "auth"

    @pytest.mark.parametrize("field", Hello._fields[:-1])
    def test_every_field_of_both_hellos_is_part_of_the_proof(self, field: str) -> None:
        hello, _ = self.recorded()
        value = getattr(hello, field)
        other = hello._replace(
            **{field: value + (1 if isinstance(value, int) else "x" if isinstance(value, str) else b"x")}
        )
        assert len({transcript("dialer", hello, hello), transcript("dialer", other, hello)}) == 2
        assert transcript("dialer", hello, hello) != transcript("dialer", hello, other)
        assert transcript("dialer", hello, hello) != transcript("acceptor", hello, hello)

    def test_challenges_are_never_the_same(self) -> None:
        pair = Pair()
        pair.reachable = True
        pair.tamper = lambda side, message: None if isinstance(message, Welcome) else message
        pair.start(120)
        challenges = [m.challenge for side in [pair.dialer, *pair.acceptors] for m in side.sent if isinstance(m, Hello)]
        dialers = [m.challenge for m in pair.dialer.sent if isinstance(m, Hello)]
        assert len(dialers) > 10 and len(set(dialers)) == len(dialers) and all(len(each) == 32 for each in challenges)


class TestViolation:
    @pytest.mark.parametrize("message", [Proof(b""), WELCOME, Heartbeat(1), Cancel(COPY), Started(COPY, 1.0, None)])
    def test_anything_but_hello_first(self, message) -> None:
        acceptor = core(REPLICA_A, dialing=False)
        acceptor.step(e.TransportConnected(0), 0.0)
        goodbye, close, failure = acceptor.step(e.FrameArrived(1, (message,)), 0.0)
        assert goodbye.message.code == "protocol" and type(message).__name__ in goodbye.message.reason
        assert close == c.CloseTransport(1, "protocol", goodbye.message.reason, abrupt=False)
        assert isinstance(failure, c.AnnounceFailure)
        assert acceptor.state is LinkState.CLOSED

    @pytest.mark.parametrize("message", [Hello(1, 1, "shop", "client", "", 1, bytes(32), b""), Proof(b""), WELCOME])
    def test_a_handshake_message_later(self, message) -> None:
        pair = Pair().start()
        pair.send(pair.dialer, Cancel(COPY), message, Cancel(COPY))
        pair.run(0.001)
        assert pair.acceptor.delivered == [Cancel(COPY)], "what came before it counts"
        assert pair.acceptor.last.code == "protocol"
        pair.run(0.001)
        assert pair.dialer.last == c.AnnounceDown(1, "protocol", pair.acceptor.last.reason, by_peer=True)

    @pytest.mark.parametrize("size", [0, 31, 33, 1000])
    def test_a_challenge_of_another_size(self, size: int) -> None:
        acceptor = core(REPLICA_A, dialing=False)
        acceptor.step(e.TransportConnected(0), 0.0)
        commands = acceptor.step(e.FrameArrived(1, (Hello(1, 1, "shop", "client", "", 1, bytes(size), b""),)), 0.0)
        assert commands[0].message.code == "protocol"

    def test_bytes_that_are_no_frame(self) -> None:
        pair = Pair().start()
        pair.step(pair.acceptor, e.ViolationFound(pair.acceptor.core.epoch, "frame: not\nmsgpack" + "x" * 1000))
        goodbye = pair.acceptor.sent[-1]
        assert isinstance(goodbye, Goodbye) and goodbye.code == "protocol"
        assert goodbye.reason.isprintable() and len(goodbye.reason) <= 512

    def test_unknown_types_are_counted_and_answered_but_never_a_flood(self) -> None:
        pair = Pair().start()
        epoch = pair.acceptor.core.epoch
        commands = pair.step(pair.acceptor, e.FrameArrived(epoch, (), (99,)))
        assert commands == [c.Transmit(epoch, Unsupported(99))]
        commands = pair.step(pair.acceptor, e.FrameArrived(epoch, (), tuple(range(100, 200))))
        assert len(commands) == 4 and pair.acceptor.core.unknown_received == 101

    def test_unsupported_is_never_answered(self) -> None:
        pair = Pair().start()
        assert pair.step(pair.acceptor, e.FrameArrived(pair.acceptor.core.epoch, (Unsupported(99),))) == []
        assert pair.acceptor.core.unsupported_told == 1

    def test_unknown_types_before_the_link_is_up_are_passed_over(self) -> None:
        acceptor = core(REPLICA_A, dialing=False)
        acceptor.step(e.TransportConnected(0), 0.0)
        assert acceptor.step(e.FrameArrived(1, (), (99,)), 0.0) == []
        assert acceptor.state is LinkState.GREETING


class TestDriverMistakes:
    """An unlisted (state, event) pair is an error and changes nothing."""

    def test_wanted_twice(self) -> None:
        pair = Pair().start()
        before = pair.dialer.core.describe()
        with pytest.raises(UnknownTransition, match="link, dialing side"):
            pair.dialer.core.step(e.LinkWanted(), pair.now)
        assert pair.dialer.core.describe() == before

    def test_connected_twice(self) -> None:
        pair = Pair().start()
        with pytest.raises(UnknownTransition):
            pair.dialer.core.step(e.TransportConnected(pair.dialer.core.epoch), pair.now)
        assert pair.dialer.core.up

    def test_a_frame_before_the_connection(self) -> None:
        dialer = core(CLIENT, dialing=True)
        dialer.step(e.LinkWanted(), 0.0)
        with pytest.raises(UnknownTransition):
            dialer.step(e.FrameArrived(1, (Draining(),)), 0.0)
        with pytest.raises(UnknownTransition):
            dialer.step(e.ViolationFound(1, "x"), 0.0)
        assert dialer.state is LinkState.DIALING


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: LinkSide("shop", "boss", "a", 1), "role"),
        (lambda: LinkSide("shop", "replica", "", 1), "name"),
        (lambda: LinkSide("shop", "client", "", -1), "incarnation"),
        (lambda: LinkSide("shop", "client", "", 1, 3, 2), "range"),
        (lambda: LinkTiming(heartbeat_interval=0), "heartbeat_interval"),
        (lambda: LinkTiming(heartbeat_misses=1), "heartbeat_misses"),
        (lambda: LinkTiming(backoff_first=3), "backoff_max"),
        (lambda: LinkTiming(handshake_timeout=float("nan")), "handshake_timeout"),
    ],
)
def test_bad_options_are_refused_at_start(make, text: str) -> None:
    with pytest.raises(BadOption, match=text):
        make()
