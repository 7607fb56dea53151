"""Where a running launcher can be controlled: the file ``control.json`` in its state directory, and its socket.

``{"version": 1, "pid", "socket", "token", "dashboard"}``, mode 0600, renamed into place. The token in it is not the one
that clients have: who may call a service may not yet stop its replicas.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tiedreq.clusterfile import alive

VERSION = 1
CONTROL_FILE = "control.json"
SOCKET_FILE = "control.sock"
FILE_BYTES_MAX = 64 * 1024
SOCKET_PATH_BYTES_MAX = 100
"""What the kernel takes as the path of a socket, 104 bytes on some systems."""


class NoControl(Exception):
    """There is no launcher to control; the text is one line."""


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """The launcher ``pid``, its control token and, if it has one, its dashboard's URL."""

    pid: int
    token: str = field(repr=False)
    dashboard: str | None = None


def write_control_file(directory: Path, address: ControlAddress) -> None:
    """Write the file. Raises ``OSError``."""
    descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=".control-", suffix=".json")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"version": VERSION, "socket": SOCKET_FILE, **asdict(address)}, file, indent=2)
            file.write("\n")
        os.replace(temporary, directory / CONTROL_FILE)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_control_file(directory: Path) -> ControlAddress:
    """Read the file. Raises ``NoControl`` when there is none, it can't be read, or its launcher is gone."""
    path = directory / CONTROL_FILE
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise NoControl(f"{path}: larger than {FILE_BYTES_MAX} bytes")
        values = json.loads(path.read_text("utf-8"))
        address = ControlAddress(values["pid"], values["token"], values["dashboard"])
        if values["version"] != VERSION or type(address.pid) is not int or not isinstance(address.token, str):
            raise ValueError(f"not of version {VERSION}")
    except FileNotFoundError:
        raise NoControl(f"no cluster is up in {directory} (there is no {path}); name another by --state-dir") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoControl(f"{path}: can't be read: {error}") from None
    if not alive(address.pid):
        raise NoControl(f"{path}: stale: its launcher (process {address.pid}) is gone")
    return address


class SocketPlace:
    """The path of the socket in ``directory``, short enough for the kernel, for as long as the block runs.

    A directory that is too deep is named by a descriptor, where the system has ``/proc/self/fd``. ``path`` is None when
    there is no way.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._descriptor: int | None = None
        self.path: str | None = None

    def __enter__(self) -> SocketPlace:
        path = str(self._directory / SOCKET_FILE)
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
            self.path = path
        elif os.path.isdir("/proc/self/fd"):
            self._descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            self.path = f"/proc/self/fd/{self._descriptor}/{SOCKET_FILE}"
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
