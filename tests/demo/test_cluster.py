import json
from pathlib import Path

import pytest

import tiedreq
from cluster.demo.service import service
from cluster.demo.settings import VARIABLE
from tiedreq.testing import LocalCluster


@pytest.fixture(autouse=True)
def settings(stdlib_index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"index": str(stdlib_index), "replica": "r0", "service": "const(1ms)"}))


async def test_tied_calls_are_answered_by_a_cluster() -> None:
    async with LocalCluster(service, replicas=3) as client:
        hits = await client.tied_call("search", {"query": "json", "limit": 1}, timeout=5)
        assert [hit["name"] for hit in hits] == ["json"]
        assert (await client.tied_call("lookup", {"name": "json.dumps"}, timeout=5))["kind"] == "function"
        assert (await client.tied_call("work", timeout=5))["service_ms"] == 1.0


async def test_a_failure_reaches_the_caller_with_its_code_and_details() -> None:
    async with LocalCluster(service, replicas=2) as client:
        with pytest.raises(tiedreq.RemoteFailure, match=r"near misses: json\.dumps") as caught:
            await client.tied_call("lookup", {"name": "jsn.dumps"}, timeout=5)
        assert caught.value.code == "not_found"
        assert caught.value.details[0] == "json.dumps"


async def test_charge_is_called_but_never_tied() -> None:
    async with LocalCluster(service, replicas=2) as client:
        with pytest.raises(tiedreq.UnsafeToDuplicate):
            await client.tied_call("charge", {"amount": 1}, timeout=5)
        assert (await client.call("charge", {"amount": 1}, timeout=5))["amount"] == 1.0
