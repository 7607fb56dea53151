"""A Ray cluster of several nodes on this host, as a program: ``python tests/ray/_nodes.py NODES CPUS TEMPORARY``.

All nodes listen on loopback; the first is the head. It prints its address once it is up, then obeys
lines on standard input: ``lose I`` kills the raylet of node i with everything that it has started, as the loss of a
machine does, ``add`` starts one more. It answers each with a line, and ends, with all of Ray, when its input does.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

from _settings import ENVIRONMENT, SYSTEM

os.environ.update(
    ENVIRONMENT,
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # without it Ray takes the address of this host for loopback
)

import psutil
from ray.cluster_utils import Cluster


def main() -> None:
    count, cpus, os.environ["RAY_TMPDIR"] = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    cluster = Cluster()
    nodes = []

    def add() -> None:
        options = {"num_cpus": cpus, "object_store_memory": 80 * 1024 * 1024, "include_dashboard": False}
        if not nodes:
            options.update(_system_config=SYSTEM)
        nodes.append(cluster.add_node(node_ip_address="127.0.0.1", **options))

    for _ in range(count):
        add()
    tell({"address": cluster.address})
    for line in sys.stdin:
        match line.split():
            case ["lose", index]:
                lose(nodes[int(index)])
            case ["add"]:
                add()
        tell({"done": line.strip()})
    cluster.shutdown()


def lose(node) -> None:
    (raylet,) = (psutil.Process(info.process.pid) for info in node.all_processes["raylet"])
    for process in [raylet, *raylet.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def tell(message: dict[str, str]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
