"""Commands as they can be pasted into the shell that started a launcher, whose PATH may lack its environment."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.config import UpConfig
from cluster.state import CLUSTER_FILE
from tiedreq.clusterfile import DEFAULT_PATH


def try_line(config: UpConfig) -> str:
    """A call of the demo, or the status of another service's replicas."""
    arguments = ["call", "search", '{"query": "json"}'] if config.is_demo else ["status"]
    if config.state_dir != DEFAULT_PATH.parent:
        arguments += ["--cluster", os.path.join(config.state_shown, CLUSTER_FILE)]
    return paste_line(_program("tiedreq") or [*_python(), "-m", "tiedreq"], arguments)


def control_line(config: UpConfig, verb: str) -> str:
    """``cluster.ctl`` with a verb, for this launcher."""
    own = config.state_dir != DEFAULT_PATH.parent
    where = ["--state-dir", config.state_shown] if own else []
    return paste_line([*_python(), "-m", "cluster.ctl"], [*where, verb])


def _python() -> list[str]:
    """The interpreter of this process."""
    return _program(Path(sys.executable).name) or [sys.executable]


def _program(name: str) -> list[str] | None:
    """A program beside this interpreter, as short as the shell takes it; None where there is none."""
    beside = Path(sys.executable).parent / name
    if not beside.exists():
        return None
    if shutil.which(name) == str(beside):
        return [name]
    return [str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside)]


def paste_line(program: Sequence[str], arguments: Sequence[str]) -> str:
    """A command as it can be pasted into a shell."""
    return shlex.join([*program, *arguments])
