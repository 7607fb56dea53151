"""What the commands of ``tiedreq`` do: run one replica, make one call, show how replicas are and what a call did.

Each returns the exit code. Errors of the library become one line on standard error; ``UsageError`` goes up to
``tiedreq.cli``. Not for the command line itself.
"""

from __future__ import annotations

import base64
import functools
import json
import logging
import os
import ssl
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from tiedreq.core.policy import Backup, Hedged, Plain, Policy, Tied
from tiedreq.discovery.find import find_source
from tiedreq.errors import (
    BadOption,
    CallError,
    ConnectError,
    RemoteFailure,
    TiedreqError,
    UnsafeToDuplicate,
    UsageError,
)
from tiedreq.loading import AppError, load_service
from tiedreq.net.addresses import is_loopback, parse_address
from tiedreq.net.collecting import spare_the_loop
from tiedreq.net.connecting import connect
from tiedreq.net.serving import ReplicaHandle, serve
from tiedreq.observe.logs import set_up_logs
from tiedreq.reply import Attempt
from tiedreq.runner import drain_on_signals
from tiedreq.service import Service

if TYPE_CHECKING:
    from tiedreq.observe.explain import Timeline
    from tiedreq.observe.snapshot import CallView

CALLS_LISTED = 20
TABLE_WIDTH = 140
"""Where there is no terminal."""

# ---- serve --------------------------------------------------------------------------------------------------------


def run_serve(app: str, *, log_format: str, log_level: str, **options: Any) -> int:
    """Run one replica of the service ``app`` until it is drained. ``options`` are those of ``tiedreq.serve``."""
    set_up_logs(log_format, log_level)
    try:
        service = load_service(app)
    except AppError as error:
        say(error.story)
        return 2
    return trio.run(_serve, service, options)


async def _serve(service: Service, options: dict[str, Any]) -> int:
    try:
        async with trio.open_nursery() as nursery:

            async def replica(task_status: trio.TaskStatus[ReplicaHandle]) -> None:
                await serve(service, task_status=task_status, **options)
                nursery.cancel_scope.cancel()

            handle = await nursery.start(replica)
            await nursery.start(drain_on_signals, handle, options["drain_timeout"])
            if options["token"] is None and not is_loopback(parse_address(options["listen"]).host):
                logging.getLogger("tiedreq").warning("no --token-file: whoever reaches %s may call", options["listen"])
            spare_the_loop()
            print(f"ready {handle.name} {handle.url}", flush=True)
    except BaseExceptionGroup as group:
        error = group.exceptions[0] if len(group.exceptions) == 1 else group
        return _serve_failure(error, options["listen"])
    return 0


def _serve_failure(error: BaseException, listen: str) -> int:
    if isinstance(error, UsageError):
        raise error
    if isinstance(error, OSError) and error.errno is not None:
        say(f"can't listen at {error.filename or listen}: {(error.strerror or os.strerror(error.errno)).lower()}")
    elif isinstance(error, Exception):
        say("".join(traceback.format_exception(error)).rstrip())
    else:
        raise error
    return 1


