"""Where Ray is not installed, the commands say so."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.system

WITHOUT = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *package: None if name == "ray" else find(name, *package)
from cluster.{program} import main
sys.exit(main(["--engine", "ray"]))
"""


@pytest.mark.parametrize("program", ["up", "compare.__main__"])
def test_one_line_says_what_to_install(program: str, tmp_path) -> None:
    command = [sys.executable, "-c", WITHOUT.format(program=program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    told = "engine: ray is not installed here; pip install 'tiedreq[ray]' (from a checkout: requirements/ray.txt)"
    (line,) = done.stderr.splitlines()
    assert line.endswith(f": {told}")
    assert done.stdout == "" and done.returncode == 2
