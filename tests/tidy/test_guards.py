"""The guards of conftest.py, each shown to bite: small suites of their own under the same configuration."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def suite(tmp_path: Path):
    """Run pytest, with this repository's configuration, on a test module given as text."""
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for helper in ("__init__.py", "conftest.py", "_clocks.py", "_processes.py", "_watchdog.py"):
        shutil.copy(ROOT / "tests" / helper, tmp_path / "tests")

    def run(source: str, *options: str) -> tuple[int, str]:
        (tmp_path / "tests" / "test_it.py").write_text(textwrap.dedent(source))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
            cwd=tmp_path,
            env=os.environ | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=50,
        )
        return done.returncode, done.stdout + done.stderr

    return run


KINDS = """
    import pytest

    def test_quick():
        pass

    @pytest.mark.soak
    def test_soak(minutes):
        print(f"soak gets {minutes:g}")

    @pytest.mark.soak
    def test_other_soak(minutes):
        pass

    @pytest.mark.system
    def test_system(minutes):
        print(f"system gets {minutes:g}")
"""


def test_long_kinds_are_left_out_unless_asked_for(suite) -> None:
    assert "1 passed, 3 deselected" in suite(KINDS)[1]
    assert "4 passed" in suite(KINDS, "--all")[1]
    assert "1 passed, 3 deselected" in suite(KINDS, "-m", "system")[1]


def test_a_kind_shares_its_minutes(suite) -> None:
    code, told = suite(KINDS, "--long", "--minutes", "3", "-s")
    assert code == 0, told
    assert "3 passed, 1 deselected" in told
    assert "soak gets 1.5" in told and "system gets 3" in told


def test_minutes_must_be_positive(suite) -> None:
    code, told = suite(KINDS, "--minutes", "0")
    assert code == pytest.ExitCode.USAGE_ERROR and "--minutes" in told


def test_an_unknown_marker_is_an_error(suite) -> None:
    code, told = suite("import pytest\n\n@pytest.mark.sytem\ndef test_it(): pass")
    assert code == pytest.ExitCode.INTERRUPTED and "sytem" in told


DEFECTS = """
    import subprocess
    import sys
    import time
    import warnings

    import pytest
    import trio

    SLEEP = [sys.executable, "-c", "import time; time.sleep(100)"]

    def test_quick_with_minutes(minutes):
        pass

    def test_warning():
        warnings.warn("odd")

    def test_child():
        global child
        child = subprocess.Popen(SLEEP)

    def test_orphan():
        inner = f"import subprocess; subprocess.Popen({SLEEP})"
        subprocess.run([sys.executable, "-W", "ignore", "-c", inner], check=True)

    def test_orphan_that_ends_by_itself():
        inner = f"import subprocess; subprocess.Popen({SLEEP})".replace("100", "0.1")
        subprocess.run([sys.executable, "-W", "ignore", "-c", inner], check=True)

    def test_child_was_ended():
        assert child.wait(5) is not None

    @pytest.fixture(scope="module")
    def shared():
        with subprocess.Popen(SLEEP) as process:
            yield
            process.kill()

    def test_a_wider_fixture_may_stay(shared):
        subprocess.run([sys.executable, "-c", ""], check=True)

    async def busy():
        while True:
            await trio.sleep(1)

    @pytest.mark.timeout(1)
    async def test_hangs():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy)

    @pytest.mark.timeout(1)
    async def test_hangs_in_virtual_time(autojump_clock):
        await busy()

    async def test_trio_goes_on():
        await trio.sleep(0)

    @pytest.mark.timeout(1)
    def test_hangs_without_trio():
        time.sleep(30)
"""


def test_defects_are_found(suite) -> None:
    code, told = suite(DEFECTS)
    assert code == pytest.ExitCode.TESTS_FAILED
    report = {
        line.split("::")[1].split(" - ")[0].strip(): line
        for line in told.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    }
    assert set(report) == {
        "test_quick_with_minutes",
        "test_warning",
        "test_child",
        "test_orphan",
        "test_hangs",
        "test_hangs_in_virtual_time",
        "test_hangs_without_trio",
    }, told
    assert "mark the test" in report["test_quick_with_minutes"]
    assert "UserWarning: odd" in report["test_warning"]
    assert "left behind: " in report["test_child"]
    assert "left behind: " in report["test_orphan"]
    assert "hung for 0.9 s" in report["test_hangs"]
    assert "hung for 0.9 s" in report["test_hangs_in_virtual_time"]
    assert re.search(r"test_it\.py:\d+ busy", told), "where the task stood"
    assert "Timeout" in report["test_hangs_without_trio"]


def test_ci_runs_are_repeatable(suite, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = """
        import hypothesis

        def test_it():
            now = hypothesis.settings.default
            print(hypothesis.settings.get_current_profile_name(), now.derandomize, now.deadline)
    """
    monkeypatch.setenv("CI", "true")
    assert "ci True None" in suite(probe, "-s")[1]
    monkeypatch.delenv("CI")
    assert "dev False None" in suite(probe, "-s")[1]
    assert "nightly False None" in suite(probe, "-s", "--all")[1]


def test_nightly_examples_grow_with_the_minutes_and_have_time(suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    probe = """
        import hypothesis
        import pytest

        @hypothesis.given(hypothesis.strategies.booleans())
        def test_it(drawn):
            pass

        @pytest.fixture(autouse=True)
        def tell(request):
            limit = request.node.get_closest_marker("timeout")
            print("so many:", hypothesis.settings.default.max_examples, limit.args if limit else "usual limit")
    """
    assert "so many: 4000 (720.0,)" in suite(probe, "-s", "--all", "--minutes", "10")[1]
    assert "so many: 800 (240.0,)" in suite(probe, "-s", "--hypothesis-profile", "nightly", "--minutes", "2")[1]
    assert "so many: 60 usual limit" in suite(probe, "-s", "--hypothesis-profile", "dev")[1]


MIXED = """
    import socket

    import trio

    async def test_virtual_and_a_socket(autojump_clock):
        with socket.create_server(("127.0.0.1", 0)):
            await trio.sleep(1)

    async def test_virtual_alone(autojump_clock):
        await trio.sleep(1)
        await trio.to_thread.run_sync(int)

    async def test_a_socket_alone():
        with socket.create_server(("127.0.0.1", 0)):
            await trio.sleep(0)
"""


def test_sockets_in_virtual_time_are_found(suite) -> None:
    code, told = suite(MIXED)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "3 passed, 1 error" in told and "sockets in virtual time: socket.bind" in told
