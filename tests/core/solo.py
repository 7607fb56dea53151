"""One replica core alone: events by hand, commands as short lines."""

from __future__ import annotations

from collections.abc import Iterable

from tests.core.parts import ANSWER, METHODS
from tests.core.telling import NONCE, copy_id, tell_command
from tiedreq.core import events as e
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.messages import Submit
from tiedreq.core.replica import HeldMethod, ReplicaCore
from tiedreq.core.types import UNTIED, CopyKind, CopyState, Identity, Load

CALLER_LINK = 1
PEER_LINKS = {"b": 2, "c": 3}
NAMES = {CALLER_LINK: "u", **{link: name for name, link in PEER_LINKS.items()}}
IDENTITIES = {name: Identity(name, number) for number, name in enumerate("abcdefgh", 1)}


class Solo:
    """Replica a with one caller u and the peers b and c connected."""

    def __init__(
        self,
        *,
        slots: int = 1,
        limits: ReplicaLimits | None = None,
        peers: str = "bc",
        methods: Iterable[HeldMethod] = METHODS,
    ) -> None:
        self.core = ReplicaCore(IDENTITIES["a"], methods, slots=slots, limits=limits)
        self.now = 100.0
        self.give(e.CallerConnected(CALLER_LINK, NONCE))
        for name in peers:
            self.connect(name)

    def give(self, event: e.ReplicaEvent) -> list[str]:
        """One step; what it led to."""
        commands = self.core.step(event, self.now)
        told = [tell_command(command, NAMES.get(getattr(command, "link", 0), "?")) for command in commands]
        return [line.replace(" remaining=10", "") for line in told]

    def connect(self, name: str, link: int | None = None, incarnation: int | None = None) -> list[str]:
        identity = IDENTITIES[name] if incarnation is None else Identity(name, incarnation)
        return self.give(e.PeerConnected(PEER_LINKS[name] if link is None else link, identity))

    def submit(
        self,
        copy: str,
        *,
        tie: str = "ab",
        method: str = "read",
        remaining: float = 10.0,
        kind: CopyKind | None = None,
        yield_: bool = True,
        exclusive: bool = False,
        link: int = CALLER_LINK,
        payload: bytes = b"",
    ) -> list[str]:
        """A copy arrives; ``tie`` names the replica of each rank."""
        identity = copy_id(copy)
        partners = () if identity.rank == UNTIED else tuple(IDENTITIES[name] for name in tie)
        if kind is None:
            kind = CopyKind.TIE if identity.rank > 0 else CopyKind.FIRST
        submit = Submit(identity, kind, method, payload, remaining, partners, yield_, exclusive, False, None, ())
        return self.give(e.SubmitReceived(link, submit))

    def cancel(self, copy: str) -> list[str]:
        return self.give(e.CancelReceived(CALLER_LINK, copy_id(copy)))

    def started(self, copy: str, peer: str = "b", remaining: float = 10.0) -> list[str]:
        """A peer says that its copy started."""
        return self.give(e.PeerStarted(PEER_LINKS[peer], copy_id(copy), remaining))

    def next(self, copy: str, peer: str = "b", remaining: float = 10.0) -> list[str]:
        """A peer says that its copy is next."""
        return self.give(e.PeerNext(PEER_LINKS[peer], copy_id(copy), remaining))

    def settle(self) -> list[str]:
        return self.give(e.InputSettled())

    def finish(self, copy: str, outcome: e.Answer | e.Fault | None = ANSWER) -> list[str]:
        return self.give(e.WorkFinished(copy_id(copy), outcome))

    def wait(self, seconds: float) -> list[str]:
        """Time passes, and the core is told."""
        self.now += seconds
        return self.give(e.TimePassed())

    def run(self, copy: str, **options: object) -> None:
        """Bring a copy to its start."""
        self.submit(copy, **options)  # type: ignore[arg-type]
        assert f"StartWork {copy}" in self.settle()

    def state(self, copy: str) -> CopyState | None:
        return self.core.copy_state(copy_id(copy))

    def load(self, copy: str = "99/u0") -> Load:
        """What the replica says of itself now."""
        identity = copy_id(copy)
        submit = Submit(identity, CopyKind.FIRST, "nowhere", b"", 1.0, (), True, False, False, None, ())
        (command,) = self.core.step(e.SubmitReceived(CALLER_LINK, submit), self.now)
        load = getattr(getattr(command, "message", None), "load", None)
        assert isinstance(load, Load)
        return load

    def held(self) -> dict[str, int]:
        """The collections that are not empty when a driver has asked for the next alarm, as each does; without
        tombstones, callers and peers."""
        _ = self.core.wake_at
        kept = {name: size for name, size in self.core.sizes().items() if size}
        return {name: size for name, size in kept.items() if name not in ("tombstones", "callers", "peers")}
