"""The README's own words: its client script and its service run as printed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.cluster._launcher import Up

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=30)


def test_the_client_script_works_as_printed(up: Callable[..., Up], tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(PYTHON_BLOCKS[0])
    up("--replicas", "4").ready()
    ran = run(["client.py"], tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert len(re.findall(r"^[\w.]+ +\w.*\n", ran.stdout.partition("\nanswered")[0], re.MULTILINE)) == 3, ran.stdout
    assert re.search(r"answered by r\d in [0-9.]+ ms\n(  copy at r\d: .*\n)*?  copy at r\d: done", ran.stdout)
    assert "refused: 'charge' is not declared idempotent" in ran.stdout
    assert ran.stderr == ""


def test_the_test_of_ones_own_works_as_printed(tmp_path: Path) -> None:
    (tmp_path / "mysearch.py").write_text(PYTHON_BLOCKS[1])
    (tmp_path / "test_mysearch.py").write_text(PYTHON_BLOCKS[2])
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\nfilterwarnings = error\n")
    ran = run(["-m", "pytest", "-q", "-p", "no:cacheprovider"], tmp_path)
    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout


def test_the_service_of_ones_own_works_as_printed(up: Callable[..., Up], tmp_path: Path) -> None:
    source = PYTHON_BLOCKS[1]
    assert source.startswith("# mysearch.py\n") and len(source.splitlines()) <= 12
    (tmp_path / "mysearch.py").write_text(source)
    up("--replicas", "4", "--app", "mysearch:service").ready()
    ran = run(["-m", "tiedreq", "call", "lookup", '{"key": "k1"}'], tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["key"] == "k1"
