"""The cluster file and addresses given by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tiedreq import BadOption, ConnectError
from tiedreq.clusterfile import (
    ClusterAddress,
    ReplicaAddress,
    alive,
    check_url,
    read_cluster_file,
    resolve,
    write_cluster_file,
)

ADDRESS = ClusterAddress(
    (ReplicaAddress("ws://127.0.0.1:1", "a", 5), ReplicaAddress("ws://127.0.0.1:2", "b")),
    cluster="shop",
    token="a secret",
    pid=os.getpid(),
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to stand in, with no cluster in the environment."""
    monkeypatch.delenv("TIEDREQ_CLUSTER", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(path: Path, **changes: Any) -> Path:
    """A cluster file with some fields changed; a change to ... leaves the field out."""
    write_cluster_file(path, ADDRESS)
    data = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in data.items() if value is not ...}))
    return path


def test_what_is_written_is_read(home: Path) -> None:
    path = home / "cluster.json"
    write_cluster_file(path, ADDRESS)
    found = read_cluster_file(path)
    assert found.replicas == ADDRESS.replicas
    assert (found.cluster, found.token, found.pid, found.source) == ("shop", "a secret", os.getpid(), str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(home.iterdir()) == [path], "no temporary file is left"


def test_a_failed_write_leaves_the_old_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "cluster.json"
    write_cluster_file(path, ADDRESS)

    def refuse(*args: object, **options: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(json, "dump", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_cluster_file(path, ADDRESS)
    assert read_cluster_file(path).replicas == ADDRESS.replicas
    assert list(home.iterdir()) == [path]


def test_where_it_is_looked_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectError, match="no cluster"):
        resolve(None)
    (home / ".tiedreq").mkdir()
    standard = written(home / ".tiedreq" / "cluster.json", cluster="standard")
    assert resolve(None).cluster == "standard"
    named = written(home / "named.json", cluster="named")
    monkeypatch.setenv("TIEDREQ_CLUSTER", str(named))
    assert resolve(None).cluster == "named"
    assert resolve(standard).cluster == resolve(str(standard)).cluster == "standard"
    assert resolve(home / ".tiedreq").cluster == "standard", "its directory will do"
    monkeypatch.setenv("TIEDREQ_CLUSTER", "ws://here:1, ws://there:2")
    assert [replica.url for replica in resolve(None).replicas] == ["ws://here:1", "ws://there:2"]
    monkeypatch.setenv("TIEDREQ_CLUSTER", "")
    assert resolve(None).cluster == "standard"


def test_addresses_by_hand() -> None:
    assert resolve("ws://a:1").replicas == (ReplicaAddress("ws://a:1"),)
    assert resolve(["wss://a:1", "ws://[::1]:2"]).replicas[1].url == "ws://[::1]:2"
    assert resolve(url for url in ["ws://a:1"]).replicas == resolve(("ws://a:1",)).replicas


@pytest.mark.parametrize(
    "bad",
    [
        [],
        "://",
        ",",
        "ws://",
        "ws://a",
        "ws://a:0",
        "ws://a:65536",
        "ws://a:1/path",
        "http://a:1",
        "ws://::1:5",
        "ws://a b:1",
        "ws://user@a:1:2",
        ["ws://a:1", "ws://a:1"],
        ["ws://a:1", 5],
        [None],
        5,
        b"ws://a:1",
        {"ws://a:1": 1, "x": 2},
    ],
    ids=repr,
)
def test_what_is_no_address(bad: Any) -> None:
    with pytest.raises((BadOption, ConnectError)):
        resolve(bad)


def test_one_address_in_two_spellings_is_named_twice() -> None:
    with pytest.raises(BadOption, match="twice"):
        resolve(["ws://a:1", "ws://a:1/"])


BROKEN: dict[str, dict[str, Any]] = {
    "another version": {"version": 2},
    "no version": {"version": ...},
    "no replicas": {"replicas": []},
    "replicas missing": {"replicas": ...},
    "replicas that are none": {"replicas": "a"},
    "replicas that are a map": {"replicas": {"a": 1}},
    "a replica without url": {"replicas": [{"name": "a"}]},
    "a replica without name": {"replicas": [{"url": "ws://a:1"}]},
    "a bad url": {"replicas": [{"name": "a", "url": "nonsense"}]},
    "a replica twice": {"replicas": [{"name": "a", "url": "ws://a:1"}, {"name": "b", "url": "ws://a:1"}]},
    "two of one name": {"replicas": [{"name": "a", "url": "ws://a:1"}, {"name": "a", "url": "ws://a:2"}]},
    "a name that is none": {"replicas": [{"name": 5, "url": "ws://a:1"}]},
    "a token that is none": {"token": 5},
    "an empty token": {"token": ""},
    "a process that is none": {"pid": "5"},
    "a process below 1": {"pid": -1},
    "no process": {"pid": 0},
    "a process beyond all": {"pid": 2**40},
    "true as a process": {"pid": True},
    "a replica's process that is none": {"replicas": [{"name": "a", "url": "ws://a:1", "pid": "x"}]},
    "an empty name": {"replicas": [{"name": "", "url": "ws://a:1"}]},
    "a cluster that is none": {"cluster": 5},
    "no cluster": {"cluster": ...},
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_one_clear_error(home: Path, case: str) -> None:
    path = written(home / "cluster.json", **BROKEN[case])
    with pytest.raises(ConnectError, match=r"cluster\.json"):
        read_cluster_file(path)


NO_FILES = (b"", b"{", b"[]", b"null", b"5", b'"text"', b"\xff\xfe", b"[" * 100_000, b'{"version": 1}')


@pytest.mark.parametrize("content", NO_FILES, ids=lambda content: repr(content[:20]))
def test_what_is_no_cluster_file(home: Path, content: bytes) -> None:
    path = home / "cluster.json"
    path.write_bytes(content)
    with pytest.raises(ConnectError, match=r"cluster\.json"):
        read_cluster_file(path)


def test_too_large_a_file(home: Path) -> None:
    path = home / "cluster.json"
    path.write_bytes(b" " * (5 * 1024 * 1024))
    with pytest.raises(ConnectError, match="larger"):
        read_cluster_file(path)


def test_no_file_and_an_empty_directory(home: Path) -> None:
    for path in (home / "nothing.json", home):
        with pytest.raises(ConnectError, match="there is none"):
            read_cluster_file(path)


def test_a_file_that_may_not_be_read(home: Path) -> None:
    path = written(home / "cluster.json")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(ConnectError, match="can't be read"):
        read_cluster_file(path)


def test_a_launcher_that_is_gone(home: Path) -> None:
    gone = 2**22 + 1
    assert not alive(gone) and alive(os.getpid()) and alive(1)
    with pytest.raises(ConnectError, match="stale"):
        read_cluster_file(written(home / "cluster.json", pid=gone))
    assert read_cluster_file(written(home / "cluster.json", pid=None)).pid is None


def test_fields_of_later_versions_are_passed_over(home: Path) -> None:
    found = read_cluster_file(written(home / "cluster.json", more={"a": 1}, token=..., dashboard=...))
    assert found.token is None and found.dashboard is None


def test_a_url_keeps_no_slash() -> None:
    assert check_url("url", "wss://a:7000/") == check_url("url", "wss://a:7000") == "wss://a:7000"


def test_the_error_does_not_tell_the_token(home: Path) -> None:
    with pytest.raises(ConnectError) as caught:
        read_cluster_file(written(home / "cluster.json", replicas=[]))
    assert "a secret" not in str(caught.value)
    assert "a secret" not in repr(ADDRESS), "nor does its repr"
