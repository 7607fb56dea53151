"""``python -m cluster.up``: start a cluster of replicas on this host and keep it up until it is told to stop.

The first line on standard output is ``ready N replicas, dashboard URL state DIR``; everything else that people read is
on standard error. Ctrl-C or SIGTERM drains and ends with 0; a second one ends at once with 130. No process is left in
any way of ending: children die with the launcher, also when it is killed.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TextIO

import click
import trio

from cluster.config import UpConfig
from cluster.control import Operator
from cluster.control_file import CONTROL_FILE, ControlAddress, write_control_file
from cluster.control_socket import serve_control
from cluster.dashboard.feed import Feed
from cluster.dashboard.launch import Dashboard, DashboardUnavailable, open_dashboard
from cluster.demo.index import IndexUnavailable, build_index
from cluster.demo_state import DemoState
from cluster.drive import TrafficDriver
from cluster.engines import Engine, EngineUnavailable, engine_of
from cluster.faults import Faults
from cluster.load import Load, TrafficSpec
from cluster.output import Output
from cluster.pasting import try_line
from cluster.state import StateDirectory, StateInUse, hold
from cluster.supervisor import Cluster
from cluster.upoptions import read_options
from tiedreq.units import LatencySpec

if TYPE_CHECKING:
    from rich.console import RenderableType

TABLE_SECONDS = 0.5
INTERRUPTED = 130
EXIT_BY_FATAL = {"app": 2, "option": 2}
"""Exit codes by why a replica could not start; 1 for all other reasons."""


class Stopping:
    """Signals as scopes: the first one cancels what waits in ``until_asked``, the second one ``hard``.

    ``reason`` names the first, and is empty before.
    """

    def __init__(self) -> None:
        self.hard = trio.CancelScope()
        self.reason = ""
        self._soft = trio.CancelScope()

    @contextmanager
    def until_asked(self) -> Iterator[None]:
        """Cancel the body at the first signal, or at once when that was there before."""
        with trio.CancelScope() as self._soft:
            if self.reason:
                self._soft.cancel()
            yield

    async def watch(self, task_status: trio.TaskStatus[None]) -> None:
        """Watch for SIGINT, SIGTERM and SIGHUP; what ``nohup`` ignores stays ignored."""
        wanted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            wanted.append(signal.SIGHUP)
        with trio.open_signal_receiver(*wanted) as signals:
            task_status.started()
            async for number in signals:
                if self.reason:
                    self.hard.cancel()
                else:
                    self.reason = signal.Signals(number).name
                    self._soft.cancel()


async def run(config: UpConfig, output: Output) -> int:
    """Run a cluster until it ends; the exit code. Raises ``StateInUse``."""
    stopping = Stopping()
    code = INTERRUPTED
    with hold(config.state_dir) as state:
        async with trio.open_nursery() as nursery:
            await nursery.start(stopping.watch)
            with stopping.hard:
                code = await _run_cluster(config, state, output, stopping)
            nursery.cancel_scope.cancel()
    return code


async def _run_cluster(config: UpConfig, state: StateDirectory, output: Output, stopping: Stopping) -> int:
    with stopping.until_asked():
        try:
            await _prepare(config, state)
        except IndexUnavailable as error:
            output.note(str(error))
            return 1
    if stopping.reason:
        return _stopped(output, 0, stopping.reason)
    try:
        dashboard = await open_dashboard(config)
    except DashboardUnavailable as error:
        output.note(str(error))
        if error.fatal:
            return 1
        dashboard = None
    try:
        engine = engine_of(config)
        async with engine.running(output.note):
            return await _run_replicas(config, state, output, stopping, dashboard, engine)
    except EngineUnavailable as error:
        output.note(str(error))
        return 2
    finally:
        if dashboard is not None:
            dashboard.close()


async def _run_replicas(
    config: UpConfig,
    state: StateDirectory,
    output: Output,
    stopping: Stopping,
    dashboard: Dashboard | None,
    engine: Engine,
) -> int:
    cluster, demo = _cluster(config, state, output, engine)
    cluster.dashboard = dashboard.url if dashboard is not None else None
    driver = _driver(config, state, output, cluster)
    operator = Operator(cluster, demo, driver)
    code, reason = 0, ""
    with stopping.until_asked():
        if refusal := await engine.ready(cluster.name):
            output.note(refusal)
            return 1
    if stopping.reason:
        return _stopped(output, 0, stopping.reason)
    async with cluster.running():
        with stopping.until_asked():
            if not await cluster.ready():
                return _start_failure(cluster, output)
        if stopping.reason:
            await cluster.drain()
            return _stopped(output, 0, stopping.reason)
        async with trio.open_nursery() as nursery:
            token = await _open_control(state, operator, output, cluster.dashboard, nursery)
            output.event(_ready_event(config, cluster.dashboard), try_line=try_line(config))
            if dashboard is not None:
                if output.wants_table:
                    output.note(f"dashboard with controls: {dashboard.url}#token={token}")
                feed = partial(Feed, cluster, operator, driver, title=_title(config), slots=config.slots)
                nursery.start_soon(dashboard.run, token, feed, output.note)
            if driver is not None:
                nursery.start_soon(driver.run)
            if output.wants_table:
                nursery.start_soon(_show, cluster, driver, output)
            with stopping.until_asked():
                code, reason = await _attend(cluster, driver)
            if driver is not None:
                await driver.stop()
            await cluster.drain()
            nursery.cancel_scope.cancel()
    return _stopped(output, code, stopping.reason or reason)


async def _prepare(config: UpConfig, state: StateDirectory) -> None:
    """Make what replicas need before they start."""
    if config.is_demo:
        await trio.to_thread.run_sync(build_index, state.index.absolute(), abandon_on_cancel=True)


def _cluster(
    config: UpConfig, state: StateDirectory, output: Output, engine: Engine
) -> tuple[Cluster, DemoState | None]:
    """The cluster, whose links can be shaped at any time, and the state of the demo's work if it runs the demo."""
    demo = DemoState(config, state.index.absolute()) if config.is_demo else None
    config = replace(config, mesh_latency=config.mesh_latency or LatencySpec())
    faults = Faults(config.mesh_latency)

    def environment(name: str) -> Mapping[str, str]:
        return {} if demo is None else demo.environment(name, faults)

    return Cluster(config, state, output, engine, environment, faults), demo


