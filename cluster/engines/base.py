"""What an engine must do: start a replica somewhere, talk to it, and end it for certain.

A replica that was started is told what to be by a ``ReplicaSpec`` and then speaks the control messages of
``cluster.replica``, whatever carries them: a pipe here, an actor's methods elsewhere.

Obligations of an engine: a ``ReplicaProcess`` that was started ends at ``kill``, and by itself when the launcher is
gone, however that ended. Not for restarts, time-outs and reports: those are the supervisor's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol


class EngineUnavailable(Exception):
    """The engine is not installed here; the message is what to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """What a replica is to be. ``port`` 0: any free one. ``mesh_latency`` and durations as in ``tiedreq.units``.

    ``environment`` is added to the launcher's own; ``host`` is where it listens, empty: at its node's own
    address. Nothing that it sends reaches the peers in ``blocked``; every execution takes ``slow`` times as long. It
    shows its metrics at ``metrics_port`` (0: any free one) of loopback. ``limits`` are fields of ``ReplicaLimits``.
    """

    name: str
    app: str
    host: str
    port: int
    cluster: str
    token: str
    slots: int
    drain_timeout: float
    mesh_latency: str | None = None
    peers: Mapping[str, str] = field(default_factory=dict)
    blocked: tuple[str, ...] = ()
    slow: float = 1.0
    metrics_port: int = 0
    zone: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def message(self) -> dict[str, Any]:
        """The first control message."""
        values = asdict(self)
        del values["environment"]
        return {"do": "serve", **values}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> ReplicaSpec:
        """What ``message()`` wrote."""
        return cls(**{name: value for name, value in message.items() if name != "do"})


class ReplicaProcess(Protocol):
    """A replica that was started and has not been killed."""

    @property
    def pid(self) -> int:
        """Its process id on the host where it runs; 0 while it has none yet."""

    async def send(self, message: Mapping[str, Any]) -> bool:
        """Send a control message; False when the replica is gone. May wait long for one that is frozen."""

    def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Its control messages, until it has ended."""

    def log(self) -> AsyncIterator[str]:
        """The lines it logs, until it has ended."""

    def freeze(self) -> None:
        """Stop it where it is, as SIGSTOP does. Synchronous; harmless when ended."""

    def thaw(self) -> None:
        """Let it go on. Synchronous; harmless when ended, or not frozen."""

    async def ended(self) -> str:
        """Wait until it has ended by itself; in words, how."""

    def kill(self) -> None:
        """End it at once and for certain, together with everything it started. Synchronous; harmless when ended."""


class Engine(Protocol):
    """Starts replicas. ``start_seconds``: one that is not ready within that time is given up."""

    start_seconds: float

    def running(self, note: Callable[[str], None]) -> AbstractAsyncContextManager[None]:
        """Have what is needed to start replicas while the block runs; ``note`` is for what a person should know.

        Raises ``EngineUnavailable``.
        """

    async def ready(self, cluster: str) -> str:
        """Wait until replicas of the cluster with this name can be started; why they can't be, else empty."""

    def start(self, spec: ReplicaSpec) -> ReplicaProcess:
        """Start a replica. Raises ``OSError`` when that can't be done at all."""
