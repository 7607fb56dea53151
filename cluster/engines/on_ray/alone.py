"""The child program that is a Ray of this host alone: ``python -m cluster.engines.on_ray.alone CPUS``.

It prints Ray's address on standard output once it is up, or ``refused: WHY``, and ends with all of Ray when its
standard input does. All listens on loopback, and the files are in a directory of their own, which goes with it. It
leads a process group, and ends by killing that: some of Ray's processes go on for a minute when the others have gone.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from cluster.engines.on_ray.session import load_ray

OBJECT_STORE_BYTES = 100 * 1024 * 1024
SHUTDOWN_SECONDS = 3.0
SOCKET_PATH_MAX = 107
SOCKET_BELOW = len("/tq-ray-12345678/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")
SYSTEM = {"enable_worker_prestart": False, "prestart_worker_first_driver": False}
"""No idle workers are kept ready."""


def main() -> int:
    """Be Ray until nobody wants it any more."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    scratch = _scratch()
    ray = load_ray(None)
    try:
        told = _start(ray, int(sys.argv[1]), scratch)
        print(told, flush=True)
        sys.stdin.read()
        timer = threading.Timer(SHUTDOWN_SECONDS, _end, (scratch,))
        timer.daemon = True
        timer.start()
        ray.shutdown()
    finally:
        _end(scratch)
    return 0


def _start(ray: Any, cpus: int, scratch: Path) -> str:
    try:
        ray.init(
            address="local",
            num_cpus=cpus,
            num_gpus=0,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level="ERROR",
            _skip_env_hook=True,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(scratch),
            _system_config=SYSTEM,
        )
    except Exception as error:  # whatever Ray raises is why there is none
        return f"refused: {' '.join(str(error).split())[:400]}"
    return str(ray.get_runtime_context().gcs_address)


def _scratch() -> Path:
    """A directory for the files of Ray. The path of its sockets is short enough."""
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) + SOCKET_BELOW > SOCKET_PATH_MAX:
        parent = "/tmp"
    return Path(tempfile.mkdtemp(prefix="tq-ray-", dir=parent))


def _end(scratch: Path) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
