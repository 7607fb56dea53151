"""The child program that is Ray's driver: ``python -m cluster.engines.on_ray.driver``, started by the launcher.

Messages come on standard input and go out on standard output, one JSON object a line, as those of ``cluster.replica``.

* in: ``{"do": "open", "address", "cluster", "replicas", "cpus", "cpus_here", "steady"}`` first; then for the life
  ``id`` of a replica ``{"do": "start", "id", "index", "spec", "environment"}``, ``{"do": "tell", "id", "message"}``,
  ``{"do": "freeze" | "thaw" | "kill", "id"}``; ``{"do": "close"}`` or the end of the input ends everything.
* out: ``{"event": "open", "address", "nodes", "strategy"}`` or ``{"event": "refused", "story"}``; then for each life
  ``{"event": "started", "id", "pid", "node"}``, ``{"event": "said", "id", "message"}``, ``{"event": "logged", "id",
  "line"}`` and last ``{"event": "ended", "id", "how"}``; at any time ``{"event": "note", "text"}``

A thread for each life waits for what its actor says. Invariants: each life that was started has exactly one ``ended``;
when this program has ended, however it ended, Ray ends its actors (they belong to its job), and a Ray that it has
started ends with it.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cluster.engines.local import die_with_launcher, take_control_pipes
from cluster.engines.on_ray import NAMESPACE
from cluster.engines.on_ray.actor import METHODS_AT_ONCE, ReplicaActor, Warden
from cluster.engines.on_ray.placement import Placement
from cluster.engines.on_ray.session import RayUnavailable, opened
from cluster.lines import encode, parse

HEAR_SECONDS = 10.0
POLL_SECONDS = 0.1
NAME_SECONDS = 5.0
"""How long the actor before may take to give its name back."""
KILLED_SECONDS = 5.0
"""After a kill, for how long Ray's confirmation is waited for: a node that can't be reached gives none."""
PENDING_SECONDS = 15.0
THAW_SECONDS = 0.5
CHUNK_BYTES = 64 * 1024


class Driver:
    """The lives of all replicas, and the pipe to the launcher. ``say`` may be called from any thread."""

    def __init__(self, ray: Any, answers: int, opening: Mapping[str, Any]) -> None:
        self.ray = ray
        self.cluster: str = opening["cluster"]
        self.cpus: float = opening["cpus"]
        self.steady: bool = opening["steady"]
        self.placement = Placement(ray, opening["replicas"], self.cpus, self._nodes)
        self.actor = ray.remote(ReplicaActor)
        self._warden = ray.remote(Warden)
        self._wardens: dict[str, Any] = {}
        self._answers = answers
        self._lock = threading.Lock()
        self._lives: dict[int, Life] = {}
        self.homes: dict[str, str] = {}
        """The nodes where replicas were last, by name."""

    def say(self, message: Mapping[str, Any]) -> None:
        """Tell the launcher. Ends the program when that is gone."""
        say(self._answers, message, self._lock)

    def note(self, text: str) -> None:
        """Something that a person should know."""
        self.say({"event": "note", "text": text})

    def obey(self, message: Mapping[str, Any]) -> None:
        """Do what the launcher says of a life."""
        if message["do"] == "start":
            life = self._lives[message["id"]] = Life(self, message)
            threading.Thread(target=life.run, name=f"life of {message['spec']['name']}", daemon=True).start()
        elif (found := self._lives.get(message["id"])) is not None:
            match message["do"]:
                case "tell":
                    found.tell(message["message"])
                case "kill":
                    found.kill()
                case "freeze":
                    found.freeze()
                case "thaw":
                    found.thaw()

    def ended(self, life: Life, how: str) -> None:
        """A life is over."""
        self._lives.pop(life.id, None)
        self.say({"event": "ended", "id": life.id, "how": how})

    def warden(self, node: str) -> Any:
        """The actor that lets the replicas of a node go on."""
        if node not in self._wardens:
            self._wardens[node] = self._warden.options(
                num_cpus=0, scheduling_strategy=self.placement.at(node), max_restarts=-1
            ).remote()
        return self._wardens[node]

    def _nodes(self) -> list[str]:
        return [life.node for life in list(self._lives.values()) if life.node]


class Life:
    """One actor, from the wish for it to its end. ``node`` is the id of the node it runs on, empty before."""

    def __init__(self, driver: Driver, message: Mapping[str, Any]) -> None:
        self.id: int = message["id"]
        self.node = ""
        self._driver = driver
        self._index: int | None = message["index"]
        self._spec: dict[str, Any] = message["spec"]
        self._environment: dict[str, str] = message["environment"]
        self._lock = threading.Lock()
        self._actor: Any = None
        self._pid = 0
        self._address = ""
        self._warden: Any = None
        self._stopped: Any = None
        self._killed_at: float | None = None
        self._tells: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def run(self) -> None:
        """Live, in a thread of its own."""
        try:
            how = self._live()
        except Exception as error:  # whatever Ray raises: the launcher has to know that this life is over
            how = self._in_words(error)
        self._kill_actor()
        self._driver.ended(self, how)

    def tell(self, message: dict[str, Any]) -> None:
        """Hand a control message on, in order, as soon as there is an actor."""
        with self._lock:
            if self._actor is None:
                self._tells.put(message)
            else:
                self._actor.tell.remote(message)

    def kill(self) -> None:
        """End the actor at once."""
        self._killed_at = time.monotonic()
        self._kill_actor()

    def freeze(self) -> None:
        """Have the actor stop where it is, if it runs."""
        if self._pid and self._stopped is None:
            self._warden = self._driver.warden(self.node)
            self._stopped = self._actor.stop.remote()

    def thaw(self) -> None:
        """Have it go on, if it has stopped or is about to. Without waiting: a thread sees to it."""
        stopped, self._stopped = self._stopped, None
        if stopped is not None:
            threading.Thread(target=self._thaw, args=(stopped,), name="thaw", daemon=True).start()

    def _thaw(self, stopped: Any) -> None:
        # The order may come before it has stopped, so it is given until it goes on.
        ready: list[Any] = []
        while not ready:
            self._warden.thaw.remote(self._pid)
            ready, _ = self._driver.ray.wait([stopped], timeout=THAW_SECONDS)

    def _live(self) -> str:
        ray, errors = self._driver.ray, self._driver.ray.exceptions
        actor = self._create()
        if actor is None:
            return "killed before it was placed"
        begun = actor.begin.remote()
        began = time.monotonic()
        while not ray.wait([begun], timeout=POLL_SECONDS)[0]:
            if self._killed_at is not None:
                return "killed before it was placed"
            if began and time.monotonic() - began > PENDING_SECONDS:
                began = 0.0
                self._driver.note(
                    f"{self._spec['name']} has not begun after {PENDING_SECONDS:g} s: Ray is slow, or has no node with "
                    f"{self._driver.cpus:g} free CPU"
                )
        found = ray.get(begun)
        self.node, self._pid, self._address = found["node"], found["pid"], found["address"]
        self._driver.homes[self._spec["name"]] = self.node
        self._driver.say({"event": "started", "id": self.id, "pid": self._pid, "node": self._address})
        after = 0
        while True:
            answer = actor.hear.remote(after, HEAR_SECONDS)
            while not ray.wait([answer], timeout=POLL_SECONDS if self._killed_at else HEAR_SECONDS)[0]:
                if self._killed_at is not None and time.monotonic() - self._killed_at > KILLED_SECONDS:
                    return "killed"
            try:
                after, items = ray.get(answer)
            except errors.ActorUnavailableError:
                if self._killed_at is not None:
                    return "killed"
                time.sleep(POLL_SECONDS)  # Ray will find out whether it has died
                continue
            for item in items:
                if (code := self._pass_on(item)) is not None:
                    return f"exit code {code}"

    def _create(self) -> Any:
        """The actor, under its name; None when it was killed meanwhile."""
        driver = self._driver
        until = time.monotonic() + NAME_SECONDS
        home = "*" if driver.steady else driver.homes.get(self._spec["name"], "")
        while self._killed_at is None:
            try:
                actor = driver.actor.options(
                    name=f"{driver.cluster}/{self._spec['name']}",
                    namespace=NAMESPACE,
                    num_cpus=driver.cpus,
                    max_concurrency=METHODS_AT_ONCE,
                    scheduling_strategy=driver.placement.place(self._index),
                ).remote(self._spec, self._environment, home, os.getcwd())
            except ValueError:  # the name is taken: Ray has not buried the one before
                if time.monotonic() > until:
                    raise
                time.sleep(POLL_SECONDS)
                continue
            with self._lock:
                self._actor = actor
                while not self._tells.empty():
                    actor.tell.remote(self._tells.get())
            return actor
        return None

    def _pass_on(self, item: dict[str, Any]) -> int | None:
        """Tell the launcher what the replica said; its exit code when that was the last."""
        match item:
            case {"event": "over", "code": int(code)}:
                return code
            case {"event": "log", "line": str(line)}:
                self._driver.say({"event": "logged", "id": self.id, "line": line})
            case _:
                self._driver.say({"event": "said", "id": self.id, "message": item})
        return None

    def _kill_actor(self) -> None:
        self.thaw()  # a stopped process hears of no kill
        if self._actor is not None:
            self._driver.ray.kill(self._actor)

    def _in_words(self, error: Exception) -> str:
        if self._killed_at is not None:
            return "killed"
        if self.node and not self._driver.placement.is_alive(self.node):
            return f"was lost with its node {self._address}"
        if isinstance(error, self._driver.ray.exceptions.RayActorError) and self._pid:
            return "died"
        return f"can't be started: {' '.join(str(error).split())[-400:]}"


def say(answers: int, message: Mapping[str, Any], lock: threading.Lock) -> None:
    """Write a message to the launcher, whole. Ends the program when that is gone."""
    line = encode(message)
    with lock:
        try:
            while line:
                line = line[os.write(answers, line) :]
        except OSError:
            os._exit(1)


def read_messages(commands: int) -> Iterator[dict[str, Any]]:
    """The launcher's messages until it closes its end."""
    rest = b""
    while chunk := os.read(commands, CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield parse(line)


def main() -> int:
    """Be the driver until told to close, or until the launcher is gone; the exit code."""
    die_with_launcher()
    commands, answers = take_control_pipes()
    # Ray puts the folder of the program that is argv[0] on the path of its workers.
    sys.argv[0] = str(Path.cwd() / "cluster.up")
    messages = read_messages(commands)
    opening = next(messages, None)
    if opening is None:
        return 1
    try:
        with opened(opening["address"], cpus=opening["cpus_here"]) as ray:
            driver = Driver(ray, answers, opening)
            driver.placement.reserve(driver.note)
            address = ray.get_runtime_context().gcs_address
            nodes = sum(node["Alive"] for node in ray.nodes())
            driver.say({"event": "open", "address": address, "nodes": nodes, "strategy": driver.placement.strategy})
            for message in messages:
                if message["do"] == "close":
                    break
                driver.obey(message)
    except RayUnavailable as error:
        say(answers, {"event": "refused", "story": str(error)}, threading.Lock())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
