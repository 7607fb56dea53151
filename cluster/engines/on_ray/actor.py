"""The replica as an actor of Ray: Trio runs in a thread of its own, the methods are how the driver talks to it.

The process belongs to this replica alone. Invariants: it ends when its raylet is gone, even while stopped or busy, and
what it has started ends with it, however it ends: a small shell waits for that. What it prints and logs reaches the
driver line by line, and Ray's own log of this worker as well.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from cluster.config import DEMO_APP
from cluster.demo.index import build_index
from cluster.demo.settings import DemoSettings
from cluster.engines.base import ReplicaSpec
from cluster.lines import LOG_LINE_BYTES_MAX
from cluster.replica_life import fatal, live, load
from tiedreq.errors import BadOption
from tiedreq.loading import AppError
from tiedreq.net.addresses import Address, parse_url

BOX_MAX = 2_000
METHODS_AT_ONCE = 8
WILDCARDS = ("0.0.0.0", "::")
RAYS_OWN_LINES = (":actor_name:", ":task_name:", ":job_id:")
_PR_SET_PDEATHSIG = 1


class ReplicaActor:
    """One replica. ``hear`` and ``tell`` are the driver's; ``where`` is for who looks for the cluster in Ray."""

    def __init__(self, message: Mapping[str, Any], environment: Mapping[str, str], home: str, folder: str) -> None:
        """``message`` is that of a ``ReplicaSpec``; its port counts at the node ``home``, ``*`` for all nodes.

        ``folder`` is the launcher's current one, and this one's where there is one of that name.
        """
        _end_with_raylet()
        _end_children_too()
        os.environ.update(environment)
        with suppress(OSError):
            os.chdir(folder)
        with suppress(PermissionError):  # Ray's workers are background work, a replica is not
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self._box = Box()
        _capture_output(self._box)
        logging.basicConfig(
            level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr, force=True
        )
        self._node: str = importlib.import_module("ray").get_runtime_context().get_node_id()
        self._node_address: str = importlib.import_module("ray.util").get_node_ip_address()
        self._spec = self._fit(ReplicaSpec.from_message(message), home)
        self._peers: dict[str, str] = dict(self._spec.peers)
        self._url = ""
        self._lock = threading.Lock()
        self._early: list[dict[str, Any]] = []
        self._inbox: tuple[trio.lowlevel.TrioToken, trio.MemorySendChannel[dict[str, Any]]] | None = None
        threading.Thread(target=self._main, name="replica", daemon=True).start()

    # ---- called by Ray ----------------------------------------------------------------------------------------

    def begin(self) -> dict[str, Any]:
        """Where it runs."""
        return {"pid": os.getpid(), "node": self._node, "address": self._node_address}

    def hear(self, after: int, seconds: float) -> tuple[int, list[dict[str, Any]]]:
        """What it says, from the item with number ``after`` on, and the number to ask for next.

        Waits up to ``seconds`` for something. What was asked for with a higher number is forgotten, so an answer that
        got lost can be had again.
        """
        return self._box.take(after, seconds)

    def tell(self, message: dict[str, Any]) -> None:
        """Hand it a control message."""
        with self._lock:
            if message["do"] == "peers":
                self._peers = dict(message["peers"])
            if self._inbox is None:
                self._early.append(message)
                return
            token, channel = self._inbox
        with suppress(trio.RunFinishedError):  # it has drained
            token.run_sync_soon(channel.send_nowait, message)

    def stop(self) -> None:
        """Stop where it is, with all that it has started; returns when a ``Warden`` has let it go on."""
        os.killpg(0, signal.SIGSTOP)

    def where(self) -> dict[str, Any]:
        """What a client needs: the cluster's name and token, this replica's name and URL, and what it knows of others.

        The URL is empty until it serves.
        """
        spec = self._spec
        with self._lock:
            own = {"name": spec.name, "url": self._url}
            return {"cluster": spec.cluster, "token": spec.token, **own, "replicas": dict(self._peers)}

    # ---- the thread -------------------------------------------------------------------------------------------

    def _main(self) -> None:
        code = 1
        try:
            code = self._run()
        except (AppError, BadOption) as error:
            self._box.put(fatal("app", getattr(error, "story", str(error))))
            code = 2
        except BaseException:
            self._box.put({"event": "log", "line": traceback.format_exc().rstrip()})
        finally:
            self._box.put({"event": "over", "code": code})

    def _run(self) -> int:
        if self._spec.app == DEMO_APP:
            _bring_the_index()
        loaded = load(self._spec)

        async def run() -> int:
            send, receive = trio.open_memory_channel[dict[str, Any]](float("inf"))
            with self._lock:
                self._inbox = trio.lowlevel.current_trio_token(), send
                for message in self._early:
                    send.send_nowait(message)
            return await live(self._spec, loaded, receive, self, signals=False)

        return trio.run(run)

    async def send(self, message: Mapping[str, Any]) -> bool:
        """What the replica has to say. See ``replica_life.Sender``."""
        values = dict(message)
        if values["event"] == "ready":
            values["url"] = self._seen_from_outside(values["url"])
            with self._lock:
                self._url = values["url"]
        self._box.put(values)
        return True

    def _seen_from_outside(self, url: str) -> str:
        if self._spec.host not in WILDCARDS:
            return url
        return f"ws://{Address(self._node_address, parse_url(url).address.port)}"

    def _fit(self, spec: ReplicaSpec, home: str) -> ReplicaSpec:
        """``spec`` for this node: its address where none is given, and any free port where its own means nothing."""
        host = spec.host or self._node_address
        keeps = home == "*" or (home == self._node and _is_free(host, spec.port))
        return replace(spec, host=host, port=spec.port if keeps else 0)


