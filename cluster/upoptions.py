"""The command line of ``python -m cluster.up``, read into an ``UpConfig``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from cluster.config import (
    DEMO_APP,
    DRAIN_TIMEOUT_DEFAULT,
    HOST_DEFAULT,
    POLICIES,
    RAY_ADDRESS,
    DemoOptions,
    TrafficOptions,
    UpConfig,
    ray_address,
)
from tiedreq.core.limits import ReplicaLimits
from tiedreq.errors import BadOption
from tiedreq.laws import parse_law
from tiedreq.params import DURATION, LIMIT, Parsed
from tiedreq.slowness import parse_pause, parse_slow
from tiedreq.units import format_duration, parse_latency, parse_zones

_TRAFFIC_ALONE = ("policy", "backup_after", "duration")


@click.command(
    "cluster.up",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Durations carry a unit: 500us, 12ms, 2s. Exit codes: 0 done, 1 failed, 2 bad usage, 130 interrupted.",
)
@click.option("--replicas", type=int, default=4, show_default=True, metavar="N", help="How many replicas.")
@click.option("--slots", type=int, default=8, show_default=True, metavar="K", help="Handlers at once in each.")
@click.option("--app", default=DEMO_APP, metavar="MODULE:SERVICE", help="Your own service instead of the demo.")
@click.option("--host", default=HOST_DEFAULT, show_default=True, help="Where replicas listen; on Ray, at their nodes.")
@click.option("--port", type=int, default=0, metavar="BASE", help="Replica i listens at BASE+i; 0: any free ports.")
@click.option("--dashboard-port", type=int, metavar="PORT", help="Of the web dashboard. [default: any free one]")
@click.option("--no-dashboard", is_flag=True, help="Start no dashboard.")
@click.option("--dashboard-remote-control", is_flag=True, help="Its controls work from other hosts, with the token.")
@click.option(
    "--zones", type=Parsed("zones", parse_zones), default=(), metavar="A,B,…", help="Replicas stand in, in turn."
)
@click.option(
    "--mesh-latency", type=Parsed("latency", parse_latency), help="1ms, 1ms~0.3ms, 1ms;r0-r1=20ms, zones: 1ms;a-b=5ms."
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".tiedreq"),
    show_default=True,
    help="Where the cluster file is.",
)
@click.option("--engine", default="local", show_default=True, metavar="local|ray", help="What runs the replicas.")
@click.option(
    "--address",
    metavar="auto|HOST:PORT",
    help=f"Of a running Ray cluster. [default: ${RAY_ADDRESS}, else a Ray of this host alone]",
)
@click.option(
    "--replica-cpus", type=float, default=1.0, show_default=True, metavar="F", help="CPUs that each takes of Ray's."
)
@click.option(
    "--drain-timeout",
    type=DURATION,
    default=format_duration(DRAIN_TIMEOUT_DEFAULT),
    show_default=True,
    help="How long running calls may take at the end.",
)
@click.option("--rate", type=float, metavar="CALLS_PER_S", help="Drive open-loop traffic against the demo.")
@click.option("--policy", metavar="NAME", help=f"Of the traffic: {', '.join(POLICIES)}. [default: tied]")
@click.option(
    "--backup-after",
    type=DURATION,
    help="Fix the delay of the traffic's backups. [default: learned]",
)
@click.option("--duration", type=DURATION, help="End the traffic, and the cluster, after so long.")
@click.option("--service", type=Parsed("law", parse_law), help="Of the demo's work: exp(10ms), const(5ms)*10@0.05, …")
@click.option("--slow", type=Parsed("slow", parse_slow), multiple=True, metavar="I:FACTOR", help="Slow down replica I.")
@click.option(
    "--pause",
    type=Parsed("pause", parse_pause),
    multiple=True,
    metavar="[I:]D@EVERY",
    help="Stop the work at replica I (or each) for D, again and again.",
)
@click.option(
    "--metrics-port",
    type=int,
    default=0,
    metavar="BASE",
    help="Replica i shows health and metrics at BASE+i of loopback; 0: any free ports, see STATE/prometheus.json.",
)
@click.option(
    "--limit",
    type=LIMIT,
    multiple=True,
    metavar="NAME=VALUE",
    help="One of a replica's limits, repeatable: tombstones_max=10000, marker_age_max=2s (tiedreq.ReplicaLimits).",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the demo's work and the traffic.")
@click.option("--json", "json_events", is_flag=True, help="Events on standard output, one JSON object a line.")
@click.pass_context
def command(context: click.Context, /, **options: Any) -> UpConfig:
    """Start a cluster of replicas on this host and keep it up.

    Once it is up, one line on standard output says so: ready N replicas, dashboard URL state DIR. Then
    tiedreq.connect() finds it, and cluster.ctl controls it.
    Ctrl-C or SIGTERM drains the replicas and ends; again, it ends at once.
    """
    try:
        return _config(options)
    except BadOption as error:
        raise click.UsageError(str(error), context) from None


def read_options(arguments: Sequence[str]) -> UpConfig:
    """The configuration.

    Raises ``click.ClickException`` with exit code 2 for what can't be understood, and ``click.exceptions.Exit`` after
    ``--help``.
    """
    with command.make_context("cluster.up", list(arguments)) as context:
        result: UpConfig = command.invoke(context)
        return result


def _config(options: dict[str, Any]) -> UpConfig:
    return UpConfig(
        demo=DemoOptions(service=options["service"], slow=options["slow"], pause=options["pause"]),
        traffic=_traffic(options),
        dashboard=not options["no_dashboard"],
        limits=ReplicaLimits(**dict(options["limit"])),
        address=ray_address(options["address"], options["engine"]),
        **{
            name: options[name]
            for name in (
                "replicas slots app host port zones mesh_latency state_dir engine replica_cpus drain_timeout seed "
                "metrics_port json_events dashboard_port dashboard_remote_control".split()
            )
        },
    )


def _traffic(options: dict[str, Any]) -> TrafficOptions | None:
    given = {name: options[name] for name in _TRAFFIC_ALONE if options[name] is not None}
    if options["rate"] is not None:
        return TrafficOptions(rate=options["rate"], **given)
    if given:
        raise BadOption(f"{', '.join(given).replace('_', '-')}: for traffic only, and --rate is not given")
    return None
