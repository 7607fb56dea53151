"""What the commands of ``tiedreq`` do: run one replica, make one call, show how replicas are.

Each returns the exit code. Errors of the library become one line on standard error; ``UsageError`` goes up to
``tiedreq.cli``. Not for the command line itself.
"""

from __future__ import annotations

import base64
import functools
import ipaddress
import json
import logging
import os
import ssl
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import trio

from tiedreq.clusterfile import resolve
from tiedreq.core.policy import Backup, Hedged, Plain, Policy, Tied
from tiedreq.errors import CallError, ConnectError, RemoteFailure, TiedreqError, UsageError
from tiedreq.loading import AppError, load_service
from tiedreq.net.addresses import parse_address
from tiedreq.net.connecting import connect
from tiedreq.net.serving import ReplicaHandle, serve
from tiedreq.reply import Attempt
from tiedreq.runner import drain_on_signals
from tiedreq.service import Service

TABLE_WIDTH = 140
"""Where there is no terminal."""

# ---- serve --------------------------------------------------------------------------------------------------------


def run_serve(app: str, **options: Any) -> int:
    """Run one replica of the service ``app`` until it is drained. ``options`` are those of ``tiedreq.serve``."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
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
            print(f"ready {handle.name} {handle.url}", flush=True)
    except BaseExceptionGroup as group:
        error = group.exceptions[0] if len(group.exceptions) == 1 else group
        return _serve_failure(error, options["listen"])
    return 0


def _serve_failure(error: BaseException, listen: str) -> int:
    if isinstance(error, UsageError):
        raise error
    if isinstance(error, OSError) and error.errno is not None:
        say(f"can't listen at {listen}: {os.strerror(error.errno).lower()}")
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
        """The replicas' addresses. Raises ``ConnectError`` and ``BadOption``."""
        return [replica.url for replica in resolve(self.replicas).replicas]

    def names(self) -> list[str]:
        """The replicas' names, as far as they are known before anybody is asked."""
        return [replica.name for replica in resolve(self.replicas).replicas if replica.name is not None]


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
    ) as client:
        try:
            reply = await client.request(
                options.method, options.args, policy=options.chosen, timeout=options.timeout, key=options.key
            )
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


def is_loopback(host: str) -> bool:
    """True when only this host reaches what listens at ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def say(text: str) -> None:
    """A line on standard error."""
    print(f"tiedreq: {text}", file=sys.stderr, flush=True)
