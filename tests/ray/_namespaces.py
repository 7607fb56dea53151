"""Network namespaces on one bridge, a Ray node in each by Ray's own command line: to the network they are machines.

Each has a directory of its own where Ray keeps its files and sockets. Nothing of it has a name on this host: the
namespaces are those of processes that wait, and are gone with them.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests.cluster._launcher import Child, Up
from tests.ray._settings import ENVIRONMENT, SYSTEM

PREFIX = "10.213.77."
PORT = 6379
PATIENCE = 120.0
WAIT = """
import sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(0.1)
"""


def missing() -> str:
    """Why there can't be namespaces here; empty when there can."""
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            return f"no {tool} here"
    mount = ["mount", "--bind", "/tmp", "/tmp"]
    for command in (mount, ["ip", "link", "add", "type", "bridge"], ["ip", "link", "add", "type", "veth"]):
        done = subprocess.run(["unshare", "--net", "--mount", *command], capture_output=True, text=True)
        if done.returncode != 0:
            return f"{' '.join(command)}: {done.stderr.strip()}"
    return ""


class Namespace:
    """A network namespace, as long as it is not ended, in which ``seen`` is the directory ``own``."""

    def __init__(self, own: Path, seen: Path) -> None:
        own.mkdir()
        script = 'mount --bind "$0" "$1" && echo up && read _'
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", script, str(own), str(seen)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"up\n"
        self.pid = self._holder.pid
        self.run("ip", "link", "set", "lo", "up")

    def inside(self, *command: str, cwd: Path = Path("/")) -> list[str]:
        """The command that runs another one in here, in the same process."""
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "env", f"--chdir={cwd}", *command]

    def run(self, *command: str) -> None:
        subprocess.run(self.inside(*command), check=True, capture_output=True)

    def end(self) -> None:
        self._holder.kill()
        self._holder.communicate()


class Machines:
    """Namespaces ``0 … count - 1``; the head of Ray is in the first."""

    def __init__(self, count: int, cpus: int, temporary: Path) -> None:
        self._disks = temporary
        self._seen = temporary / "ray"
        self._seen.mkdir()
        self._cpus = cpus
        self._log = (temporary / "ray.out").open("ab")
        self.token = secrets.token_hex(32)
        self.address = f"{PREFIX}1:{PORT}"
        self.switch = Namespace(temporary / "switch", self._seen)
        self.machines: list[Namespace] = []
        self.rays: list[subprocess.Popen[bytes]] = []
        try:
            self._connect(count)
            for index in range(count):
                self._start(index)
            self._wait()
        except BaseException:
            self.end()
            raise

    @property
    def environment(self) -> dict[str, str]:
        """What who joins needs."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}

    def _connect(self, count: int) -> None:
        self.switch.run("ip", "link", "add", "bridge", "type", "bridge")
        self.switch.run("ip", "link", "set", "bridge", "up")
        for index in range(count):
            machine = Namespace(self._disks / str(index), self._seen)
            self.machines.append(machine)
            cable = f"cable{index}"
            peer = ["peer", "name", "eth0", "netns", str(machine.pid)]
            self.switch.run("ip", "link", "add", cable, "type", "veth", *peer)
            self.switch.run("ip", "link", "set", cable, "master", "bridge", "up")
            machine.run("ip", "address", "add", f"{PREFIX}{index + 1}/24", "dev", "eth0")
            machine.run("ip", "link", "set", "eth0", "up")

    def _start(self, index: int) -> None:
        options = ["--node-ip-address", f"{PREFIX}{index + 1}", "--num-cpus", str(self._cpus), "--block"]
        if index == 0:
            options += ["--head", "--port", str(PORT), "--include-dashboard", "false"]
            options += ["--temp-dir", str(self._seen), "--system-config", json.dumps(SYSTEM)]
        else:
            options += ["--address", self.address]
        options += ["--object-store-memory", str(80 * 1024 * 1024), "--disable-usage-stats"]
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", *options]
        environment = {**os.environ, **ENVIRONMENT, **self.environment}
        self.rays.append(
            subprocess.Popen(
                self.machines[index].inside(*ray),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=environment,
                start_new_session=True,
            )
        )
        if index == 0:
            self._until_head_answers()

    def _until_head_answers(self) -> None:
        until = time.monotonic() + PATIENCE
        probe = f"import socket; socket.create_connection(('{PREFIX}1', {PORT}), 2)"
        while subprocess.run(self.machines[0].inside(sys.executable, "-c", probe), capture_output=True).returncode:
            assert time.monotonic() < until, "the head of Ray does not answer"
            time.sleep(0.5)

    def _wait(self) -> None:
        """Until Ray knows all nodes."""
        command = self.machines[0].inside(sys.executable, "-c", WAIT, self.address, str(len(self.rays)))
        environment = {**os.environ, **ENVIRONMENT, **self.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr

    def raylet(self, index: int) -> psutil.Process | None:
        """The raylet of a node."""
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.rays[index].pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if process.name() == "raylet":
                        return process
        return None

    def lose_raylet(self, index: int) -> None:
        """Lose a node as a machine is lost: its raylet and what that has started are killed."""
        raylet = self.raylet(index)
        assert raylet is not None
        for process in [raylet, *raylet.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def cut(self, index: int) -> None:
        """Pull the cable of a node: nothing leaves or reaches it, and nobody is told."""
        self.switch.run("ip", "link", "set", f"cable{index}", "down")

    def mend(self, index: int) -> None:
        """Put the cable back."""
        self.switch.run("ip", "link", "set", f"cable{index}", "up")

    def workers(self) -> list[str]:
        """The names of the processes that run actors and tasks."""
        names = []
        for ray in self.rays:
            with suppress(psutil.NoSuchProcess):
                for process in psutil.Process(ray.pid).children(recursive=True):
                    with suppress(psutil.Error):
                        names.append(" ".join(process.cmdline()))
        return [name for name in names if name.startswith("ray::") and "Agent" not in name]

    def end(self) -> None:
        """End all."""
        for ray in self.rays:
            left = []
            with suppress(psutil.NoSuchProcess):
                left = psutil.Process(ray.pid).children(recursive=True)
            for process in [psutil.Process(ray.pid), *left] if ray.poll() is None else left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            ray.wait()
        for namespace in (*self.machines, self.switch):
            namespace.end()
        self._log.close()


class UpInside(Up):
    """``python -m cluster.up`` in a namespace."""

    def __init__(self, namespace: Namespace, cwd: Path, *options: str, **environment: str) -> None:
        run = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
        command = namespace.inside(sys.executable, "-m", "cluster.up", *options, cwd=cwd)
        Child.__init__(self, ["-c", run, *command], cwd, **environment)
        self.state = cwd / ".tiedreq"
