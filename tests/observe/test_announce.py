"""Clients that show themselves are found on their host, and nothing else is asked with the token."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

import tiedreq
from cluster.metrics import write_targets
from tests.observe.http_client import get
from tests.observe.services import make_service
from tests.observe.test_surface import SHOWN, TOKEN
from tiedreq.observe.announce import CLIENT, PID, announced, announced_clients, check_observe_url, target_group
from tiedreq.observe.ask import Memories, fetch

CLIENT_ID = "00000000000000ab"
URL = "http://127.0.0.1:9200"


def test_a_client_is_announced_while_it_runs(tmp_path: Path) -> None:
    directory = tmp_path / "clients"
    with announced(directory, CLIENT_ID, URL):
        assert announced_clients(directory) == {CLIENT_ID: URL}
        (file,) = directory.iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert json.loads(file.read_text())[0]["targets"] == ["127.0.0.1:9200"]
    assert announced_clients(directory) == {} and not list(directory.iterdir())


def test_without_a_directory_nothing_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with announced(None, CLIENT_ID, URL):
        assert list(tmp_path.iterdir()) == []


def test_what_is_no_announcement_is_passed_over(tmp_path: Path) -> None:
    labels = {CLIENT: CLIENT_ID, PID: str(os.getpid())}
    bad = {
        "gone": [target_group(URL, {**labels, PID: str(2**31 - 1)})],
        "elsewhere": [target_group("http://10.0.0.1:9200", labels)],
        "nobody": [target_group(URL, {})],
        "huge": [target_group(URL, {**labels, PID: "9" * 30})],
        "empty": [],
        "map": {},
        "text": "x",
    }
    for name, value in bad.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    (tmp_path / "noise.json").write_bytes(b"\xff\xfe")
    (tmp_path / "long.json").write_text(" " * 100_000)
    assert announced_clients(tmp_path) == {}
    assert announced_clients(tmp_path / "missing") == {}


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:9200", "https://127.0.0.1:1", "http://127.0.0.1", "http://example.org:80", URL + "/x", None]
)
def test_only_clients_on_loopback_are_asked(url: object) -> None:
    with pytest.raises(tiedreq.BadOption, match="client"):
        check_observe_url(url)
    assert check_observe_url(URL + "/") == URL


def test_there_is_nothing_to_announce_without_an_address() -> None:
    with pytest.raises(tiedreq.BadOption, match=r"observe\.announce"):
        tiedreq.Observe(announce=Path("clients"))


def test_targets_are_written_for_prometheus(tmp_path: Path) -> None:
    write_targets(tmp_path / "prometheus.json", {"r0": URL})
    assert json.loads((tmp_path / "prometheus.json").read_text()) == [
        {"targets": ["127.0.0.1:9200"], "labels": {"replica": "r0"}}
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["prometheus.json"]


async def test_a_call_is_explained_with_its_client_asked_over_http(tmp_path: Path, nursery) -> None:
    async def replica(task_status) -> None:
        await tiedreq.serve(make_service(), name="a", token=TOKEN, observe=SHOWN, task_status=task_status)

    handle = await nursery.start(replica)
    shown = tiedreq.Observe(listen="127.0.0.1:0", announce=tmp_path)
    async with (
        tiedreq.connect([handle.url], token=TOKEN, observe=shown) as client,
        tiedreq.connect([handle.url], token=TOKEN, observe=None) as other,
    ):
        reply = await client.request("nap", 0.001)
        urls = list(announced_clients(tmp_path).values())
        memories = Memories(other, urls, token=TOKEN, timeout=5.0)
        found = await memories.explain(reply.call_id)
        assert found is not None and found.winner == "a" and found.bars[0].arrived is not None
        assert [call["call_id"] for call in await memories.recent()] == [reply.call_id]
        assert not memories.told

        stranger = Memories(other, [*urls, "http://127.0.0.1:1"], token="wrong", timeout=5.0)
        found = await stranger.explain(reply.call_id)
        assert found is not None and found.latency is None
        assert len(stranger.told) == 2 and "401" in " ".join(stranger.told)

        assert await fetch(urls[0], f"/calls/{CLIENT_ID}-1", token=TOKEN, timeout=5.0) is None
        story = await fetch(str(handle.observe_url), f"/calls/{reply.call_id}", token=TOKEN, timeout=5.0)
        assert story["method"] == "nap"
        assert (await get(f"{urls[0]}/calls/nonsense", token=TOKEN)).status == 400
        assert (await get(f"{urls[0]}/calls/{reply.call_id}")).status == 401
    nursery.cancel_scope.cancel()
