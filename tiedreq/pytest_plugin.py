"""Fixtures for tests of your own service.

``pytest_plugins = ["tiedreq.pytest_plugin"]`` in ``conftest.py`` brings them. Define a fixture ``tied_service`` that
returns your ``tiedreq.Service``. Then a test that asks for

* ``tied_client`` (on Trio, with pytest-trio) gets a ``tiedreq.Client``; add ``autojump_clock`` for virtual time;
* ``tied_client_aio`` (on asyncio, whatever runs the test) a ``tiedreq.aio.Client``;
* ``tied_client_blocking`` a ``tiedreq.blocking.Client``,

connected to three replicas in memory. ``tied_cluster``, ``tied_cluster_aio`` and ``tied_cluster_blocking`` are the
clusters behind them, to stop a replica or cut the network; ask for them together with the client. A fixture
``tied_options`` that returns a dict changes their options: those of ``LocalCluster``, and ``virtual_time`` for the
latter two.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tiedreq import aio, blocking
from tiedreq.net.client import Client
from tiedreq.service import Service
from tiedreq.testing import AsyncioCluster, BlockingCluster, LocalCluster

__all__ = [
    "tied_client",
    "tied_client_aio",
    "tied_client_blocking",
    "tied_cluster",
    "tied_cluster_aio",
    "tied_cluster_blocking",
    "tied_options",
    "tied_service",
]


@pytest.fixture
def tied_service() -> Service:
    """The service that is to be tested: define a fixture of this name."""
    raise pytest.UsageError("define a fixture `tied_service` that returns your tiedreq.Service")


@pytest.fixture
def tied_options() -> dict[str, Any]:
    """Options of the cluster: define a fixture of this name to change them."""
    return {}


@pytest.fixture
def tied_cluster(tied_service: Service, tied_options: dict[str, Any]) -> LocalCluster:
    """The cluster of ``tied_client``."""
    return LocalCluster(tied_service, **tied_options)


@pytest.fixture
def tied_cluster_aio(tied_service: Service, tied_options: dict[str, Any]) -> AsyncioCluster:
    """The cluster of ``tied_client_aio``."""
    return AsyncioCluster(tied_service, **tied_options)


@pytest.fixture
def tied_cluster_blocking(tied_service: Service, tied_options: dict[str, Any]) -> BlockingCluster:
    """The cluster of ``tied_client_blocking``."""
    return BlockingCluster(tied_service, **tied_options)


@pytest.fixture
def tied_client_aio(tied_cluster_aio: AsyncioCluster) -> Iterator[aio.Client]:
    """A client for asyncio; its first call starts the replicas."""
    with tied_cluster_aio.beside() as client:
        yield client


@pytest.fixture
def tied_client_blocking(tied_cluster_blocking: BlockingCluster) -> Iterator[blocking.Client]:
    """A client for threads."""
    with tied_cluster_blocking as client:
        yield client


try:
    from pytest_trio import trio_fixture  # type: ignore[import-untyped]
except ImportError:

    @pytest.fixture
    def tied_client() -> Client:
        """A client for Trio."""
        raise pytest.UsageError("tied_client: tests on Trio need pytest-trio; or ask for tied_client_blocking")
else:

    @trio_fixture  # type: ignore[untyped-decorator]
    async def tied_client(tied_cluster: LocalCluster) -> AsyncIterator[Client]:
        """A client for Trio."""
        async with tied_cluster as client:
            yield client
