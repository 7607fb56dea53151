"""Sources of members: files that change, names that resolve and fail to, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

import tiedreq
from tiedreq.clusterfile import ClusterAddress, ReplicaAddress, read_cluster_file, write_cluster_file
from tiedreq.discovery import DnsMembers, FileMembers, Members, StaticMembers, find_source
from tiedreq.discovery.dns import ANSWER_SECONDS, resolve_host


def urls(members: Members) -> list[str]:
    return [replica.url for replica in members.replicas]


async def none_within(seconds: float, sets: AsyncIterator[Members]) -> bool:
    with trio.move_on_after(seconds):
        await anext(sets)
        return False
    return True


async def test_a_list_that_changes(tmp_path: Path, autojump_clock) -> None:
    path = tmp_path / "members.txt"
    source = FileMembers(path, interval=1.0)
    sets = aiter(source)
    async with trio.open_nursery() as nursery:
        first: list[Members] = []

        async def take() -> None:
            first.append(await anext(sets))

        nursery.start_soon(take)
        await trio.sleep(3)
        assert not first, "there is no file yet"
        path.write_text("# two\na=ws://h:1\n\nws://h:2  # without a name\n")
    assert first == [Members((ReplicaAddress("ws://h:1", "a"), ReplicaAddress("ws://h:2")))]
    for bad in ("", "a=ws://h:1\nb=ws://h:1\n", "a=nonsense\n", "{"):
        path.write_text(bad)
        assert await none_within(5, aiter(source))
    path.write_text("a=ws://h:9\n")
    assert urls(await anext(aiter(source))) == ["ws://h:9"]


async def test_what_can_not_be_read_changes_nothing(tmp_path: Path, autojump_clock, caplog) -> None:
    path = tmp_path / "members.txt"
    path.write_text("ws://h:1\n")
    sets = aiter(FileMembers(path, interval=1.0))
    assert urls(await anext(sets)) == ["ws://h:1"]
    found: list[Members] = []
    async with trio.open_nursery() as nursery:

        async def follow() -> None:
            async for members in sets:
                found.append(members)

        nursery.start_soon(follow)
        for text in ("ws://h:1\nnonsense\n", "", "ws://h:1 # the same\n"):
            path.write_text(text)
            await trio.sleep(3)
        path.unlink()
        await trio.sleep(3)
        assert not found
        assert len([line for line in caplog.messages if "stay as they are" in line]) == 2, "told once each"
        path.write_text("ws://h:1\nws://h:2\n")
        await trio.sleep(3)
        assert [urls(members) for members in found] == [["ws://h:1", "ws://h:2"]]
        nursery.cancel_scope.cancel()


async def test_a_cluster_file_whose_launcher_is_gone_changes_nothing(tmp_path: Path, autojump_clock) -> None:
    path = tmp_path / "cluster.json"
    write_cluster_file(path, ClusterAddress((ReplicaAddress("ws://h:1", "a"),), "shop", "secret"))
    sets = aiter(FileMembers(tmp_path, interval=1.0))
    assert (await anext(sets)).cluster == "shop"
    write_cluster_file(path, ClusterAddress((ReplicaAddress("ws://h:2", "a"),), "shop", "secret", pid=2**31 - 1))
    assert await none_within(5, sets)


@pytest.mark.parametrize("text", ["=ws://h:1", "a=ws://h", "a=ws://h:1\na=ws://h:2", "# nobody\n"])
def test_lists_that_are_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "members.txt"
    path.write_text(text)
    with pytest.raises(tiedreq.ConnectError, match=r"members\.txt"):
        read_cluster_file(path)


class Zone:
    """A name server: each question gets the next answer."""

    def __init__(self, *answers: list[str] | None) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if answer is None:
            raise OSError(-3, "Temporary failure in name resolution")
        return answer


async def test_answers_without_addresses_are_none(autojump_clock, caplog) -> None:
    zone = Zone(None, [], ["10.0.0.1", "fd00::1"], None, None, [], ["10.0.0.2"])
    source = DnsMembers("shop", 7000, interval=5, resolve=zone)
    sets = aiter(source)
    first = await anext(sets)
    assert urls(first) == ["ws://10.0.0.1:7000", "ws://[fd00::1]:7000"] and not first.complete
    assert trio.current_time() < 2, "while nobody is known it is asked sooner"
    assert urls(await anext(sets)) == ["ws://10.0.0.2:7000"]
    assert trio.current_time() > 20 and not source.trouble
    assert len(caplog.messages) == 2, "each time of trouble is told once"


async def test_a_resolver_that_hangs(autojump_clock) -> None:
    async def hang(host: str, port: int) -> list[str]:
        await trio.sleep_forever()
        raise AssertionError

    source = DnsMembers("shop", 7000, resolve=hang)
    assert await none_within(2 * ANSWER_SECONDS, aiter(source))
    assert "no answer within" in source.trouble


async def test_the_systems_resolver() -> None:
    assert await resolve_host("127.0.0.1", 7000) == ["127.0.0.1"]


def test_what_users_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIEDREQ_CLUSTER", raising=False)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "members.txt"
    path.write_text("a=ws://h:1\n")
    assert isinstance(find_source("ws://h:1").discovery, StaticMembers)
    assert find_source(["wss://h:1"]).urls == ["wss://h:1"] and find_source("dns://h:1").urls == ["ws://"]
    for text in (str(path), path, "members.txt"):
        source = find_source(text)
        assert isinstance(source.discovery, FileMembers) and source.discovery.path == path
        assert source.address.replicas == (ReplicaAddress("ws://h:1", "a"),)
    dns = find_source("dns+wss://shop.example:443").discovery
    assert isinstance(dns, DnsMembers) and (dns.host, dns.port, dns.scheme) == ("shop.example", 443, "wss")
    assert find_source(dns).discovery is dns and find_source(dns).urls == ["wss://"]
    monkeypatch.setenv("TIEDREQ_CLUSTER", "dns://[::1]:7000")
    assert find_source(None).discovery.host == "::1"  # type: ignore[attr-defined]
    monkeypatch.delenv("TIEDREQ_CLUSTER")
    with pytest.raises(tiedreq.ConnectError, match="no cluster"):
        find_source(None)
    for bad in ("dns://shop", "dns://:7", "dns://shop:0", "dns://a,b:1/x", "dns://shop:7000/path", "srv://shop:1", 7):
        with pytest.raises(tiedreq.BadOption):
            find_source(bad)  # type: ignore[arg-type]


def test_sets_that_contradict_themselves() -> None:
    for pairs in ([("a", "ws://h:1"), ("b", "ws://h:1")], [("a", "ws://h:1"), ("a", "ws://h:2")], [("a", "nonsense")]):
        with pytest.raises(tiedreq.BadOption):
            Members.named(pairs)


async def test_with_tls_every_address_shows_the_certificate_of_the_name(autojump_clock) -> None:
    source = DnsMembers("shop.example", 7000, scheme="wss", resolve=Zone(["10.0.0.1", "fd00::1"]))
    assert urls(await anext(aiter(source))) == [
        "wss://10.0.0.1:7000#shop.example",
        "wss://[fd00::1]:7000#shop.example",
    ]
