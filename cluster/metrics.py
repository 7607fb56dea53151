"""Where the programs of a cluster show health, metrics and snapshots, and how Prometheus finds them.

Replicas and the traffic show themselves on loopback. ``STATE/prometheus.json`` names the replicas and
``STATE/clients/*.json`` the clients, both as Prometheus' file-based discovery (``file_sd_configs``) reads them.
Where ``prometheus-client`` is not installed (the extra ``metrics``) nothing is shown, and nothing else is missing.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path

from tiedreq.observe.announce import DIRECTORY, target_group
from tiedreq.observe.options import Observe

TARGETS_FILE = "prometheus.json"


def observe_replica(port: int) -> Observe:
    """How a replica is observed; 0: at any free port."""
    return Observe(listen=f"127.0.0.1:{port}") if _installed() else Observe()


def observe_traffic(cluster_file: Path) -> Observe:
    """How the traffic's client is observed, and announced beside the cluster file."""
    if not _installed():
        return Observe()
    return Observe(listen="127.0.0.1:0", announce=cluster_file.parent / DIRECTORY)


def _installed() -> bool:
    return importlib.util.find_spec("prometheus_client") is not None


def write_targets(path: Path, urls: Mapping[str, str]) -> None:
    """Tell where the replicas show themselves, by name; the file is renamed into place."""
    groups = [target_group(url, {"replica": name}) for name, url in urls.items()]
    temporary = path.with_suffix(".tmp")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(groups, file, indent=2)
        file.write("\n")
    os.replace(temporary, path)
