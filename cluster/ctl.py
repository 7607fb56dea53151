"""``python -m cluster.ctl``: look at a running cluster, break it and mend it.

Talks to the launcher through the socket in its state directory (``cluster.control_socket``). What the verbs do is in
``cluster.control``; this module reads the command line and shows what came of it. Needs no extra.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import trio

from cluster.config import POLICIES
from cluster.control_file import ControlAddress, NoControl, read_control_file
from cluster.control_socket import ask
from tiedreq.clusterfile import DEFAULT_PATH, ENVIRONMENT

INTERRUPTED = 130
ANSWER_SECONDS = 20.0
LONG = ("restart", "drain", "scale")
"""Verbs that take as long as calls do that run."""
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

replica_argument = click.argument("replica")
all_argument = click.argument("replica", default="all", metavar="[REPLICA]")


class Failed(Exception):
    """It could not be done: why, in one line, and the exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@click.group("cluster.ctl", context_settings=SETTINGS)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help=f"Of the cluster. [default: that of ${ENVIRONMENT}, or {DEFAULT_PATH.parent}]",
)
@click.pass_context
def command(context: click.Context, state_dir: Path | None) -> None:
    """Look at a cluster that cluster.up runs, break it and mend it.

    Replicas are named r0, r1 and so on. Exit codes: 0 done, 1 it could not be done, 2 bad usage, 130 interrupted.
    """
    context.obj = state_dir if state_dir is not None else _default_directory()


def _default_directory() -> Path:
    named = os.environ.get(ENVIRONMENT)
    if not named or "://" in named:
        return DEFAULT_PATH.parent
    path = Path(named)
    return path if path.is_dir() else path.parent


