"""Half-open connections as the network makes them, where this user may have a network of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.breaking._island import ADDRESSES
from tests.cluster._launcher import Child

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parent.parent.parent
INTO_NAMESPACE = "import os, sys; os.execvp('unshare', ['unshare', '-rn', sys.executable, *sys.argv[1:]])"


TRY_FIREWALL = """
set -e
echo 1 > /proc/sys/net/ipv4/ip_forward
unshare -n sleep 30 & child=$!
trap 'kill $child' EXIT
until [ "$(readlink /proc/$child/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.02; done
ip link add try type veth peer name eth0 netns $child
nsenter -t $child -n ip link set lo up
nft 'add table ip try; add chain ip try forward { type filter hook forward priority 0; }'
nft add rule ip try forward ip saddr 10.0.0.1 counter drop
"""


def why_not(*programs: str, script: str = "ip link set lo up") -> str | None:
    """Why there can be no network of one's own here, in which ``script`` does what it should; None when there can."""
    for program in ("unshare", "ip", *programs):
        if shutil.which(program) is None:
            return f"there is no {program} here"
    tried = subprocess.run(["unshare", "-rn", "sh", "-c", script], capture_output=True, text=True, timeout=60)
    return None if tried.returncode == 0 else f"no such network may be made here: {tried.stderr.strip()}"


def test_packets_of_one_host_vanish(tmp_path: Path) -> None:
    """B21: nobody is told, nothing is closed. Its copies go to others, and it comes back by itself."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    child = Child(["-c", INTO_NAMESPACE, "-m", "tests.breaking._island", str(tmp_path)], ROOT)
    try:
        told = json.loads(child.line(90))
        assert child.wait() == 0, child.stderr
    finally:
        child.end()
    assert told["errors"] == {} and told["calls"] > 200
    assert told["before"] == sorted(ADDRESSES)
    assert told["during"] == ["r0", "r2"]
    print(f"used again {told['healed']:.2f} s after its packets pass again")


def behind_the_firewall(program: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """What a program with hosts and a firewall prints; skips the test where there can be none."""
    if (reason := why_not("nft", "nsenter", script=TRY_FIREWALL)) is not None:
        pytest.skip(reason)
    child = Child(["-c", INTO_NAMESPACE, "-m", f"tests.breaking.{program}", str(folder), *arguments], ROOT)
    try:
        told: dict[str, Any] = json.loads(child.line(90))
        assert child.wait() == 0, child.stderr
    finally:
        child.end()
    assert min(told["packets"]) > 0
    return told


@pytest.mark.parametrize("ways", ["both", "one"])
def test_a_firewall_between_two_replicas(tmp_path: Path, ways: str) -> None:
    """Three hosts; packets between two of them vanish, both ways or one. Calls go on, and their ties run twice."""
    told = behind_the_firewall("_firewall", tmp_path, ways)
    assert told["errors"] == {} and told["calls"] > 150
    assert len(told["packets"]) == (2 if ways == "both" else 1)
    assert told["during"] == {"r0-r1": False, "r0-r2": True, "r1-r2": True}
    assert told["answered"] == ["r0", "r1", "r2"], "the client reaches them all"
    assert "r0-r1" in told["pairs"]
    print(f"linked {told['healed']:.2f} s after packets pass again")


def test_a_client_that_is_cut_off(tmp_path: Path) -> None:
    """B21, B28: its calls end in time, what it had at the replicas goes, and when packets pass again it calls again."""
    told = behind_the_firewall("_cut_off", tmp_path)
    assert {error for error, _, _ in told["waiting"] + told["meanwhile"]} == {"DeadlineExceeded"}
    assert all("r" in words and "link lost" in words for _, _, words in told["waiting"]), told["waiting"]
    assert "no replica was there to take it" in told["meanwhile"][-1][2]
    ((error, seconds, _),) = told["once"]
    assert error == "OutcomeUnknown" and seconds < 20, "it is told when the link is lost, not at its deadline in 30 s"
    assert told["queued"] > 0 and told["left"] == 0 and told["ends"] == ["stopped"]
    assert all(endings["cancelled"]["caller lost"] > 0 for endings in told["endings"])
    assert told["errors"] == {} and told["calls"] > 100, "the other client is served all the while"
    print(f"dropped {told['gone']:.2f} s after the cut; answered {told['answered']:.2f} s after packets pass again")
