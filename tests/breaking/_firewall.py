"""Three hosts and a firewall, run as a program inside a new network namespace: it lets no packet pass between two.

Each replica has a network namespace of its own, as a host has; what they say to each other is routed through this one,
where the client is. A rule of nftables drops what goes from r0 to r1, and with ``both`` also the other way: nobody is
told, and the client reaches them all. Prints what came of it as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import trio

import tiedreq
from tests.breaking import _app
from tests.breaking._cluster import Bar, until
from tests.breaking._history import judge, read_runs
from tests.breaking._load import Load
from tests.cluster._launcher import Child

NAMES = ("r0", "r1", "r2")
HOSTS = (*NAMES, "c0")
"""Replicas, and one for a client that is not on the router."""
TOKEN = "behind-the-firewall"
AT_ONCE = tiedreq.Tied(backup=None, stagger=0.0)
CUT_SECONDS = 2.5
SILENCE_SECONDS = 1.5
"""After which the two know that they don't hear each other."""
TABLE = "add table ip cut; add chain ip cut forward { type filter hook forward priority 0; }"


def run(*words: str) -> None:
    """Carry out a command of the system."""
    subprocess.run(words, check=True)


def address(name: str) -> str:
    """Where a host is; the router's own address in that net ends with 1."""
    return f"10.77.{HOSTS.index(name)}.2"


def host(name: str, command: list[str], folder: Path) -> Child:
    """Start a program in a host of its own, where it waits for its network, and connect that to the router."""
    wait = 'until ip route get 10.77.0.1 >/dev/null 2>&1; do sleep 0.05; done; exec "$@"'
    alone = ["unshare", "-n", "sh", "-c", wait, "sh", sys.executable, *command]
    child = Child(["-c", f"import os; os.execvp('unshare', {alone!r})"], folder)
    own = os.readlink("/proc/self/ns/net")
    while os.readlink(f"/proc/{child.pid}/ns/net") == own:
        time.sleep(0.02)
    router, inside = address(name)[:-1] + "1", ["nsenter", "-t", str(child.pid), "-n", "ip"]
    run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(child.pid))
    run("ip", "addr", "add", f"{router}/24", "dev", name)
    run("ip", "link", "set", name, "up")
    run(*inside, "link", "set", "lo", "up")
    run(*inside, "addr", "add", f"{address(name)}/24", "dev", "eth0")
    run(*inside, "link", "set", "eth0", "up")
    run(*inside, "route", "add", "default", "via", router)
    return child


def serve(name: str, folder: Path) -> Child:
    """Start a host with a replica."""
    peers = ",".join(f"{other}=ws://{address(other)}:7000" for other in NAMES if other != name)
    where = ["--listen", f"{address(name)}:7000", "--peers", peers, "--token-file", "token"]
    return host(name, ["-m", "tiedreq", "serve", "app:service", "--name", name, *where], folder)


def dropped() -> list[int]:
    """How many packets each rule has dropped."""
    told = subprocess.run(["nft", "list", "table", "ip", "cut"], check=True, capture_output=True, text=True).stdout
    return [int(line.split("packets ")[1].split()[0]) for line in told.splitlines() if "drop" in line]


async def partition(folder: Path, both: bool) -> dict[str, object]:
    """Drive load, cut r0 off from r1, and mend it; what came of it."""
    urls = [f"ws://{address(name)}:7000" for name in NAMES]

    async def linked() -> dict[str, bool]:
        told = await client.inquire("snapshot")
        return {f"{a}-{b}": link["up"] for a in told for b, link in told[a]["links"].items() if a < b}

    async def all_linked() -> bool:
        return all((await linked()).values())

    async with tiedreq.connect(urls, token=TOKEN) as client, trio.open_nursery() as nursery:
        await until(all_linked)
        load = Load(client, 80, nursery=nursery, policy=AT_ONCE)
        await trio.sleep(1)
        there = address("r0"), address("r1")
        forbid(there, there[::-1]) if both else forbid(there)
        cut = trio.current_time()
        await trio.sleep(SILENCE_SECONDS)
        known = trio.current_time()
        await trio.sleep(CUT_SECONDS - SILENCE_SECONDS)
        during, answered = await linked(), sorted(load.answered_since(known))
        numbers = {outcome.number for outcome in load.outcomes if outcome.began > cut}
        packets = dropped()
        allow()
        bar = Bar()
        await bar.until(all_linked)
        healed = bar.passed
        await load.end()
    runs = read_runs(folder)
    verdict = judge(load.sent, load.outcomes, runs)
    pairs: dict[int, set[str]] = {}
    for each in runs:
        if each.number in numbers:
            pairs.setdefault(each.number, set()).add(each.replica)
    return {
        "calls": verdict.calls,
        "errors": verdict.errors,
        "during": during,
        "answered": answered,
        "packets": packets,
        "healed": healed,
        "pairs": sorted({"-".join(sorted(replicas)) for replicas in pairs.values() if len(replicas) > 1}),
    }


def forbid(*pairs: tuple[str, str]) -> None:
    """Let no packet pass from the first to the second of each pair any more."""
    for source, target in pairs:
        run("nft", f"add rule ip cut forward ip saddr {source} ip daddr {target} counter drop")


def allow() -> None:
    """Let all packets pass again."""
    run("nft", "flush chain ip cut forward")


def prepare(folder: Path, more: str = "") -> None:
    """Make this namespace a router, and put the service, with ``more`` behind it, and the token into ``folder``."""
    _app.write(folder, more)
    (folder / "token").write_text(TOKEN)
    run("ip", "link", "set", "lo", "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    run("nft", TABLE)


def main() -> None:
    """See the module."""
    folder, both = Path(sys.argv[1]), sys.argv[2] == "both"
    prepare(folder)
    children = [serve(name, folder) for name in NAMES]
    try:
        for child in children:
            child.line()
        print(json.dumps(trio.run(partition, folder, both)), flush=True)
    finally:
        for child in children:
            child.end()


if __name__ == "__main__":
    main()
