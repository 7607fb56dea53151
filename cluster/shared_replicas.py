"""The child program that is several replicas: ``python -m cluster.shared_replicas``, started by an engine.

It speaks the control messages of ``cluster.replica`` in the envelopes of ``cluster.engines.shared``. A replica begins
with its first message, ``serve``, which also brings what to add to the environment while its service is imported; each
replica imports the module of its service anew, so that none shares another's state.

Invariants: when the launcher is gone, so is this program, as ``cluster.replica`` is.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Mapping
from typing import Any

import trio

from cluster.engines.base import ReplicaSpec
from cluster.engines.local import die_with_launcher, take_control_pipes
from cluster.lines import LineSender, MessageReader
from cluster.replica_life import Loaded, fatal, live, load
from tiedreq.errors import BadOption
from tiedreq.loading import AppError


class Envelopes:
    """Sends what one replica answers."""

    def __init__(self, name: str, sender: LineSender) -> None:
        self._name = name
        self._sender = sender

    async def send(self, message: Mapping[str, Any]) -> bool:
        """See ``cluster.replica_life.Sender``."""
        return await self._sender.send({"from": self._name, "message": message})

    async def ended(self, code: int) -> None:
        """The last word."""
        await self._sender.send({"from": self._name, "ended": code})


def load_apart(spec: ReplicaSpec, environment: Mapping[str, str]) -> Loaded:
    """The service, of a module that is imported anew. Raises ``AppError`` and ``BadOption``."""
    os.environ.update(environment)
    module = spec.app.partition(":")[0]
    sys.modules.pop(module, None)
    return load(spec)


async def run_one(name: str, lines: trio.MemoryReceiveChannel[dict[str, Any]], sender: LineSender) -> None:
    """The life of one replica, from its first message on."""
    answers = Envelopes(name, sender)
    first = await lines.receive()
    environment = first.pop("environment")
    spec = ReplicaSpec.from_message(first)
    try:
        loaded = load_apart(spec, environment)
    except (AppError, BadOption) as error:
        await answers.send(fatal("app", getattr(error, "story", str(error))))
        await answers.ended(2)
        return
    code = await live(spec, loaded, lines, answers, signals=False)
    await answers.ended(code)


async def run(commands: int, answers: int) -> None:
    """Run the replicas that the launcher asks for until it says no more."""
    sender = LineSender(trio.lowlevel.FdStream(answers))
    channels: dict[str, trio.MemorySendChannel[dict[str, Any]]] = {}
    async with trio.open_nursery() as nursery:
        async for envelope in MessageReader(trio.lowlevel.FdStream(commands)):
            name, message = envelope["to"], envelope["message"]
            if message["do"] == "serve":
                channels[name], receive = trio.open_memory_channel[dict[str, Any]](math.inf)
                nursery.start_soon(run_one, name, receive, sender)
            channels[name].send_nowait(message)
        for channel in channels.values():
            channel.close()


def main() -> int:
    """Run until the launcher is gone, or kills this program."""
    die_with_launcher()
    commands, answers = take_control_pipes()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    trio.run(run, commands, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
