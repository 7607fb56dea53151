"""The console command ``tiedreq``: ``serve`` one replica, ``call`` a method, ask for ``status``, ``explain`` a call.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 it ran and failed, 2 bad usage
or a service that can't be imported, 130 interrupted. This module reads the command line; what the commands do is in
``tiedreq.commands``.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import tiedreq
from tiedreq.clusterfile import check_url
from tiedreq.errors import BadOption, UsageError
from tiedreq.observe.logs import FORMATS, LEVELS
from tiedreq.params import DURATION, JSON, LIMIT, TIMEOUT
from tiedreq.runner import INTERRUPTED
from tiedreq.units import parse_duration

if TYPE_CHECKING:
    from tiedreq.commands import CallOptions, Where

BUILD = "compiled" if tiedreq.compiled else "pure Python"
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
BACKUP_AFTER_DEFAULT = "30ms"
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


class _Commands(click.Group):
    """The commands below, and those of ``tiedreq.proxy``, which are read when they are asked for."""

    more = ("front", "proxy")

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click."""
        return sorted([*super().list_commands(ctx), *self.more])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click."""
        if cmd_name not in self.more:
            return super().get_command(ctx, cmd_name)
        from tiedreq.proxy import cli

        found: click.Command = getattr(cli, cmd_name)
        return found


@click.group(cls=_Commands, context_settings=SETTINGS)
@click.version_option(tiedreq.__version__, prog_name="tiedreq", message=f"%(prog)s, version %(version)s, {BUILD}")
def command() -> None:
    """Tied and hedged requests between the replicas of a service.

    A whole cluster on this host is started by scripts/up; these commands run a single replica and talk to clusters.
    Durations carry a unit: 500us, 12ms, 2s.
    """


@command.command()
@click.argument("app", metavar="MODULE:SERVICE")
@click.option("--name", required=True, help="This replica's name, unique in the cluster.")
@click.option("--listen", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT", help="Port 0: any free one.")
@click.option("--advertise", metavar="URL", help="What others dial, where that differs: wss://host-a:7000.")
@click.option("--peers", multiple=True, metavar="NAME=URL[,…]", help="The other replicas: b=wss://host-b:7000.")
@click.option(
    "--discover",
    metavar="WHERE",
    help="In place of --peers, members that come and go: dns://NAME:PORT, dns+wss://…, or a file that lists them.",
)
@click.option("--zone", default="", metavar="NAME", help="What may fail together with it: eu-west-1a.")
@click.option("--slots", type=click.IntRange(1, 4096), default=8, show_default=True, help="Handlers at once.")
@click.option("--token-file", type=FILE, help="The cluster's shared secret, in a file.")
@click.option("--tls-cert", type=FILE, help="Listen with TLS: the certificate (PEM).")
@click.option("--tls-key", type=FILE, help="Its private key (PEM).")
@click.option("--tls-ca", type=FILE, help="Trust peers with certificates of this authority (PEM).")
@click.option("--tls-clients", type=FILE, help="Let in only who shows a certificate of this authority (PEM).")
@click.option("--cluster", default="tiedreq", show_default=True, metavar="NAME", help="The cluster's name.")
@click.option("--drain-timeout", type=DURATION, default="10s", show_default=True, help="For what runs, at the end.")
@click.option("--limit", type=LIMIT, multiple=True, metavar="NAME=VALUE", help="One of ReplicaLimits, repeatable.")
@click.option("--metrics", metavar="HOST:PORT", help="Show health, metrics and more over HTTP: 127.0.0.1:9100.")
@click.option("--tracing", is_flag=True, help="Make OpenTelemetry spans with the tracer provider that the app sets.")
@click.option("--log-format", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@click.option("--debug", is_flag=True, help="Tell callers the text of unexpected exceptions.")
def serve(
    app: str,
    peers: Sequence[str],
    discover: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    tls_clients: Path | None,
    **options: Any,
) -> int:
    """Run one replica of a service: MODULE:SERVICE, where the current directory is importable.

    Prints "ready NAME URL" once it accepts calls. SIGTERM or Ctrl-C drains and ends with 0; again, it ends at once.

    \b
    tiedreq serve mysearch:service --name a --listen 0.0.0.0:7000 --advertise wss://host-a:7000 \\
        --peers b=wss://host-b:7000 --token-file token --tls-cert cert.pem --tls-key key.pem
    """
    from tiedreq.commands import run_serve
    from tiedreq.observe.options import Observe

    metrics = options.pop("metrics")
    token_file, limits = options.pop("token_file"), dict(options.pop("limit"))
    own = certificate_of(tls_cert, tls_key)
    if tls_clients is not None and own is None:
        raise click.UsageError("--tls-clients goes with --tls-cert and --tls-key")
    if any(letter.isspace() or letter in ",=" for letter in options["name"]):
        raise click.UsageError(f"--name: {options['name']!r}: --peers can't name white space, ',' and '='")
    if peers and discover is not None:
        raise click.UsageError("--peers and --discover: name one of them")
    known = read_peers(peers)
    dialed = known.values() if discover is None else ["wss://"]  # who comes may take TLS
    return run_serve(
        app,
        peers=known,
        discover=discover,
        token=read_token(token_file),
        ssl_context=server_tls(*own, tls_clients) if own is not None else None,
        peer_ssl_context=client_tls(tls_ca, dialed, own),
        limits=tiedreq.ReplicaLimits(**limits),
        observe=Observe(listen=metrics, tracing=options.pop("tracing")),
        **options,
    )


def where_options(function: Callable[..., int]) -> Callable[..., int]:
    """The options that say where the cluster is."""
    for option in (
        click.option("--tls-key", type=FILE, help="Its private key (PEM)."),
        click.option("--tls-cert", type=FILE, help="The certificate to show where replicas ask for one (PEM)."),
        click.option("--tls-ca", type=FILE, help="Trust replicas with certificates of this authority (PEM)."),
        click.option("--token-file", type=FILE, help="The cluster's shared secret; a cluster file holds it already."),
        click.option("--cluster-name", metavar="NAME", help="With --replicas: the cluster's name.  [default: tiedreq]"),
        click.option(
            "--replicas", metavar="URL[,URL…]", help="Instead of a cluster file: ws://a:7000,… or dns://NAME:PORT."
        ),
        click.option(
            "--cluster",
            metavar="FILE",
            help="The cluster file, or a list of replicas.  [default: $TIEDREQ_CLUSTER, else ./.tiedreq/cluster.json]",
        ),
    ):
        function = option(function)
    return function


@command.command()
@click.argument("method")
@click.argument("args", metavar="[JSON]", type=JSON, required=False)
@where_options
@click.option(
    "--policy",
    type=click.Choice(["tied", "hedged", "plain"]),
    help="[default: tied when the method is declared idempotent, else plain]",
)
@click.option(
    "--backup-after",
    type=DURATION,
    help=f"Send a backup so long after the start (tied) or the sending (hedged).  [hedged: {BACKUP_AFTER_DEFAULT}]",
)
@click.option("--timeout", type=TIMEOUT, default="10s", show_default=True)
@click.option("--zone", default="", metavar="NAME", help="Where this client is: the first copy stays there.")
@click.option("--key", help="An idempotency key, which handlers see.")
@click.option("--explain", is_flag=True, help="Show on standard error what became of each copy.")
def call(method: str, args: Any, explain: bool, key: str | None, **options: Any) -> int:
    """Call METHOD with one JSON value and print the result as JSON.

    \b
    tiedreq call search '{"query": "json"}' --explain
    """
    from tiedreq.commands import CallOptions, run_call

    backup_after = options.pop("backup_after")
    policy = options.pop("policy")
    if backup_after is not None and policy == "plain":
        raise click.UsageError("--backup-after: --policy plain sends no backups")
    if policy == "hedged" and backup_after is None:
        backup_after = parse_duration(BACKUP_AFTER_DEFAULT)
    call_options: CallOptions = CallOptions(
        method=method,
        args=args,
        policy=policy,
        backup_after=backup_after,
        timeout=options.pop("timeout"),
        key=key,
        explain=explain,
        zone=options.pop("zone"),
    )
    return run_call(read_where(**options), call_options)


@command.command()
@where_options
@click.option("--json", "as_json", is_flag=True, help="Everything that replicas report, as JSON.")
@click.option("--timeout", type=TIMEOUT, default="3s", show_default=True)
def status(as_json: bool, timeout: float, **options: Any) -> int:
    """Show how the replicas of a cluster are, one row for each."""
    from tiedreq.commands import run_status

    return run_status(read_where(**options), as_json=as_json, timeout=timeout)


@command.command()
@click.argument("call_id", required=False)
@where_options
@click.option("--client", "clients", multiple=True, metavar="URL", help="Ask this client too: http://127.0.0.1:9200.")
@click.option(
    "--perfetto",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Write the timeline for ui.perfetto.dev.",
)
@click.option("--json", "as_json", is_flag=True, help="The timeline, or the list of calls, as JSON.")
@click.option("--timeout", type=TIMEOUT, default="3s", show_default=True)
def explain(
    call_id: str | None,
    clients: Sequence[str],
    perfetto: Path | None,
    as_json: bool,
    timeout: float,
    **options: Any,
) -> int:
    """Show what became of every copy of the call CALL_ID: a bar for each, then moment by moment.

    Replicas are asked for what they remember, and clients on this host that show themselves: those announced beside
    the cluster file, and those named with --client. Memories are short: ask soon. Without CALL_ID, the slowest calls
    that these clients remember are listed.

    \b
    tiedreq explain 0f3a6c1e9b2d4857-42 --perfetto call.json
    """
    from tiedreq.commands import ExplainOptions, run_explain

    if call_id is None and perfetto is not None:
        raise click.UsageError("--perfetto: of which call? CALL_ID is missing")
    explain_options = ExplainOptions(
        call_id=call_id, clients=tuple(clients), perfetto=perfetto, as_json=as_json, timeout=timeout
    )
    return run_explain(read_where(**options), explain_options)


def read_where(
    cluster: str | None,
    replicas: str | None,
    cluster_name: str | None,
    token_file: Path | None,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
) -> Where:
    """What ``where_options`` mean. Raises ``click.UsageError`` and ``BadOption``."""
    from tiedreq.commands import Where

    if cluster is not None and replicas is not None:
        raise click.UsageError("--cluster and --replicas: name one of them")
    if cluster is not None and "://" in cluster:
        raise click.UsageError(f"--cluster: {cluster!r} is no file; addresses go to --replicas")
    if replicas is not None and "://" not in replicas:
        raise click.UsageError(f"--replicas: {replicas!r} is no address; a file goes to --cluster")
    own = certificate_of(tls_cert, tls_key)
    return Where(
        replicas=cluster if cluster is not None else replicas,
        cluster=cluster_name,
        token=read_token(token_file),
        tls=lambda urls: client_tls(tls_ca, urls, own),
    )


def read_peers(texts: Sequence[str]) -> dict[str, str]:
    """``NAME=URL`` texts, each perhaps several joined by commas. Raises ``BadOption``."""
    peers: dict[str, str] = {}
    for item in ",".join(texts).split(",") if texts else ():
        name, equals, url = item.strip().partition("=")
        if not name or not equals:
            raise BadOption(f"peers: {item.strip()!r} is not NAME=URL, such as b=wss://host-b:7000")
        if name in peers:
            raise BadOption(f"peers: {name!r} is named twice")
        peers[name] = check_url(f"peers: {name}", url)
    return peers


def read_token(path: Path | None) -> str | None:
    """The secret in a file, without the white space around it. Raises ``BadOption``."""
    if path is None:
        return None
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"token-file: {path} can't be read: {error}") from None
    if not token:
        raise BadOption(f"token-file: {path} is empty")
    return token


def certificate_of(certificate: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """The two that go together. Raises ``click.UsageError`` for one alone."""
    if (certificate is None) != (key is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    return (certificate, key) if certificate is not None and key is not None else None


def server_tls(certificate: Path, key: Path, clients: Path | None = None) -> ssl.SSLContext:
    """What a replica that listens with TLS needs; ``clients``: whose certificates who dials must show.

    Raises ``BadOption``.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load_certificate(context, certificate, key)
    if clients is not None:
        try:
            context.load_verify_locations(clients)
        except (ssl.SSLError, OSError) as error:
            raise BadOption(f"tls-clients: {clients} can't be used: {error}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(authority: Path | None, urls: Any, own: tuple[Path, Path] | None = None) -> ssl.SSLContext | None:
    """What dialing ``urls`` needs, with the certificate and key to show; None when none of them is ``wss://``.

    Raises ``BadOption``.
    """
    if not any(url.startswith("wss://") for url in urls):
        return None
    try:
        context = ssl.create_default_context(cafile=authority)
    except (ssl.SSLError, OSError) as error:
        raise BadOption(f"tls-ca: {authority} can't be used: {error}") from None
    if own is not None:
        _load_certificate(context, *own)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise BadOption(f"tls-cert, tls-key: {certificate} and {key} can't be used: {error}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    try:
        code: int = command.main(arguments, prog_name="tiedreq", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except UsageError as error:
        click.echo(f"tiedreq: {error}", err=True)
        return 2
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(main())
