"""The report: from a real comparison's document to one page without requests, its pictures, and what they say."""

from __future__ import annotations

import base64
import copy
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cluster.compare.__main__ import main as compare
from cluster.compare.report import cost, fan_out, ladder, tails, winners, write
from cluster.compare.report.__main__ import main
from cluster.compare.report.columns import WORDS
from cluster.compare.report.page import _subjects
from cluster.compare.report.race import run_race
from cluster.compare.report.views import Experiment, read_document, some_of
from cluster.compare.report.winners import judge
from cluster.compare.rows import COLUMNS, FAN_OUT_COLUMNS

SMALL = "--replicas 3 --slots 2 --service exp(10ms) --load .5 --duration 1s --warmup 200ms --jobs 1 --seeds 2".split()
VOID = {"meta", "img", "br", "link", "input"}
SVG = "{http://www.w3.org/2000/svg}"


class Page(HTMLParser):
    """A page's tags, checked to be closed in order, with its images and its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.seen: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.seen.append(tag)
        self.references += [value or "" for name, value in attributes if name in ("src", "href", "srcset", "data")]
        self.ids += [value or "" for name, value in attributes if name == "id"]
        if tag == "img":
            self.images.append(values)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a comparison with a report."""
    out = tmp_path_factory.mktemp("report")
    arguments = ["--policies", "plain,hedged,tied", "--mesh-latency", "0,2ms", "--out", str(out)]
    assert compare([*SMALL, *arguments]) == 0
    return out


@pytest.fixture
def document(out: Path) -> dict[str, Any]:
    return json.loads((out / "rows.json").read_text())


def strokes(svg: bytes) -> int:
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    return sum(len(path.get("d", "")) > 20 for path in root.iter(f"{SVG}path"))


def test_every_picture_is_there_as_a_file_and_in_the_page(out: Path) -> None:
    page = Page((out / "report.html").read_text())
    files = sorted(path.name for path in out.glob("*.svg"))
    assert [name.split("-")[0] for name in files] == ["cost", "ladder", "race.svg", "tail", "winners"]
    shown = [base64.b64decode((image["src"] or "").partition("base64,")[2]) for image in page.images]
    assert sorted(shown) == sorted((out / name).read_bytes() for name in files)
    assert all(strokes(svg) > 30 for svg in shown)
    assert all(len(image["alt"] or "") > 60 for image in page.images)


def test_the_page_is_well_formed_and_asks_the_network_for_nothing(out: Path) -> None:
    text = (out / "report.html").read_text()
    page = Page(text)
    assert page.open == [] and text.startswith("<!DOCTYPE html>")
    assert "http:" not in text and "https:" not in text and "url(" not in text
    assert all(reference.startswith(("data:image/svg+xml;base64,", "#")) for reference in page.references)
    assert {reference[1:] for reference in page.references if reference.startswith("#")} <= set(page.ids)
    assert "default-src 'none'" in text
    for image in page.images:
        svg = base64.b64decode((image["src"] or "").partition("base64,")[2]).decode()
        assert not re.search(r'href="(?!#)|@import|url\((?!#)', svg)


def test_the_table_has_all_rows_and_all_columns_that_say_something(out: Path, document: dict[str, Any]) -> None:
    page = Page((out / "report.html").read_text())
    assert page.seen.count("tr") == 1 + len(document["rows"])
    told = {name for row in document["rows"] for name, value in row.items() if value is not None}
    assert told <= set(page.texts)


def test_every_column_has_its_words() -> None:
    assert set(WORDS) == {*COLUMNS, *FAN_OUT_COLUMNS}


