"""Ctrl-C at a comparison in several processes: exit code 130, and nobody is left."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from cluster.compare.interrupted import interruptible
from tiedreq.errors import BadOption

PATIENCE = 30.0


@pytest.mark.system
def test_no_process_is_left() -> None:
    arguments = [sys.executable, "-m", "cluster.compare", "--jobs", "2", "--duration", "1000s"]
    program = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, start_new_session=True)
    process = psutil.Process(program.pid)
    give_up_at = time.monotonic() + PATIENCE
    while len(process.children()) < 3 and time.monotonic() < give_up_at:  # two, and their tracker of resources
        time.sleep(0.05)
    children = process.children(recursive=True)
    assert len(children) >= 2
    program.send_signal(signal.SIGINT)
    _, told = program.communicate(timeout=PATIENCE)
    assert program.returncode == 130
    assert told.splitlines() == [
        "compare: interrupted: these are the rows that were finished",
        "compare: no row was finished",
    ]
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert alive == []


@pytest.mark.parametrize("beside", [[], [BadOption("client: it is closed")]], ids=["alone", "with what it stopped"])
def test_an_interrupt_that_trio_raises_in_a_task_is_one(
    beside: list[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="130"), interruptible(lambda: "before the end"):
        raise BaseExceptionGroup("tasks", [*beside, BaseExceptionGroup("links", [KeyboardInterrupt()])])
    assert capsys.readouterr().err == "interrupted before the end\n"


def test_other_errors_of_tasks_are_not_taken_for_one() -> None:
    with pytest.raises(ExceptionGroup), interruptible(lambda: "before the end"):
        raise ExceptionGroup("tasks", [BadOption("client: it is closed")])
