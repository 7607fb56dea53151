"""Opens Ray: joins the cluster at an address, or starts one of this host alone that ends with this process.

Usage statistics are off, there is no dashboard of Ray's, and no log of Ray's workers is copied to the driver. A Ray of
this host alone listens on loopback and keeps its files in a directory of its own, which goes with it.
"""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.engines.on_ray import NAMESPACE
from tiedreq.net.addresses import is_loopback

OBJECT_STORE_BYTES = 100 * 1024 * 1024
ANSWER_SECONDS = 5.0
SOCKET_PATH_MAX = 107
SOCKET_BELOW = len("/tq-ray-12345678/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}
SYSTEM = {"enable_worker_prestart": False, "prestart_worker_first_driver": False}
"""Of a Ray of this host alone: no idle workers are kept ready."""
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
    """Ray, for as long as the block runs. In the main thread only, if SIGTERM is to keep its meaning for this process.

    ``address`` None: a Ray of this host alone with ``cpus`` CPUs, by default its cores. Raises ``RayUnavailable``.
    """
    ray = load_ray(address)
    common: dict[str, Any] = {
        "namespace": NAMESPACE,
        "log_to_driver": False,
        "logging_level": "ERROR",
        "_skip_env_hook": True,
    }
    scratch: Path | None = None
    try:
        try:
            if address is not None:
                _knock(address)
                ray.init(address=address, **common)
            else:
                scratch = _scratch()
                ray.init(
                    address="local",
                    num_cpus=cpus or len(os.sched_getaffinity(0)),
                    num_gpus=0,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=str(scratch),
                    _system_config=SYSTEM,
                    **common,
                )
        except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
            raise RayUnavailable(_in_words(address, error)) from None
        try:
            yield ray
        finally:
            ray.shutdown()
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _knock(address: str) -> None:
    """Find out soon whether anybody is there: Ray itself takes a minute for it. Raises ``RayUnavailable``."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        raise RayUnavailable(f"no Ray cluster answers at {address}: {error.strerror or error}") from None


def _scratch() -> Path:
    """A directory for the files of Ray. The path of its sockets is short enough."""
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) + SOCKET_BELOW > SOCKET_PATH_MAX:
        parent = "/tmp"
    return Path(tempfile.mkdtemp(prefix="tq-ray-", dir=parent))


def _in_words(address: str | None, error: BaseException) -> str:
    told = " ".join(str(error).split())
    where = "Ray can't be started on this host" if address is None else f"the Ray cluster at {address} can't be joined"
    return f"{where}: {told[:400]}"
