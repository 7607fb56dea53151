"""The child program that is one replica: ``python -m cluster.replica``, started by an engine.

Control messages come on standard input, answers go out on standard output, logs to standard error.

* in: ``{"do": "serve", …}`` first (``ReplicaSpec``), then ``{"do": "peers", "peers": {name: url}}``,
  ``{"do": "mesh_latency", "spec": TEXT}``, ``{"do": "blocked", "peers": [name…]}``, ``{"do": "slow", "factor": F}``,
  ``{"do": "work", "service": LAW, "pause": SPEC or null}`` (the demo's), ``{"do": "status"}`` (answered at once),
  ``{"do": "drain"}``
* out: ``{"event": "ready", "url", "port", "pid", "observe"}``, ``{"event": "status", "status", "snapshot"}`` each
  second (when asked for, and while links come up, without a snapshot), and
  ``{"event": "fatal", "kind": "app" | "option" | "address" | "start", "story": TEXT}``

Invariants: when the launcher is gone, so is this program: the kernel kills it, or the end of the control pipe ends it.
SIGTERM and SIGINT drain, a second one ends at once. Nothing that the service prints, reads or starts touches the pipes.
"""

from __future__ import annotations

import logging
import os
import sys

import trio

from cluster.engines.base import ReplicaSpec
from cluster.engines.local import die_with_launcher, take_control_pipes
from cluster.lines import LineSender, MessageReader, encode, read_first_line
from cluster.replica_life import fatal, live, load
from tiedreq.errors import BadOption
from tiedreq.loading import AppError


def main() -> int:
    """Run one replica until it is drained; the exit code."""
    die_with_launcher()
    commands, answers = take_control_pipes()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    first, rest = read_first_line(commands)
    if first is None:
        return 1
    spec = ReplicaSpec.from_message(first)
    try:
        loaded = load(spec)
    except (AppError, BadOption) as error:
        os.write(answers, encode(fatal("app", getattr(error, "story", str(error)))))
        return 2

    async def run() -> int:
        sender = LineSender(trio.lowlevel.FdStream(answers))
        lines = MessageReader(trio.lowlevel.FdStream(commands), rest=rest)
        return await live(spec, loaded, lines, sender)

    return trio.run(run)


if __name__ == "__main__":
    sys.exit(main())
