"""The commands ``tiedreq proxy`` and ``tiedreq front``: reads the command line; ``proxy.commands`` does the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiedreq.cli import (
    FILE,
    certificate_of,
    client_tls,
    read_peers,
    read_token,
    read_where,
    server_tls,
    where_options,
)
from tiedreq.observe.logs import FORMATS, LEVELS
from tiedreq.params import DURATION, TIMEOUT, Parsed
from tiedreq.units import parse_duration

if TYPE_CHECKING:
    from tiedreq.proxy.front import FrontOptions

BODY_KIB_MAX = 16 * 1024
STAGGER = Parsed("duration|auto", lambda text: text if text == "auto" else parse_duration(text))


def front_options(function: Callable[..., int]) -> Callable[..., int]:
    """The options of whatever takes HTTP."""
    for option in (
        click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True),
        click.option("--log-format", type=click.Choice(FORMATS), default="text", show_default=True),
        click.option(
            "--trust-forwarded", is_flag=True, help="Believe X-Forwarded-* of requests: a proxy of yours stands before."
        ),
        click.option(
            "--body-max",
            type=click.IntRange(1, BODY_KIB_MAX),
            default=1024,
            show_default=True,
            metavar="KIB",
            help="Bodies of requests up to here are kept, and may be tied; longer ones are streamed, and pass once.",
        ),
        click.option(
            "--stall-timeout", type=TIMEOUT, default="60s", show_default=True, help="Between two parts of an answer."
        ),
        click.option(
            "--timeout", type=TIMEOUT, default="60s", show_default=True, help="Until an answer begins; then 504."
        ),
        click.option(
            "--budget",
            type=click.FloatRange(0, 100),
            default=5,
            show_default=True,
            metavar="PERCENT",
            help="Extra work for backups, of the useful work.",
        ),
        click.option(
            "--stagger",
            type=STAGGER,
            default="5ms",
            show_default=True,
            help="A request that has not started by then is put in a second queue, too. auto: as seldom as pays.",
        ),
        click.option(
            "--policy", type=click.Choice(["tied", "auto", "hedged", "plain"]), default="tied", show_default=True
        ),
        click.option(
            "--once", multiple=True, metavar="RULE", help="Never send these twice: GET:/jobs/next, /reports/*."
        ),
        click.option(
            "--tie", multiple=True, metavar="RULE", help="Tie these too, besides GET, HEAD and OPTIONS: POST:/search*."
        ),
    ):
        function = option(function)
    return function


def _front_options(options: dict[str, Any]) -> FrontOptions:
    """Takes the options of ``front_options`` out of all. Raises ``BadOption``."""
    from tiedreq.core.policy import Auto, Backup, Hedged, Plain, Policy, Tied
    from tiedreq.proxy.front import FrontOptions
    from tiedreq.proxy.rules import Rules

    budget = options.pop("budget") / 100
    stagger = options.pop("stagger")
    policies: dict[str, Callable[[], Policy]] = {
        "tied": lambda: Tied(stagger=stagger, backup=Backup(budget=budget) if budget else None),
        "auto": lambda: Auto(Backup(budget=budget)),
        "hedged": lambda: Hedged(Backup(since="send", budget=budget)),
        "plain": Plain,
    }
    return FrontOptions(
        rules=Rules.read(options.pop("tie"), options.pop("once")),
        policy=policies[options.pop("policy")](),
        timeout=options.pop("timeout"),
        stall=options.pop("stall_timeout"),
        body_bytes_max=options.pop("body_max") * 1024,
        trust_forwarded=options.pop("trust_forwarded"),
    )


@click.command()
@click.option("--upstream", required=True, metavar="URL", help="The service itself: http://127.0.0.1:8000.")
@click.option("--name", required=True, help="This sidecar's name, unique in the cluster.")
@click.option("--slots", type=click.IntRange(1, 4096), default=8, show_default=True, help="Requests at once.")
@click.option(
    "--listen", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT", help="For fronts and other sidecars."
)
@click.option("--advertise", metavar="URL", help="What others dial, where that differs: wss://host-a:7000.")
@click.option("--peers", multiple=True, metavar="NAME=URL[,…]", help="The other sidecars: b=wss://host-b:7000.")
@click.option(
    "--discover",
    metavar="WHERE",
    help="In place of --peers, sidecars that come and go: dns://NAME:PORT, dns+wss://…, or a file that lists them.",
)
@click.option("--http", metavar="HOST:PORT", help="Be a front, too: take plain HTTP here.")
@click.option(
    "--passage", metavar="HOST:PORT", help="Where fronts send long bodies.  [default: any port beside --listen]"
)
@click.option("--health", metavar="PATH", help="Ask the upstream for this; three failures in a row take it out.")
@click.option("--health-interval", type=TIMEOUT, default="1s", show_default=True)
@click.option(
    "--let-other-win", metavar="STATUS[,…]", help="These answers of the upstream end no race: 500,502.  [default: none]"
)
@click.option("--token-file", type=FILE, help="The cluster's shared secret, in a file.")
@click.option("--tls-cert", type=FILE, help="Listen for fronts and sidecars with TLS: the certificate (PEM).")
@click.option("--tls-key", type=FILE, help="Its private key (PEM).")
@click.option("--tls-ca", type=FILE, help="Trust sidecars with certificates of this authority (PEM).")
@click.option("--tls-clients", type=FILE, help="Let in only who shows a certificate of this authority (PEM).")
@click.option("--cluster", default="tiedreq", show_default=True, metavar="NAME", help="The cluster's name.")
@click.option("--drain-timeout", type=DURATION, default="10s", show_default=True, help="For what runs, at the end.")
@click.option("--metrics", metavar="HOST:PORT", help="Show health, metrics and more over HTTP: 127.0.0.1:9100.")
@front_options
def proxy(
    upstream: str,
    peers: Sequence[str],
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    tls_clients: Path | None,
    **options: Any,
) -> int:
    """Stand beside one replica of an HTTP service, and tie requests with the sidecars of the others.

    The service itself is not changed: each request runs as a plain HTTP request to --upstream, at most --slots at
    once, and is cancelled by closing its connection. Prints "ready NAME URL" once the upstream answers; with --http,
    the URL for browsers too. SIGTERM or Ctrl-C drains and ends with 0; again, it ends at once.

    \b
    tiedreq proxy --upstream http://127.0.0.1:8000 --name a --listen 0.0.0.0:7000 --http 0.0.0.0:8080 \\
        --peers b=ws://host-b:7000 --token-file token
    """
    from tiedreq.observe.options import Observe
    from tiedreq.proxy.commands import run_proxy
    from tiedreq.proxy.health import HealthOptions
    from tiedreq.proxy.sidecar import SidecarOptions, Upstream

    own = certificate_of(tls_cert, tls_key)
    if tls_clients is not None and own is None:
        raise click.UsageError("--tls-clients goes with --tls-cert and --tls-key")
    if peers and options["discover"] is not None:
        raise click.UsageError("--peers and --discover: name one of them")
    known = read_peers(peers)
    found = options["discover"] is not None  # who comes may take TLS
    dialed = [*known.values(), "wss://" if own is not None or found else "ws://"]
    logs = {name: options.pop(name) for name in ("log_format", "log_level")}
    health = HealthOptions(path=options.pop("health"), interval=options.pop("health_interval"))
    sidecar = SidecarOptions(
        upstream=Upstream.read(upstream),
        peers=known,
        front=_front_options(options),
        health=health,
        let_other_win=_statuses(options.pop("let_other_win")),
        token=read_token(options.pop("token_file")),
        ssl_context=server_tls(*own, tls_clients) if own is not None else None,
        peer_ssl_context=client_tls(tls_ca, dialed, own),
        observe=Observe(listen=options.pop("metrics")),
        **options,
    )
    return run_proxy(sidecar, **logs)


@click.command()
@click.option(
    "--listen", default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT", help="Take plain HTTP here."
)
@where_options
@click.option("--drain-timeout", type=DURATION, default="10s", show_default=True, help="For what runs, at the end.")
@click.option("--metrics", metavar="HOST:PORT", help="Show health, metrics and more over HTTP: 127.0.0.1:9200.")
@front_options
def front(listen: str, drain_timeout: float, metrics: str | None, **options: Any) -> int:
    """Take plain HTTP and tie each request across the sidecars of a service (see tiedreq proxy).

    GET, HEAD and OPTIONS are tied, and what --tie names; all else passes once. Prints "ready URL". SIGTERM or Ctrl-C
    drains and ends with 0; again, it ends at once.

    \b
    tiedreq front --listen 0.0.0.0:8080 --replicas ws://host-a:7000,ws://host-b:7000 --token-file token
    """
    from tiedreq.observe.options import Observe
    from tiedreq.proxy.commands import run_front

    logs = {name: options.pop(name) for name in ("log_format", "log_level")}
    chosen = _front_options(options)
    where = read_where(**options)
    return run_front(where, listen, chosen, observe=Observe(listen=metrics), drain_timeout=drain_timeout, **logs)


def _statuses(text: str | None) -> frozenset[int]:
    """Statuses joined by commas."""
    found = set()
    for word in text.split(",") if text else ():
        if not (word.strip().isdigit() and 400 <= int(word) <= 599):
            raise click.UsageError(f"--let-other-win: {word!r} is not a status from 400 to 599")
        found.add(int(word))
    return frozenset(found)
