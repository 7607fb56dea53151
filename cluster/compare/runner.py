"""Runs tasks, in parallel processes when there are several, and hands over each tally as it comes.

The result of a task depends on its cell and its seed only, so not on the number of processes. Live tasks run one after
the other in this process: they need the machine for themselves. Processes ignore Ctrl-C (the parent ends them) and end
with their parent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from cluster.compare.grid import Task
from cluster.compare.tally import Tally

__all__ = ["RunFailed", "cores", "run_task", "run_tasks"]


class RunFailed(Exception):
    """A live run that can't be had; the message is what to show. ``bad_usage``: somebody's service is at fault."""

    def __init__(self, story: str, *, bad_usage: bool) -> None:
        super().__init__(story)
        self.bad_usage = bad_usage


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_task(task: Task) -> Tally:
    """Run one task here and now. Raises ``BadOption`` for what can't be run, ``RunFailed`` for what failed."""
    if task.cell.world == "live":
        return _run_live(task)
    from cluster.compare.simulated import run_cell

    return run_cell(task.cell, task.seed)


def _run_live(task: Task) -> Tally:
    from cluster.compare.live import ReplicaLost, StartFailed, run_cell
    from tiedreq.loading import AppError

    try:
        return run_cell(task.cell, task.seed)
    except AppError as error:
        raise RunFailed(error.story, bad_usage=True) from None
    except (StartFailed, ReplicaLost) as error:
        raise RunFailed(str(error), bad_usage=False) from None


def run_tasks(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Tally]]:
    """Run all tasks with up to ``jobs`` processes; each comes with its tally when it is done, in any order.

    Closing the iterator ends what still runs. An exception of a task is raised here, and ends the rest.
    """
    live = [task for task in tasks if task.cell.world == "live"]
    simulated = [task for task in tasks if task.cell.world != "live"]
    for task in live:
        yield task, run_task(task)
    jobs = min(jobs, len(simulated))
    if jobs <= 1:
        for task in simulated:
            yield task, run_task(task)
    else:
        yield from _run_parallel(simulated, jobs)


def _run_parallel(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Tally]]:
    before = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _prepare)
    finished = False
    try:
        futures = {executor.submit(run_task, task): task for task in tasks}
        for future in as_completed(futures):
            task = futures.pop(future)
            yield task, future.result()
        finished = True
    finally:
        executor.shutdown(wait=finished, cancel_futures=True)
        if not finished:
            for child in set(multiprocessing.active_children()) - before:
                child.kill()


def _prepare() -> None:
    """Make this process one that ends with its parent and only then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), name="end with parent", daemon=True).start()


def _end_with(sentinel: int) -> None:
    with contextlib.suppress(OSError):
        multiprocessing.connection.wait([sentinel])
    os._exit(1)
