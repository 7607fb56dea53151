"""The systemd unit, verified by systemd where that is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "systemd" / "tiedreq@.service"
ANALYZE = shutil.which("systemd-analyze")
VERIFY_SECONDS = 60


def verify(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    unit = folder / UNIT.name
    unit.write_text(text)
    return subprocess.run(
        [ANALYZE, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=VERIFY_SECONDS
    )


@pytest.mark.skipif(ANALYZE is None, reason="systemd is not installed here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("tiedreq")
    text = UNIT.read_text().replace("/opt/tiedreq/bin/tiedreq", str(command))
    done = verify(tmp_path, text)
    assert (done.returncode, done.stderr) == (0, "")
    broken = verify(tmp_path, text.replace("LoadCredential", "LoadCredentials"))
    assert "LoadCredentials" in broken.stderr


def test_the_unit_waits_for_the_drain() -> None:
    text = UNIT.read_text()
    (drain,) = re.findall(r"--drain-timeout (\d+)s", text)
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.M)
    assert int(drain) < int(stop)
