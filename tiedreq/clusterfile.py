"""Where a cluster is: the file that a launcher writes and ``connect()`` reads, or addresses given by hand.

The file is JSON: ``{"version": 1, "cluster", "pid", "token", "replicas": [{"name", "url", "pid"}], "dashboard"}``.
It holds the cluster's token, so it is written with mode 0600 and renamed into place. Where people or other programs
keep it a plain list will do: a line for each replica, ``NAME=URL`` or the URL alone; what follows ``#`` is a comment.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiedreq.errors import BadOption, ConnectError

VERSION = 1
FILE_BYTES_MAX = 4 * 1024 * 1024
PID_MAX = 2**31 - 1
ENVIRONMENT = "TIEDREQ_CLUSTER"
DEFAULT_PATH = Path(".tiedreq") / "cluster.json"
_URL = re.compile(r"wss?://(\[[0-9a-fA-F:.%]+\]|[^\s/:\[\]]+):(\d{1,5})/?")


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """One replica: its websocket URL, its name if known, and its process id if it is on this host."""

    url: str
    name: str | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """What a client needs to connect: addresses, the cluster's name and token where they are known."""

    replicas: tuple[ReplicaAddress, ...]
    cluster: str | None = None
    token: str | None = field(default=None, repr=False)
    source: str = "arguments"
    pid: int | None = None
    dashboard: str | None = None


def check_url(field: str, url: object) -> str:
    """``url`` when it is ``ws://HOST:PORT`` or ``wss://HOST:PORT`` (IPv6 in brackets); ``BadOption`` otherwise."""
    match = _URL.fullmatch(url) if isinstance(url, str) else None
    if match is None or not 0 < int(match[2]) < 65536:
        raise BadOption(f"{field}: {url!r} is not ws://HOST:PORT or wss://HOST:PORT (IPv6 as [::1])")
    return match[0].removesuffix("/")


def resolve(replicas: str | os.PathLike[str] | Iterable[str] | None) -> ClusterAddress:
    """Find the cluster: a list of URLs, a comma-separated text of them, the path of a cluster file, or None.

    None looks at ``$TIEDREQ_CLUSTER``, then at ``./.tiedreq/cluster.json``. Raises ``ConnectError`` when there is no
    cluster or the file is stale, ``BadOption`` for what can't be read as an address.
    """
    if replicas is None:
        named = os.environ.get(ENVIRONMENT)
        if named:
            return resolve(named)
        if not DEFAULT_PATH.exists():
            raise ConnectError(
                f"no cluster: no replicas were named, ${ENVIRONMENT} is not set and there is no ./{DEFAULT_PATH}. "
                "Start one with scripts/up, or name its replicas."
            )
        return read_cluster_file(DEFAULT_PATH)
    if isinstance(replicas, os.PathLike):
        return read_cluster_file(Path(replicas))
    if isinstance(replicas, str):
        if "://" not in replicas:
            return read_cluster_file(Path(replicas))
        replicas = [part.strip() for part in replicas.split(",") if part.strip()]
    if not isinstance(replicas, Iterable):
        raise BadOption(f"replicas: {replicas!r} is neither a list of URLs nor the path of a cluster file")
    addresses = tuple(ReplicaAddress(check_url("replicas", url)) for url in replicas)
    if not addresses:
        raise BadOption("replicas: no address is named")
    if len({address.url for address in addresses}) != len(addresses):
        raise BadOption("replicas: an address is named twice")
    return ClusterAddress(addresses)


def read_cluster_file(path: Path) -> ClusterAddress:
    """Read a cluster file. Raises ``ConnectError`` that names the path and what is wrong with it."""
    if path.is_dir():
        path = path / "cluster.json"
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConnectError(f"cluster file {path}: larger than {FILE_BYTES_MAX} bytes")
        text = path.read_text("utf-8")
        if _is_list(text):
            return ClusterAddress(_parse_list(text), source=str(path))
        data = json.loads(text)
    except FileNotFoundError:
        raise ConnectError(f"cluster file {path}: there is none. Is the cluster up?") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConnectError(f"cluster file {path}: can't be read: {error}") from None
    try:
        address = _parse(data, path)
    except (KeyError, TypeError, ValueError) as error:
        raise ConnectError(f"cluster file {path}: not a cluster file of version {VERSION}: {error}") from None
    if address.pid is not None and not alive(address.pid):
        raise ConnectError(
            f"cluster file {path}: stale: its launcher (process {address.pid}) is gone. Start the cluster again."
        )
    return address


def _is_list(text: str) -> bool:
    """Whether it begins like a plain list: with a comment or an address."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first.startswith("#") or (first[:1] not in ("{", "[", '"') and "://" in first)


def _parse_list(text: str) -> tuple[ReplicaAddress, ...]:
    """Raises ``ValueError`` that names the line."""
    found: list[ReplicaAddress] = []
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        name, equals, url = entry.rpartition("=")
        if equals and not name.strip():
            raise ValueError(f"line {number}: {entry!r} is neither NAME=URL nor a URL")
        address = ReplicaAddress(check_url(f"line {number}", url.strip()), name.strip() or None)
        if any(other.url == address.url or (address.name and other.name == address.name) for other in found):
            raise ValueError(f"line {number}: {entry!r} is there already")
        found.append(address)
    if not found:
        raise ValueError("it names no replica")
    return tuple(found)


def _parse(data: Mapping[str, Any], path: Path) -> ClusterAddress:
    if data["version"] != VERSION:
        raise ValueError(f"version is {data['version']!r}")
    replicas = tuple(
        ReplicaAddress(
            check_url("url", entry["url"]),
            _text("a replica's name", entry["name"]),
            _pid("a replica", entry.get("pid")),
        )
        for entry in data["replicas"]
    )
    if not replicas:
        raise ValueError("it names no replica")
    for what in ("url", "name"):
        if len({getattr(replica, what) for replica in replicas}) != len(replicas):
            raise ValueError(f"two replicas have one {what}")
    token = data.get("token")
    return ClusterAddress(
        replicas,
        _text("cluster", data["cluster"]),
        None if token is None else _text("token", token),
        str(path),
        _pid("the launcher", data.get("pid")),
        data.get("dashboard"),
    )


def _text(what: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{what} is not a text")
    return value


def _pid(whose: str, value: object) -> int | None:
    if value is not None and (type(value) is not int or not 0 < value <= PID_MAX):
        raise TypeError(f"the process id of {whose} is none")
    return value


def write_cluster_file(path: Path, address: ClusterAddress) -> None:
    """Write a cluster file with mode 0600 and rename it into place, so that a reader sees all of it or none."""
    data = {
        "version": VERSION,
        "cluster": address.cluster,
        "pid": address.pid,
        "token": address.token,
        "replicas": [{"name": r.name, "url": r.url, "pid": r.pid} for r in address.replicas],
        "dashboard": address.dashboard,
    }
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".cluster-", suffix=".json")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=2)
            file.write("\n")
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def alive(pid: int) -> bool:
    """True when a process with this id exists on this host."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
