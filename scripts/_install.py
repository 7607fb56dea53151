"""Make the virtual environment in .venv beside the checkout: `_install.py run|report|dev|ray`.

Called by scripts/_setup.sh when the environment is missing or out of date, with
whatever Python was found; so it uses the standard library only.

* One installer at a time: a lock on `.venv.lock`, which pip inherits, so that an
  installer killed outright still keeps the next one out until its pip has ended.
* `.venv/ready-KIND` is written last and holds the text the environment was made
  from. An environment without any was interrupted half way and is made anew.
* `dev` holds everything that `run` and `report` do, in the same versions, and `report` what `run` does.
* `ray` is large and is added, when asked for, to whichever of them is there; it is in none of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / ".venv.lock"
KINDS = {"run": ("run",), "report": ("run", "report"), "dev": ("run", "report", "dev")}
ADDED = ("ray",)

# Settings that would make pip install somewhere else or refuse the checkout itself.
PIP_SETTINGS_DROPPED = "PIP_TARGET PIP_PREFIX PIP_ROOT PIP_USER PIP_REQUIRE_HASHES PIP_REQUIRE_VIRTUALENV PIP_PYTHON"


def say(text: str) -> None:
    print(f"tiedreq: {text}", file=sys.stderr, flush=True)


def made_from(kind: str) -> str:
    """The text that decides what is in the environment; scripts/_setup.sh builds the same."""
    project = (ROOT / "pyproject.toml").read_text().partition("\n[tool.")[0]
    requirements = (ROOT / "requirements" / f"{kind}.txt").read_text()
    return f"{ROOT}\n{project}\n{requirements}"


def is_ready(kind: str) -> bool:
    stamp = VENV / f"ready-{kind}"
    python = VENV / "bin" / "python"
    return python.exists() and stamp.exists() and stamp.read_text() == made_from(kind)


def lock() -> int:
    descriptor = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another set-up is at work in this checkout, waiting for it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def run(lock_descriptor: int, *command: str | Path) -> None:
    """Run a command that says what it has to say on standard error; interrupted, leave nothing of it running."""
    environment = {k: v for k, v in os.environ.items() if k not in PIP_SETTINGS_DROPPED.split()}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    words = [str(word) for word in command]
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        env=environment,
        cwd=ROOT,
        pass_fds=[lock_descriptor],
        start_new_session=True,  # a group of its own: it starts processes too
    ) as process:
        try:
            code = process.wait()
        except BaseException:
            stop_group(process)
            raise
    if code != 0:
        raise subprocess.CalledProcessError(code, words)


def stop_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGINT)  # pip then removes its temporary files
        process.wait(5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def install(kind: str, lock_descriptor: int) -> None:
    python = VENV / "bin" / "python"
    stamps = list(VENV.glob("ready-*"))
    # A stamp made elsewhere: the checkout was moved, and with it every path in the environment.
    usable = any(stamp.read_text().startswith(f"{ROOT}\n") for stamp in stamps)
    for stamp in stamps:
        stamp.unlink()

    if not usable or not python.exists():
        say(f"making .venv with Python {sys.version.split()[0]}")
        run(lock_descriptor, sys.executable, "-I", "-m", "venv", "--clear", VENV)
    pip = (lock_descriptor, python, "-I", "-m", "pip", "install", "--quiet", "--no-input")
    say(f"installing requirements/{kind}.txt")
    run(*pip, "--require-hashes", "-r", ROOT / "requirements" / f"{kind}.txt")
    run(*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT)

    for satisfied in KINDS[kind]:
        mark_ready(satisfied)


def add(kind: str, lock_descriptor: int) -> None:
    """Add what is large to an environment that is ready: its versions are those of the other kinds."""
    if not any(is_ready(other) for other in KINDS):
        install("run", lock_descriptor)
    (VENV / f"ready-{kind}").unlink(missing_ok=True)
    say(f"installing requirements/{kind}.txt")
    pip = (VENV / "bin" / "python", "-I", "-m", "pip", "install", "--quiet", "--no-input", "--require-hashes")
    run(lock_descriptor, *pip, "-r", ROOT / "requirements" / f"{kind}.txt")
    mark_ready(kind)


def mark_ready(kind: str) -> None:
    new = VENV / f"ready-{kind}.new"
    new.write_text(made_from(kind))
    new.rename(VENV / f"ready-{kind}")


def main(kind: str) -> int:
    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    # By default the signal would end this process alone and leave pip running.
    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, stop)
    try:
        descriptor = lock()
        if not is_ready(kind):
            (add if kind in ADDED else install)(kind, descriptor)
    except KeyboardInterrupt:
        say("interrupted; the next start begins the installation anew")
        return 130
    except subprocess.CalledProcessError as failure:
        say(f"installation failed: {' '.join(failure.cmd[2:5])} ended with {failure.returncode}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
