"""docs/grafana-dashboard.json names only metrics and labels that exist, and docs/operating.md names them all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

import tiedreq
from tests.observe.services import make_service
from tiedreq.observe.metrics import exposition
from tiedreq.testing import LocalCluster

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
DASHBOARD = json.loads((DOCS / "grafana-dashboard.json").read_text("utf-8"))
NAME = re.compile(r"\b(?:tiedreq|process)_[a-z_]+\b")
OF_PROMETHEUS = {"job", "instance", "le"}


def expressions(value: Any) -> Iterator[str]:
    """Every PromQL expression of the dashboard."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("expr", "query") and isinstance(inner, str):
                yield inner
            else:
                yield from expressions(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from expressions(inner)


@pytest.fixture
async def pages(autojump_clock: Any) -> dict[str, set[str]]:
    """Every sample that a replica and a client show, by name, with its labels."""
    shown: dict[str, set[str]] = {}
    cluster = LocalCluster(make_service(), replicas=2, slots=1)
    async with cluster as client:
        for policy in (tiedreq.Plain(), tiedreq.Tied(stagger=0.0), tiedreq.Hedged(tiedreq.Backup(after=0.001))):
            await client.request("nap", 0.01, policy=policy)
        with trio.move_on_after(0.005):
            await client.call("nap", 1.0)
        await trio.sleep(1)  # for the lag of the loop
        observers = [client.observer, *(handle._server.observer for handle in cluster.handles.values())]
        for observer in observers:
            assert observer is not None
            body, _ = exposition(observer)("text/plain")
            for family in text_string_to_metric_families(body.decode()):
                assert family.documentation and family.type != "untyped"
                for sample in family.samples:
                    shown.setdefault(sample.name, set()).update(sample.labels)
                if not family.samples:
                    shown.setdefault(family.name + ("_total" if family.type == "counter" else ""), set())
    return shown


async def test_every_metric_of_the_dashboard_exists(pages: dict[str, set[str]]) -> None:
    named = {name for expression in expressions(DASHBOARD) for name in NAME.findall(expression)}
    assert len(named) > 20
    assert named <= set(pages), sorted(named - set(pages))


async def test_every_label_of_the_dashboard_exists(pages: dict[str, set[str]]) -> None:
    known = set().union(*pages.values(), OF_PROMETHEUS)
    for expression in expressions(DASHBOARD):
        labels = set(re.findall(r"(\w+)(?:=~|!=|=)\"", expression))
        for group in re.findall(r"by \(([^)]*)\)", expression):
            labels |= {label.strip() for label in group.split(",")}
        assert labels <= known, (expression, labels - known)
        for name in NAME.findall(expression):
            matched = re.search(rf"{name}\{{([^}}]*)\}}", expression)
            if matched and pages[name]:
                own = set(re.findall(r"(\w+)(?:=~|!=|=)\"", matched[1])) - OF_PROMETHEUS
                assert own <= pages[name], (name, own - pages[name])


def test_panels_have_titles_words_and_places_of_their_own() -> None:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len({panel["title"] for panel in panels}) == len(panels) > 15
    assert all(panel["description"] and panel["targets"] for panel in panels)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]}
    assert len(places) == len(DASHBOARD["panels"])


async def test_the_page_for_operators_lists_every_metric(pages: dict[str, set[str]]) -> None:
    text = (DOCS / "operating.md").read_text("utf-8")
    ours = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in pages if name.startswith("tiedreq_")}
    named = set(NAME.findall(text))
    assert ours <= named, sorted(ours - named)
    stale = {name for name in named if name.startswith(("tiedreq_replica_", "tiedreq_client_"))} - ours
    assert not stale, sorted(stale)
