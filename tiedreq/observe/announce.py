"""How a program on this host finds clients that show themselves: a file for each in a directory.

A client that was given ``Observe(listen=…, announce=DIRECTORY)`` writes ``DIRECTORY/<client>.json`` when it begins and
takes it away at its end. The file is a list of targets as Prometheus' file-based discovery reads it, so that whoever
scrapes finds them too. Beside a cluster file the directory is called ``clients``. A file whose process is gone is
passed over. What is found is only ever asked on loopback, since it is asked with the token.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tiedreq.clusterfile import alive
from tiedreq.core.errors import BadOption
from tiedreq.net.addresses import is_loopback

DIRECTORY = "clients"
FILE_BYTES_MAX = 64 * 1024
CLIENT, PID = "__tiedreq_client", "__tiedreq_pid"


@contextmanager
def announced(directory: Path | None, client: str, url: str) -> Iterator[None]:
    """Announce a client as long as the block runs. Raises ``OSError`` when the file can't be written."""
    if directory is None:
        yield
        return
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f"{client}.json"
    text = json.dumps([target_group(url, {CLIENT: client, PID: str(os.getpid())})])
    temporary = directory / f".{client}.tmp"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text + "\n")
    os.replace(temporary, path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def announced_clients(directory: Path) -> dict[str, str]:
    """The URLs of the clients that are announced in ``directory`` and run, by client."""
    found: dict[str, str] = {}
    for path in sorted(directory.glob("*.json")):
        try:
            if path.stat().st_size > FILE_BYTES_MAX:
                continue
            told = json.loads(path.read_text("utf-8"))
            labels, target = told[0]["labels"], told[0]["targets"][0]
            if alive(int(labels[PID])):
                found[str(labels[CLIENT])] = check_observe_url(f"http://{target}")
        except (OSError, ValueError, LookupError, TypeError, OverflowError, BadOption):
            continue
    return found


def target_group(url: str, labels: Mapping[str, str]) -> dict[str, object]:
    """One target as Prometheus' file-based discovery reads it. It drops labels that begin with two underscores."""
    return {"targets": [url.removeprefix("http://")], "labels": dict(labels)}


def check_observe_url(url: object) -> str:
    """``url`` when it is ``http://HOST:PORT`` on loopback. Raises ``BadOption``."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        fine = parts is not None and parts.scheme == "http" and bool(parts.port) and parts.path in ("", "/")
    except ValueError:
        parts, fine = None, False
    if parts is None or not fine or parts.hostname is None:
        raise BadOption(f"client: {url!r} is not http://HOST:PORT")
    if not is_loopback(parts.hostname):
        raise BadOption(f"client: {url!r} is not on loopback, and the token is not sent across a network")
    return str(url).rstrip("/")
