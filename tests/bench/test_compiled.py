"""The wheel with compiled cores: it can be built, what it has is compiled, and histories are the same."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from click.testing import CliRunner

import tiedreq
from tiedreq.cli import command
from tiedreq.sim.run import run_seed

ROOT = Path(__file__).resolve().parent.parent.parent
SEEDS = 40
HISTORIES = f"""
import sys
sys.path.insert(0, sys.argv[1])
import tiedreq
from tiedreq.core import picker, policy, replica
from tiedreq.sim import clock
from tiedreq.sim.run import run_seed
print(tiedreq.compiled, all(m.__file__.startswith(sys.argv[1]) and not m.__file__.endswith(".py")
                            for m in (picker, policy, replica, clock)))
for seed in range(1, {SEEDS + 1}):
    result = run_seed(seed)
    print(seed, result.digest, result.steps, result.counts, result.violations)
"""


def missing() -> str | None:
    """Why the compiled wheel can't be built here, or None."""
    compiler = os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler.split()[0]) is None:
        return f"no C compiler: {compiler.split()[0]} is not on the PATH"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "no Python.h: the headers of this Python are not installed"
    absent = [name for name in ("mypyc", "setuptools", "pip") if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def test_the_version_says_which_build_this_is() -> None:
    shown = CliRunner().invoke(command, ["--version"]).output
    assert shown == f"tiedreq, version {tiedreq.__version__}, {'compiled' if tiedreq.compiled else 'pure Python'}\n"
    assert tiedreq.compiled is (not str(sys.modules["tiedreq.core.replica"].__file__).endswith(".py"))


@pytest.mark.system
@pytest.mark.timeout(900)  # a minute or two of one core
def test_a_compiled_wheel_has_the_same_histories(tmp_path: Path) -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    assert not tiedreq.compiled, "these tests compare with the pure version"
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(wheels), str(ROOT)]
    variables = {**os.environ, "TIEDREQ_COMPILE": "1", "TIEDREQ_COMPILE_LEVEL": "0"}
    done = subprocess.run(build, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = wheels.iterdir()
    assert not wheel.name.endswith("-none-any.whl")
    subprocess.run([*pip, "install", "-q", "--no-deps", "--target", str(site), str(wheel)], check=True)
    told = subprocess.run([sys.executable, "-c", HISTORIES, str(site)], capture_output=True, text=True, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    first, *histories = told.stdout.splitlines()
    assert first == "True True"
    results = [run_seed(seed) for seed in range(1, SEEDS + 1)]
    assert histories == [f"{r.options.seed} {r.digest} {r.steps} {r.counts} {r.violations}" for r in results]