def test_a_report_of_a_file_with_less_in_it(out: Path, document: dict[str, Any], tmp_path: Path) -> None:
    del document["curves"]
    document["rows"] = [{**row, "policy": "<b>&plain"} for row in document["rows"][:1]]
    (tmp_path / "rows.json").write_text(json.dumps(document))
    assert main([str(tmp_path / "rows.json"), "--out", str(tmp_path / "new")]) == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["race.svg", "report.html", "rows.csv"]
    page = Page((tmp_path / "new" / "report.html").read_text())
    assert "b" not in page.seen and "<b>&plain" in page.texts
    assert sum(text.startswith("Needs ") for text in page.texts) == 5


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"schema": 1, "rows": []}',
        '{"schema": 2, "rows": [1]}',
        '{"schema": 1, "rows": [{}]}',
        '{"schema": 1, "rows": [1]}',
    ],
)
def test_what_is_no_document_is_refused(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.json").write_text(content)
    assert main([str(tmp_path / "rows.json"), "--out", str(tmp_path / "new")]) == 2
    assert "rows.json: " in capsys.readouterr().err
    assert not list(tmp_path.glob("new/*"))


def test_curves_that_don_t_fit_the_rows_are_refused(document: dict[str, Any], tmp_path: Path) -> None:
    document["curves"].pop()
    with pytest.raises(ValueError, match="6 rows and 5 curves"):
        write(tmp_path, document)


# ---- what is uncertain is marked ------------------------------------------------------------------------------


def with_tails(document: dict[str, Any], **tail: tuple[float, list[float] | None]) -> dict[str, Any]:
    """The rows of one latency with these p99.9 and intervals (ms)."""
    changed = copy.deepcopy(document)
    changed["rows"] = [row for row in changed["rows"] if row["mesh_latency_ms"] == 2]
    del changed["curves"]
    for row in changed["rows"]:
        row["p999_ms"], row["p999_ms_ci"] = tail[row["policy"]]
    return changed


def verdict_of(document: dict[str, Any]) -> winners.Verdict:
    (entries,) = read_document(document).workloads.values()
    return judge(entries)


def test_a_winner_beyond_the_intervals(document: dict[str, Any]) -> None:
    document = with_tails(document, plain=(90, [80, 100]), hedged=(60, [55, 65]), tied=(50, [48, 52]))
    verdict = verdict_of(document)
    assert verdict.best is not None and verdict.best.policy == "tied" and verdict.clear
    assert verdict.runner_up is not None and verdict.runner_up.policy == "hedged"


def test_no_winner_within_the_intervals(document: dict[str, Any]) -> None:
    document = with_tails(document, plain=(90, [80, 100]), hedged=(51, [47, 55]), tied=(50, [48, 52]))
    verdict = verdict_of(document)
    assert [entry.policy for entry in verdict.equals] == ["hedged"] and not verdict.clear


def test_no_winner_without_intervals(document: dict[str, Any]) -> None:
    verdict = verdict_of(with_tails(document, plain=(90, None), hedged=(60, None), tied=(50, None)))
    assert verdict.best is not None and not verdict.judged and not verdict.clear


def test_an_unstable_run_can_t_win_and_is_marked(document: dict[str, Any]) -> None:
    document = with_tails(document, plain=(90, [80, 100]), hedged=(60, [55, 65]), tied=(50, [48, 52]))
    document["rows"][-1]["stable"] = False
    verdict = verdict_of(document)
    assert verdict.best is not None and verdict.best.policy == "hedged" and verdict.unstable == 1
    for row in document["rows"]:
        row["stable"] = False
    assert verdict_of(document).best is None
    (picture,) = ladder.pictures(read_document(document))
    assert any(text.get_text().startswith("unstable") for text in picture.figure.legends[0].get_texts())


def fanned(document: dict[str, Any], sizes: list[int]) -> dict[str, Any]:
    """The rows of one latency, at these fan-outs, of calls that are slow independently: 1 in 100 with plain."""
    rows = [row for row in document["rows"] if row["mesh_latency_ms"] == 2]
    share = {"plain": 0.01, "hedged": 0.004, "tied": 0.002}
    changed = {
        name: [1 - (1 - share[row["policy"]]) ** size for size in sizes for row in rows] for name in FAN_OUT_COLUMNS[1:]
    }
    new = [{**row, "fan_out": size} for size in sizes for row in rows]
    for name, values in changed.items():
        new = [{**row, name: value} for row, value in zip(new, values, strict=True)]
    return {**document, "rows": new, "curves": None}


def test_fan_outs_are_drawn_next_to_what_independence_makes_of_them(document: dict[str, Any]) -> None:
    (picture,) = fan_out.pictures(read_document(fanned(document, [1, 10, 100])))
    assert "plain 63.4 % (independent: 63.4 %)" in picture.alt
    measured, chance = picture.figure.axes[0].lines[:2]
    assert list(measured.get_ydata()) == pytest.approx([1.0, 9.56, 63.4], rel=0.01)
    assert chance.get_linestyle() == ":" and chance.get_ydata()[-1] == pytest.approx(63.4, rel=0.01)
    assert chance.get_xdata()[-1] == pytest.approx(100)
    assert fan_out.pictures(read_document(fanned(document, [10]))) == fan_out.pictures(read_document(document)) == []


def test_axes_say_their_unit_and_that_they_are_logarithmic(document: dict[str, Any]) -> None:
    view, roots = read_document(document), read_document(fanned(document, [1, 10]))
    shown = [picture for part in (tails, cost, ladder, winners) for picture in part.pictures(view)]
    for picture in (*shown, *fan_out.pictures(roots)):
        for panel in picture.figure.axes:
            assert panel.get_xlabel()
            for axis in (panel.xaxis, panel.yaxis):
                told = axis.get_label_text()
                assert not told or axis.get_scale() == "linear" or "log scale" in told


def test_without_a_plotting_library_one_line_says_what_to_install(
    document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(document))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([str(path), "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == "Error: a report needs a plotting library: pip install 'tiedreq[report]'\n"


def test_at_most_so_many_evenly_chosen() -> None:
    assert some_of([1, 2, 3], 4) == [1, 2, 3]
    assert some_of(list(range(7)), 4) == [0, 2, 4, 6]


# ---- the call of the timeline ---------------------------------------------------------------------------------


def test_far_apart_the_second_copy_is_dropped_from_its_queue() -> None:
    race = run_race((0.021, 0.012), 0.005)
    first, second = race.copies.values()
    assert (first.replica, first.how, first.started) == (race.winner, "done", pytest.approx(12))
    assert (second.how, second.started, second.ended) == ("dropped", None, pytest.approx(17))
    assert [(notice.sent, notice.handled) for notice in race.notices] == [(pytest.approx(12), pytest.approx(17))]
    assert race.answered == pytest.approx(34)


def test_close_together_both_start_and_the_second_copy_yields() -> None:
    race = run_race((0.014, 0.012), 0.005)
    first, second = race.copies.values()
    assert (first.how, first.started) == ("done", pytest.approx(12))
    assert (second.how, second.started, second.ended) == ("yielded", pytest.approx(14), pytest.approx(17))
    assert all(notice.handled - notice.sent == pytest.approx(5) for notice in race.notices)
    assert race.answered == pytest.approx(34)


def test_the_title_names_each_scenario_once() -> None:
    one, ten, live = Experiment("sim", None, 1), Experiment("sim", None, 10), Experiment("live", "pauses", 1)
    assert _subjects([one]) == "as the options say"
    assert _subjects([one, ten, live]) == "as the options say, 1 or 10 calls per root call; pauses (live)"
    assert _subjects([ten]) == "as the options say, 10 calls per root call"
