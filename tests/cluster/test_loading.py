"""Programs of ``cluster`` that are interrupted while they load say nothing; what else goes wrong then is told."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [("KeyboardInterrupt", -signal.SIGINT, ""), ("ImportError('no such thing')", 1, "ImportError: no such thing")],
)
def test_ctrl_c_while_a_program_loads(error: str, code: int, told: str) -> None:
    program = f"import sys; sys.argv = ['-m']; import cluster; raise {error}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (code, [told] if told else [])