class Box:
    """Numbered items that wait to be heard. Thread-safe; statuses and log lines beyond ``BOX_MAX`` are left out."""

    def __init__(self) -> None:
        self._items: deque[dict[str, Any]] = deque()
        self._first = 0
        self._changed = threading.Condition()

    def put(self, item: dict[str, Any]) -> None:
        """Add an item."""
        with self._changed:
            if len(self._items) >= BOX_MAX and item["event"] in ("log", "status"):
                return
            self._items.append(item)
            self._changed.notify_all()

    def take(self, after: int, seconds: float) -> tuple[int, list[dict[str, Any]]]:
        """See ``ReplicaActor.hear``."""
        with self._changed:
            while self._items and self._first < after:
                self._items.popleft()
                self._first += 1
            self._changed.wait_for(lambda: bool(self._items), seconds)
            return self._first + len(self._items), list(self._items)


class Warden:
    """An actor that lets replicas of its node go on that have stopped themselves: they can't."""

    def thaw(self, process: int) -> None:
        """Let the process group of a replica go on; harmless when it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGCONT)


def _end_with_raylet() -> None:
    """Be killed by the kernel when the raylet is gone, even while stopped."""
    parent = os.getppid()
    if sys.platform == "linux" and parent == int(os.environ.get("RAY_RAYLET_PID", "0")):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def _end_children_too() -> None:
    """Lead a process group that is killed when this process is gone: the shell's input ends with it."""
    os.setpgid(0, 0)
    reading, writing = os.pipe()
    os.set_inheritable(writing, False)
    subprocess.Popen(
        ["/bin/sh", "-c", 'read _; kill -9 -- "-$0"', str(os.getpid())],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(reading)


def _capture_output(box: Box) -> None:
    """Have all that this process writes to its outputs read line by line, and kept in Ray's log as well."""
    rays_log = os.dup(2)
    reading, writing = os.pipe()
    for descriptor in (1, 2):
        os.dup2(writing, descriptor)
    os.close(writing)

    def read() -> None:
        with open(reading, "rb", buffering=0) as pipe:
            rest = b""
            while chunk := pipe.read(LOG_LINE_BYTES_MAX):
                os.write(rays_log, chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > LOG_LINE_BYTES_MAX:
                    lines, rest = [*lines, rest], b""
                for line in lines:
                    text = line.decode("utf-8", "replace").rstrip("\r")
                    if not text.startswith(RAYS_OWN_LINES):
                        box.put({"event": "log", "line": text})

    threading.Thread(target=read, name="output", daemon=True).start()


def _bring_the_index() -> None:
    """Have the demo's index at this node: the launcher's, where that can be seen, else one of this host."""
    settings = DemoSettings.from_environment(os.environ)
    if not settings.index.exists():
        path = Path(tempfile.gettempdir()) / f"tiedreq-demo-{os.getuid()}" / "demo.sqlite"
        build_index(path)
        os.environ.update(replace(settings, index=path).environment())


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