# ---- call and status ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where the cluster is: as ``tiedreq.connect`` takes it. ``tls`` makes what dialing these URLs needs."""

    replicas: str | None
    cluster: str | None
    token: str | None
    tls: Callable[[Iterable[str]], ssl.SSLContext | None]

    def urls(self) -> list[str]:
        """The replicas' addresses, or what they begin with. Raises ``ConnectError`` and ``BadOption``."""
        return find_source(self.replicas).urls

    def names(self) -> list[str]:
        """The replicas' names, as far as they are known before anybody is asked."""
        return [replica.name for replica in find_source(self.replicas).address.replicas if replica.name is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """What to call and how. ``policy`` None: a tie where the method may run twice. Durations are seconds."""

    method: str
    args: Any
    policy: str | None
    backup_after: float | None
    timeout: float
    key: str | None
    explain: bool
    zone: str = ""

    @property
    def tied(self) -> Policy:
        """The tie: with a backup where a delay was given."""
        return Tied() if self.backup_after is None else Tied(backup=Backup(after=self.backup_after))

    @property
    def chosen(self) -> Policy | None:
        """The policy that was asked for by name."""
        if self.policy == "hedged":
            assert self.backup_after is not None
            return Hedged(Backup(after=self.backup_after, since="send"))
        return {None: None, "plain": Plain(), "tied": self.tied}[self.policy]


def run_call(where: Where, options: CallOptions) -> int:
    """Make one call and print its result as JSON."""
    return _talk(functools.partial(_call, where, options))


async def _call(where: Where, options: CallOptions) -> int:
    tls = where.tls(where.urls())
    async with connect(
        where.replicas,
        token=where.token,
        cluster=where.cluster,
        ssl_context=tls,
        policy=options.tied,
        timeout=options.timeout,
        zone=options.zone,
    ) as client:
        try:
            reply = await client.request(
                options.method, options.args, policy=options.chosen, timeout=options.timeout, key=options.key
            )
        except UnsafeToDuplicate:
            raise UnsafeToDuplicate(
                f"{options.method!r} is not declared idempotent, so it is not sent twice. Use --policy plain, or"
                " declare @service.method(idempotent=True) if running twice is harmless. Nothing was sent."
            ) from None
        except CallError as error:
            if options.explain:
                _explain(error.attempts)
            raise
    if options.explain:
        _explain(reply.attempts)
        say(
            f"answered by {reply.replica} after {reply.latency * 1000:.2f} ms: "
            f"{reply.queue_wait * 1000:.2f} ms in its queue, {reply.service_time * 1000:.2f} ms of work"
        )
    try:
        print(to_json(reply.value), flush=True)
    except (TypeError, ValueError) as error:
        say(f"the result can't be shown as JSON: {error}")
        return 1
    return 0


def run_status(where: Where, *, as_json: bool, timeout: float) -> int:
    """Show how the replicas are. One that can't be asked has a row that says so."""
    return _talk(functools.partial(_status, where, as_json, timeout))


async def _status(where: Where, as_json: bool, timeout: float) -> int:
    statuses: dict[str, Mapping[str, Any] | None] = dict.fromkeys(where.names())
    tls = where.tls(where.urls())
    async with connect(
        where.replicas, token=where.token, cluster=where.cluster, ssl_context=tls, timeout=timeout
    ) as client:
        statuses |= await client.replica_status(timeout=timeout)
    if as_json:
        print(to_json(statuses), flush=True)
        return 0
    from rich.console import Console

    from tiedreq.tables import replica_table

    table = replica_table(dict(sorted(statuses.items())))
    Console(width=None if sys.stdout.isatty() else TABLE_WIDTH, emoji=False).print(table)
    return 0


# ---- explain ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions:
    """Which call to explain (None: list calls), whom to ask besides the replicas, and how to show it."""

    call_id: str | None
    clients: tuple[str, ...]
    perfetto: Path | None
    as_json: bool
    timeout: float


def run_explain(where: Where, options: ExplainOptions) -> int:
    """Show the timeline of a call, or the slowest calls that clients remember."""
    from tiedreq.observe.announce import check_observe_url
    from tiedreq.observe.stories import parse_call_id

    if options.call_id is not None and parse_call_id(options.call_id) is None:
        raise BadOption(f"CALL_ID: {options.call_id!r} is not 16 hexadecimal digits, a dash, and a number")
    urls = [check_observe_url(url) for url in options.clients]
    return _talk(functools.partial(_explain_call, where, options, urls))


async def _explain_call(where: Where, options: ExplainOptions, urls: list[str]) -> int:
    from tiedreq.observe.ask import Memories

    address = find_source(where.replicas).address
    urls = list(dict.fromkeys([*urls, *_clients_beside(Path(address.source))]))
    token = where.token if where.token is not None else address.token
    async with connect(
        where.replicas,
        token=where.token,
        cluster=where.cluster,
        ssl_context=where.tls(where.urls()),
        timeout=options.timeout,
        observe=None,
    ) as client:
        memories = Memories(client, urls, token=token, timeout=options.timeout)
        if options.call_id is None:
            code = _show_calls(await memories.recent(), options, asked=len(urls))
        else:
            code = _show_timeline(await memories.explain(options.call_id), options)
    for line in memories.told:
        say(line)
    return code


def _clients_beside(cluster_file: Path) -> list[str]:
    """The clients that are announced beside a cluster file, if it is one."""
    from tiedreq.observe.announce import DIRECTORY, announced_clients

    return list(announced_clients(cluster_file.parent / DIRECTORY).values()) if cluster_file.is_file() else []


def _show_calls(calls: list[CallView], options: ExplainOptions, *, asked: int) -> int:
    if not asked:
        say("no client on this host shows itself; name one with --client, or name a call")
        return 1
    slowest = sorted(calls, key=lambda call: call["latency"], reverse=True)[:CALLS_LISTED]
    if options.as_json:
        print(to_json(slowest), flush=True)
        return 0
    for call in slowest:
        ends = ", ".join(f"{copy['replica']} {copy['end']}" for copy in call["copies"])
        milliseconds = f"{1000 * call['latency']:10.3f} ms"
        print(f"{call['call_id']:<28} {milliseconds}  {call['method']} {call['outcome']} ({ends})", flush=True)
    return 0


def _show_timeline(found: Timeline | None, options: ExplainOptions) -> int:
    from tiedreq.observe.explain import as_perfetto, as_text

    if found is None:
        say(f"nobody remembers call {options.call_id}: it never was, it is too long ago, or its replica has restarted")
        return 1
    if options.perfetto is not None:
        try:
            options.perfetto.write_text(json.dumps(as_perfetto(found), indent=1) + "\n", "utf-8")
        except OSError as error:
            say(f"{options.perfetto}: can't be written: {error.strerror}")
            return 1
    print(to_json(asdict(found)) if options.as_json else as_text(found), flush=True)
    return 0


def _talk(program: Callable[[], Any]) -> int:
    """Run ``program`` on Trio; an error of the library becomes one line, and its log is for programs that run on."""
    logging.getLogger("tiedreq").addHandler(logging.NullHandler())
    logging.getLogger("tiedreq").propagate = False
    try:
        code: int = trio.run(program)
    except UsageError:
        raise
    except TiedreqError as error:
        say(f"{type(error).__name__}: {one_line(str(error))}{_details(error)}")
        return 1
    return code


def _details(error: TiedreqError) -> str:
    if isinstance(error, RemoteFailure) and error.details is not None:
        return f"; details: {one_line(to_json(error.details, indent=None))}"
    if isinstance(error, ConnectError) and error.__cause__ is not None:
        return f" ({one_line(str(error.__cause__))})"
    return ""


def _explain(attempts: tuple[Attempt, ...]) -> None:
    from rich.console import Console

    from tiedreq.tables import attempts_table

    width = None if sys.stderr.isatty() else TABLE_WIDTH
    Console(stderr=True, width=width, emoji=False).print(attempts_table(attempts))


def to_json(value: Any, indent: int | None = 2) -> str:
    """``value`` as JSON; bytes, which JSON has not, as Base64 text. Raises ``TypeError`` or ``ValueError``."""
    return json.dumps(value, indent=indent, ensure_ascii=False, default=_unusual)


def _unusual(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes | bytearray) else str(value)


def one_line(text: str) -> str:
    """``text`` without line breaks."""
    return " ".join(text.split())


def say(text: str) -> None:
    """A line on standard error."""
    print(f"tiedreq: {text}", file=sys.stderr, flush=True)
