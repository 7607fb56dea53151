"""Logs: as JSON, limited where floods come from, quiet about lost races."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
import trio

import tiedreq
from tests.observe.services import make_service
from tiedreq.observe.logs import EXTRA_MAX, JsonFormatter
from tiedreq.testing import LocalCluster


class Unwilling:
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.fixture
def lines() -> Any:
    """What a logger of its own writes, as objects."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("test.observe.logs")
    logger.addHandler(handler)
    logger.propagate = False
    yield logger, lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.removeHandler(handler)
    logger.propagate = True


def test_a_record_is_one_line(lines: Any) -> None:
    logger, told = lines
    logger.warning("two\nlines of %s", "text", extra={"call_id": "ab-1", "odd": {1, 2}.__class__})
    (line,) = told()
    assert line["message"] == "two\nlines of text" and line["level"] == "warning" and line["call_id"] == "ab-1"
    assert line["logger"] == "test.observe.logs" and line["time"].endswith("+00:00")


def test_an_exception_has_its_traceback(lines: Any) -> None:
    logger, told = lines
    try:
        raise ValueError("wrong")
    except ValueError:
        logger.exception("it failed")
    (line,) = told()
    assert line["error"]["type"] == "ValueError" and line["error"]["message"] == "wrong"
    assert "test_logs.py" in line["error"]["traceback"]


def test_nothing_that_a_record_holds_breaks_it(lines: Any) -> None:
    logger, told = lines
    logger.error("odd", extra={"odd": Unwilling(), "level": "not mine", **{f"x{n}": n for n in range(100)}})
    logger.error("bad", exc_info=(None, None, None))
    first, second = told()
    assert first["odd"] == "(Unwilling)" and first["level"] == "error" and second["message"] == "bad"
    assert sum(name.startswith("x") for name in first) < EXTRA_MAX


async def test_tracebacks_of_handlers_are_limited_by_method(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    service = make_service()

    @service.method()
    async def other(ctx: tiedreq.Context, args: Any) -> None:
        raise RuntimeError("another accident")

    async with LocalCluster(service, replicas=1) as client:
        for method in ["crash"] * 40 + ["other"] * 2:
            with pytest.raises(tiedreq.RemoteFailure):
                await client.call(method)
    told = [record.getMessage() for record in caplog.records if record.exc_info]
    assert 0 < sum("crash" in text for text in told) < 10
    assert sum("other" in text for text in told) == 2


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
async def test_losing_a_race_is_debug(autojump_clock: Any, caplog: pytest.LogCaptureFixture, level: int) -> None:
    cluster = LocalCluster(make_service(), replicas=2, slots=1)
    with caplog.at_level(level, logger="tiedreq"):
        async with cluster as client:
            await client.request("nap", 0.05, policy=tiedreq.Tied(stagger=0.0, backup=None))
            await trio.sleep(0.1)
    told = [record for record in caplog.records if record.name == "tiedreq.replica"]
    assert all(record.levelno == logging.DEBUG for record in told)
    assert any("started" in record.getMessage() for record in told) == (level == logging.DEBUG)
