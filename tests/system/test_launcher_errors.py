"""A launcher that fails by itself leaves nothing behind either."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from cluster.config import UpConfig
from cluster.engines import LocalEngine
from cluster.output import Output
from cluster.state import hold
from cluster.supervisor import Cluster
from tests.cluster._launcher import gone_within, write_app

pytestmark = pytest.mark.system


async def test_an_exception_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_app(tmp_path)
    output = Output()
    config = UpConfig(replicas=2, app="app:service")
    pids: list[int] = []
    with hold(tmp_path / "state") as state:
        cluster = Cluster(config, state, output, LocalEngine(), lambda name: {})
        with pytest.raises(BaseExceptionGroup):
            async with cluster.running():
                assert await cluster.ready()
                pids = [keeper.pid for keeper in cluster.keepers]
                raise RuntimeError("a defect")
        assert state.cluster_file.exists()
    assert not state.cluster_file.exists()
    assert len(pids) == 2 and gone_within(pids, 0.5)
    output.close()


async def test_nonsense_on_the_control_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that breaks the pipe is ended, and with it the start."""
    monkeypatch.chdir(tmp_path)
    write_app(
        tmp_path,
        """
        import os
        for descriptor in range(3, 20):
            try:
                os.write(descriptor, b"nonsense\\n")
            except OSError:
                pass
        import time
        time.sleep(100)
        """,
    )
    output = Output()
    with hold(tmp_path / "state") as state:
        cluster = Cluster(UpConfig(replicas=1, app="app:service"), state, output, LocalEngine(), lambda name: {})
        with trio.fail_after(20):
            async with cluster.running():
                assert not await cluster.ready()
                assert cluster.start_failure is not None
                assert "nonsense on its control pipe" in cluster.start_failure[1].story
    output.close()
