"""Runs the tasks of ``cluster.compare`` on the nodes of a Ray cluster.

The result of a simulated task depends on its cell and its seed only, so not on the node. Of live tasks each node runs
one at a time: they need the machine for themselves. A task whose node is lost is run again elsewhere.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cluster.compare.grid import Task
from cluster.compare.runner import RunFailed, run_task
from cluster.compare.tally import Tally
from cluster.engines.on_ray.session import RayUnavailable, opened
from tiedreq.core.errors import BadOption

LOSSES_MAX = 3
"""A task that was lost more often is at fault itself: it takes its worker's process along."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a task can't be run, on its way back from a node. ``bad_usage`` None: an option is bad."""

    story: str
    bad_usage: bool | None


def run_on_ray(tasks: Sequence[Task], address: str | None, jobs: int | None) -> Iterator[tuple[Task, Tally]]:
    """Run all tasks with up to ``jobs`` at once, by default as many as the cluster has CPUs; in any order.

    ``address`` as in ``session.opened``. Closing the iterator ends what still runs. Raises as
    ``cluster.compare.runner.run_tasks``, and ``RunFailed`` when there is no Ray.
    """
    try:
        with opened(address) as ray:
            yield from Sweep(ray, jobs).run(tasks)
    except RayUnavailable as error:
        raise RunFailed(str(error), bad_usage=False) from None


class Sweep:
    """The tasks on their way."""

    def __init__(self, ray: Any, jobs: int | None) -> None:
        self._ray = ray
        self._affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        self._work = ray.remote(_work)
        self._jobs = jobs or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._running: dict[Any, tuple[Task, str]] = {}
        self._losses: Counter[Task] = Counter()

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Tally]]:
        """Each task with its tally as it is done."""
        waiting = deque(tasks)
        while waiting or self._running:
            while waiting and len(self._running) < self._jobs and self._start(waiting[0]):
                waiting.popleft()
            if not self._running:
                raise RunFailed("no node of the Ray cluster is up", bad_usage=False)
            (done, *_), _ = self._ray.wait(list(self._running))
            task, _ = self._running.pop(done)
            tally = self._result(done, task)
            if tally is None:
                waiting.appendleft(task)
            else:
                yield task, tally

    def _start(self, task: Task) -> bool:
        """Start a task; False when every node has a live one already."""
        node = ""
        strategy: Any = "SPREAD"
        if task.cell.world == "live":
            busy = {node for _, node in self._running.values()}
            free = [found["NodeID"] for found in self._ray.nodes() if found["Alive"] and found["NodeID"] not in busy]
            if not free:
                return False
            node = min(free)
            strategy = self._affinity(node, soft=False)
        options = {"num_cpus": 0 if node else 1, "max_retries": 0, "scheduling_strategy": strategy}
        self._running[self._work.options(**options).remote(task, os.getcwd())] = task, node
        return True

    def _result(self, done: Any, task: Task) -> Tally | None:
        """The tally of a task that is done; None when its node was lost and it has to be run again."""
        errors = self._ray.exceptions
        try:
            result = self._ray.get(done)
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError, errors.TaskUnschedulableError):
            self._losses[task] += 1
            if self._losses[task] > LOSSES_MAX:
                told = f"the Ray cluster lost a cell for the fourth time: {task.cell.policy}, seed {task.seed}"
                raise RunFailed(told, bad_usage=False) from None
            return None
        except errors.RayError as error:
            raise RunFailed(" ".join(str(error).split())[-600:], bad_usage=False) from None
        if isinstance(result, Tally):
            return result
        if result.bad_usage is None:
            raise BadOption(result.story)
        raise RunFailed(result.story, bad_usage=result.bad_usage)


def _work(task: Task, folder: str) -> Tally | Refusal:
    """On a node: run a task. The launcher's folder is the current one where there is one of that name."""
    with suppress(OSError):
        os.chdir(folder)
    try:
        return run_task(task)
    except BadOption as error:
        return Refusal(str(error), None)
    except RunFailed as error:
        return Refusal(str(error), error.bad_usage)