def _driver(config: UpConfig, state: StateDirectory, output: Output, cluster: Cluster) -> TrafficDriver | None:
    """The traffic, if any can be driven. Without ``--rate`` it waits until an operator wants some."""
    traffic = config.traffic
    if not config.is_demo:
        return None
    if traffic is None:
        load, duration = Load(), None
    else:
        after = traffic.backup_after
        load = Load(rate=traffic.rate, policy=traffic.policy, backup_after=after, work=config.demo.is_set)
        duration = traffic.duration
    spec = TrafficSpec(str(state.cluster_file.absolute()), load, duration, config.seed)
    return TrafficDriver(spec, output, cluster.executions, begin=traffic is not None)


async def _open_control(
    state: StateDirectory, operator: Operator, output: Output, dashboard: str | None, nursery: trio.Nursery
) -> str:
    """Let ``cluster.ctl`` in; the control token."""
    token = secrets.token_urlsafe(32)
    try:
        write_control_file(state.path, ControlAddress(os.getpid(), token, dashboard))
    except OSError as error:
        output.note(f"there is no control: {state.path / CONTROL_FILE} can't be written: {error.strerror}")
        return token
    if not await nursery.start(serve_control, state.path, token, operator):
        output.note("there is no control socket: the path of the state directory is too long, or it can't be made")
    return token


async def _attend(cluster: Cluster, driver: TrafficDriver | None) -> tuple[int, str]:
    """Wait for what ends the cluster by itself: the exit code and the reason."""
    endings: list[tuple[int, str]] = []
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event, ending: Callable[[], tuple[int, str]]) -> None:
            await event.wait()
            endings.append(ending())
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait, cluster.all_failed, lambda: (1, "all replicas have failed"))
        if driver is not None:
            nursery.start_soon(wait, driver.ended, partial(_traffic_ending, driver))
    return endings[0]


def _traffic_ending(driver: TrafficDriver) -> tuple[int, str]:
    return (1, "the traffic failed") if driver.failed else (0, "the traffic has ended")


async def _show(cluster: Cluster, driver: TrafficDriver | None, output: Output) -> None:
    """Keep the live table up to date."""
    from cluster.table import live_table

    while True:
        await trio.sleep(TABLE_SECONDS)
        statuses = {keeper.name: keeper.status for keeper in cluster.keepers}
        states = {keeper.name: keeper.shown_state for keeper in cluster.keepers}
        render: Callable[[], RenderableType] = partial(
            live_table, statuses, states, driver.progress if driver is not None else None
        )
        output.table(render)


def _start_failure(cluster: Cluster, output: Output) -> int:
    assert cluster.start_failure is not None
    keeper, fatal = cluster.start_failure
    if "\n" in fatal.story:
        output.raw(fatal.story)
        output.note(f"{keeper.name} could not start")
    elif fatal.kind == "state":
        output.note(fatal.story)
    else:
        output.note(f"{keeper.name}: {fatal.story}")
    return EXIT_BY_FATAL.get(fatal.kind, 1)


def _stopped(output: Output, code: int, reason: str) -> int:
    output.event({"event": "stopped", "exit": code, "reason": reason})
    return code


def _ready_event(config: UpConfig, dashboard: str | None) -> dict[str, object]:
    return {"event": "ready", "replicas": config.replicas, "dashboard": dashboard, "state": config.state_shown}


def _title(config: UpConfig) -> str:
    return "demo" if config.is_demo else config.app


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and run; the exit code."""
    try:
        config = read_options(sys.argv[1:] if arguments is None else arguments)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as ending:  # --help
        return ending.exit_code
    output = Output(json_events=config.json_events)
    try:
        code = trio.run(run, config, output)
    except StateInUse as error:
        output.note(str(error))
        code = 2
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        written = output.close()
    if not written:
        os._exit(code)  # a thread hangs in a write that nobody reads, and would hang the interpreter's end too
    _let_go(sys.stdout)
    _let_go(sys.stderr)
    return code


def _let_go(stream: TextIO) -> None:
    """Empty a stream whose reader may be gone, so that the interpreter's own flush can't change the exit code."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
