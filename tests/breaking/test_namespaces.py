"""Half-open connections as the network makes them, where this user may have a network of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.breaking._island import ADDRESSES
from tests.cluster._launcher import Child

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parent.parent.parent
INTO_NAMESPACE = "import os, sys; os.execvp('unshare', ['unshare', '-rn', sys.executable, *sys.argv[1:]])"


def why_not() -> str | None:
    """Why there can be no network of one's own here; None when there can."""
    for program in ("unshare", "ip"):
        if shutil.which(program) is None:
            return f"there is no {program} here"
    tried = subprocess.run(["unshare", "-rn", "ip", "link", "set", "lo", "up"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"no network namespace may be made here: {tried.stderr.strip()}"


def test_packets_of_one_host_vanish(tmp_path: Path) -> None:
    """B21: nobody is told, nothing is closed. Its copies go to others, and it comes back by itself."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    child = Child(["-c", INTO_NAMESPACE, "-m", "tests.breaking._island", str(tmp_path)], ROOT)
    try:
        told = json.loads(child.line(90))
        assert child.wait() == 0, child.stderr
    finally:
        child.end()
    assert told["errors"] == {} and told["calls"] > 200
    assert told["before"] == sorted(ADDRESSES)
    assert told["during"] == ["r0", "r2"]