def _ask(directory: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """The launcher's answer. Raises ``Failed``."""
    try:
        seconds = math.inf if request["do"] in LONG else ANSWER_SECONDS
        answer = trio.run(ask, directory, read_control_file(directory), request, seconds)
    except NoControl as error:
        raise Failed(str(error), 1) from None
    except (OSError, ValueError) as error:
        raise Failed(f"{directory}: the launcher does not answer: {error}", 1) from None
    if not answer.get("ok"):
        raise Failed(str(answer.get("error")), int(answer.get("code", 1)))
    return answer


def _do(directory: Path, verb: str, **request: Any) -> None:
    click.echo(_ask(directory, {"do": verb, **request})["said"])


@command.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def status(directory: Path, as_json: bool) -> None:
    """Show the replicas, what was done to them, and the traffic."""
    found = _ask(directory, {"do": "status"})["status"]
    if as_json:
        click.echo(json.dumps(found))
        return
    from rich.console import Console

    from cluster.ctl_status import render

    Console(emoji=False, highlight=False, width=None if sys.stdout.isatty() else 140).print(render(found))


@command.command()
@replica_argument
@click.pass_obj
def pause(directory: Path, replica: str) -> None:
    """Stop a replica's process where it is (SIGSTOP), until it is resumed."""
    _do(directory, "pause", replica=replica)


@command.command()
@all_argument
@click.pass_obj
def resume(directory: Path, replica: str) -> None:
    """Let a paused replica go on, or all."""
    _do(directory, "resume", replica=replica)


@command.command()
@replica_argument
@click.pass_obj
def kill(directory: Path, replica: str) -> None:
    """End a replica's process at once (SIGKILL). The launcher starts it again, as after any death."""
    _do(directory, "kill", replica=replica)


@command.command()
@all_argument
@click.pass_obj
def restart(directory: Path, replica: str) -> None:
    """Drain a replica and start it again at its old address; without a name all, one after the other.

    A call that runs is finished first, so that none fails. One that was drained, or has failed, is started.
    """
    _do(directory, "restart", replica=replica)


@command.command()
@replica_argument
@click.pass_obj
def drain(directory: Path, replica: str) -> None:
    """Let a replica finish what runs and end; it stays down until it is restarted."""
    _do(directory, "drain", replica=replica)


@command.command()
@click.argument("replicas", type=int)
@click.pass_obj
def scale(directory: Path, replicas: int) -> None:
    """Have so many replicas: more are started, or those with the highest numbers drain and leave. No call fails."""
    _do(directory, "scale", replicas=replicas)


@command.command()
@replica_argument
@click.argument("factor", type=float)
@click.pass_obj
def slow(directory: Path, replica: str, factor: float) -> None:
    """Make every execution at a replica take FACTOR times as long; 1 ends it."""
    _do(directory, "slow", replica=replica, factor=factor)


@command.command()
@click.argument("spec")
@click.pass_obj
def latency(directory: Path, spec: str) -> None:
    """Set the latency between replicas: 0, 1ms, 1ms~0.3ms (jitter), 1ms;r0-r1=20ms, r0>r1=20ms (one way)."""
    _do(directory, "latency", spec=spec)


@command.command()
@click.argument("replica")
@click.argument("other", required=False)
@click.option("--one-way", is_flag=True, help="Only what REPLICA sends is lost; what it is sent arrives.")
@click.pass_obj
def partition(directory: Path, replica: str, other: str | None, one_way: bool) -> None:
    """Cut a replica off from another one, or from all others. Clients reach both."""
    _do(directory, "partition", **{"from": replica, "to": other, "one_way": one_way})


@command.command()
@click.argument("replica", required=False)
@click.argument("other", required=False)
@click.option("--all", "everything", is_flag=True, help="Also what is paused or slow, and the latency.")
@click.pass_obj
def heal(directory: Path, replica: str | None, other: str | None, everything: bool) -> None:
    """End the partition between two replicas, or all partitions."""
    if (replica is None) != (other is None):
        raise click.UsageError("heal takes two replicas, or none for all")
    if replica is not None and everything:
        raise click.UsageError("--all and the names of replicas don't go together")
    _do(directory, "heal", **{"from": replica, "to": other, "all": everything})


@command.command()
@click.option("--rate", type=float, metavar="CALLS_PER_S", help="0: none.")
@click.option("--policy", metavar="NAME", help=f"One of {', '.join(POLICIES)}.")
@click.option("--backup-after", metavar="DURATION", help="Fix the delay of backups; auto: learned.")
@click.option("--work/--search", "work", default=None, help="Call the demo's artificial work, or lookup and search.")
@click.pass_obj
def traffic(directory: Path, /, **options: Any) -> None:
    """Drive open-loop traffic against the demo, or change what is driven. What is not given stays."""
    given = {name: value for name, value in options.items() if value is not None}
    if not given:
        raise click.UsageError("nothing is asked for; say for example --rate 200 --policy hedged")
    _do(directory, "traffic", **given)


@command.command()
@click.option("--service", metavar="LAW", help="exp(10ms), const(5ms)*10@0.05, …")
@click.option("--pause", metavar="[I:]D@EVERY", help="200ms@5s; none: no pauses.")
@click.pass_obj
def work(directory: Path, /, **options: str | None) -> None:
    """Change the demo's artificial work: how long it takes, and its pauses. What is not given stays."""
    given = {name: value for name, value in options.items() if value is not None}
    if not given:
        raise click.UsageError("nothing is asked for; say for example --service 'exp(20ms)'")
    _do(directory, "work", **given)


@command.command()
@click.pass_obj
def dashboard(directory: Path) -> None:
    """Print the dashboard's address with the control token in it: who opens it may use the controls."""
    try:
        address: ControlAddress = read_control_file(directory)
    except NoControl as error:
        raise Failed(str(error), 1) from None
    if address.dashboard is None:
        raise Failed("this cluster has no dashboard", 1)
    click.echo(f"{address.dashboard}#token={address.token}")


def main(arguments: Sequence[str] | None = None, *, run: Callable[..., Any] = command.main) -> int:
    """Read the command line and carry it out; the exit code."""
    try:
        run(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="cluster.ctl", standalone_mode=False)
    except Failed as failed:
        click.echo(f"cluster.ctl: {failed}", err=True)
        return failed.code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
