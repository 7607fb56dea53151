"""Opens Ray: joins the cluster at an address, or one of this host alone that is started for it and ends with it.

Usage statistics are off, there is no dashboard of Ray's, and no log of Ray's workers is copied to the driver.
"""

from __future__ import annotations

import importlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from cluster.engines.on_ray import NAMESPACE
from tiedreq.net.addresses import is_loopback

ANSWER_SECONDS = 5.0
END_SECONDS = 10.0
ALONE = "cluster.engines.on_ray.alone"
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray takes 127.0.0.1 for the host's own address, and listens on all, unless it is told that clusters can't be."""


class RayUnavailable(Exception):
    """Ray can't be reached or started; the message is what to show."""


def load_ray(address: str | None) -> Any:
    """The module, imported with usage statistics off. Raises ``ImportError``."""
    os.environ.update(ENVIRONMENT)
    if address is None or (address != "auto" and is_loopback(address.rpartition(":")[0].strip("[]"))):
        os.environ.update(ON_LOOPBACK)
    return importlib.import_module("ray")


@contextmanager
def opened(address: str | None, *, cpus: int | None = None) -> Iterator[Any]:
    """Ray, for as long as the block runs. In the main thread; what SIGTERM means stays as it was.

    ``address`` None: a Ray of this host alone with ``cpus`` CPUs, by default its cores. Raises ``RayUnavailable``.
    """
    if address is None:
        with _alone(cpus or len(os.sched_getaffinity(0))) as found, _joined(found) as ray:
            yield ray
    else:
        with _joined(address) as ray:
            yield ray


@contextmanager
def _joined(address: str) -> Iterator[Any]:
    _knock(address)
    ray = load_ray(address)
    stopping = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR", _skip_env_hook=True)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        told = " ".join(str(error).split())[:400]
        raise RayUnavailable(f"the Ray cluster at {address} can't be joined: {told}") from None
    finally:
        signal.signal(signal.SIGTERM, stopping)  # Ray has put its own in place
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _alone(cpus: int) -> Iterator[str]:
    """A Ray of this host alone; its address. Only who has the token, which is in the environment, gets in."""
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    child = subprocess.Popen(
        [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", ALONE, str(cpus)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        told = child.stdout.readline().strip()
        if not told or told.startswith("refused: "):
            why = told.removeprefix("refused: ") or "it has ended"
            raise RayUnavailable(f"Ray can't be started on this host: {why}")
        yield told
    finally:
        child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            child.wait(END_SECONDS)
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        child.stdout.close()


def _knock(address: str) -> None:
    """Find out soon whether anybody is there: Ray itself takes a minute for it. Raises ``RayUnavailable``."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        raise RayUnavailable(f"no Ray cluster answers at {address}: {error.strerror or error}") from None
