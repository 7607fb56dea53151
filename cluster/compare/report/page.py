"""The web page: sections with their pictures, the table of all rows, and what was asked for.

The page is one file. It refers to nothing outside of itself, and its content security policy forbids it to.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any
from xml.etree import ElementTree

from cluster.compare.policies import POLICIES
from cluster.compare.report.columns import WORDS
from cluster.compare.report.picture import Drawn, Section, name_of
from cluster.compare.report.views import Experiment, View

__all__ = ["make_page"]

Node = ElementTree.Element
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
SECTIONS: dict[Section, tuple[str, str]] = {
    "tails": (
        "The tail of the latencies",
        "Needs the curves of a comparison that was run with --out; this document has none.",
    ),
    "cost": (
        "What it costs as the replicas move apart",
        "Needs two or more latencies between replicas; this comparison has one.",
    ),
    "winners": (
        "Which policy wins where",
        "Needs two or more policies, and two or more loads or latencies; this comparison has fewer.",
    ),
    "ladder": (
        "The ladder: what each part buys",
        "Needs three or more policies; this comparison has fewer.",
    ),
    "fan-out": (
        "What many calls at once make of it",
        "Needs two or more fan-outs (--fan-out 1,10,100); this comparison has fewer.",
    ),
    "race": ("One tied call and its race", ""),
}


def make_page(view: View, drawn: Sequence[Drawn]) -> str:
    """The page as HTML."""
    title = f"Policies compared: {_subjects(list(view.experiments))}"
    head = _node(
        "head",
        _node("meta", charset="utf-8"),
        _node("meta", **{"http-equiv": "Content-Security-Policy", "content": POLICY}),
        _node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _node("title", title),
        _node("style", _text("page.css")),
    )
    main = _node("main", _node("h1", title), _summary(view), _contents())
    for section in SECTIONS:
        main.append(_section(section, [each for each in drawn if each.picture.section == section]))
    main.extend([_rows(view), _words(view), _asked(view)])
    page = _node("html", head, _node("body", main, _node("script", _text("page.js"))), lang="en")
    return "<!DOCTYPE html>\n" + ElementTree.tostring(page, encoding="unicode", method="html") + "\n"


def _subjects(experiments: Sequence[Experiment]) -> str:
    """What is compared, each scenario once: ``pauses, 1 or 10 calls per root call; long-tail``."""
    fan_outs: dict[str, list[int]] = {}
    for experiment in experiments:
        fan_outs.setdefault(str(experiment._replace(fan_out=1)), []).append(experiment.fan_out)
    return "; ".join(
        name if numbers == [1] else f"{name}, {' or '.join(f'{number:,}' for number in numbers)} calls per root call"
        for name, numbers in fan_outs.items()
    )


def _node(tag: str, *children: Node | str, **attributes: str) -> Node:
    node = Node(tag, {name.rstrip("_"): value for name, value in attributes.items()})
    for child in children:
        if isinstance(child, str):
            if len(node):
                node[-1].tail = (node[-1].tail or "") + child
            else:
                node.text = (node.text or "") + child
        else:
            node.append(child)
    return node


def _text(name: str) -> str:
    return resources.files("cluster.compare.report").joinpath(name).read_text(encoding="utf-8")


def _summary(view: View) -> Node:
    rows = view.rows
    calls, seeds = sum(row["calls"] for row in rows), max(row["seeds"] for row in rows)
    errors = sum(row["errors"] + row["unfinished"] for row in rows)
    unstable = sum(not row["stable"] for row in rows)
    items = [
        f"{len(rows)} rows, {calls:,} measured calls, {errors:,} of them without an answer.",
        f"{seeds} seeds per row; intervals are those of 95 % confidence over seeds."
        if seeds > 1
        else "One seed per row: there are no confidence intervals, and no small difference can be judged.",
    ]
    if unstable:
        items.append(
            f"{unstable} rows are unstable: their queues grew to the end, and their percentiles depend on how long the"
            " run was. They are marked everywhere."
        )
    return _node("ul", *(_node("li", item) for item in items), class_="summary")


def _contents() -> Node:
    links: list[tuple[str, str]] = [(section, title) for section, (title, _) in SECTIONS.items()]
    links += [("rows", "All rows"), ("words", "What the words mean"), ("asked", "What was asked for, and where it ran")]
    return _node("nav", _node("ul", *(_node("li", _node("a", title, href=f"#{name}")) for name, title in links)))


def _section(section: Section, drawn: Sequence[Drawn]) -> Node:
    title, needs = SECTIONS[section]
    node = _node("section", _node("h2", title), id=section)
    for each in drawn:
        picture = each.picture
        source = f"data:image/svg+xml;base64,{base64.b64encode(each.svg).decode()}"
        node.append(_node("h3", picture.title))
        wide = _node("div", _node("img", src=source, alt=picture.alt), class_="picture", tabindex="0")
        node.append(_node("figure", wide, _node("figcaption", picture.caption)))
    if not drawn:
        node.append(_node("p", needs))
    return node


# ---- the table ------------------------------------------------------------------------------------------------


def _rows(view: View) -> Node:
    rows = view.rows
    names = [name for name in WORDS if any(row.get(name) is not None for row in rows)]
    names.remove("policy")
    names.insert(0, "policy")
    names += sorted({name for row in rows for name in row} - set(WORDS))
    titles = [
        _node("th", _node("button", name, type="button"), title=WORDS.get(name, ""), scope="col") for name in names
    ]
    body = _node("tbody")
    for row in rows:
        cells = [_node("th", name_of(row["policy"], row["stable"]), scope="row")]
        cells += [_node("td", _shown(row.get(name)), **_sort_key(row.get(name))) for name in names[1:]]
        body.append(_node("tr", *cells, **({} if row["stable"] else {"class": "unstable"})))
    table = _node("table", _node("thead", _node("tr", *titles)), body, id="table")
    return _node(
        "section",
        _node("h2", "All rows"),
        _node("p", "Durations in milliseconds. A click on a column sorts by it; – does not apply. Also in rows.csv."),
        _node("div", table, class_="wide", tabindex="0", role="region", **{"aria-label": "Table of all rows"}),
        id="rows",
    )


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " – ".join(_shown(part) for part in value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value)


def _sort_key(value: Any) -> dict[str, str]:
    first = value[0] if isinstance(value, list) else value
    return {"data-value": repr(float(first))} if isinstance(first, int | float) else {}


# ---- words and circumstances ----------------------------------------------------------------------------------


def _words(view: View) -> Node:
    there = {row["policy"] for row in view.rows}
    policies = [(name, known.words) for name, known in POLICIES.items() if name in there]
    columns = [(name, words) for name, words in WORDS.items() if any(name in row for row in view.rows)]
    return _node(
        "section",
        _node("h2", "What the words mean"),
        _node("p", "The definitions in full are in ", _node("code", "docs/compare.md"), " of the project."),
        _node("h3", "Policies"),
        _list(policies),
        _node("h3", "Columns"),
        _list(columns),
        id="words",
    )


def _list(pairs: Sequence[tuple[str, str]]) -> Node:
    node = _node("dl")
    for name, words in pairs:
        node.append(_node("dt", name))
        node.append(_node("dd", words))
    return node


def _asked(view: View) -> Node:
    node = _node("section", _node("h2", "What was asked for, and where it ran"), id="asked")
    for title, part in (("Options", "options"), ("Environment", "environment")):
        told = view.document.get(part) or {}
        node.append(_node("h3", title))
        node.append(_list([(name, _plain(value)) for name, value in told.items()]))
    return node


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
