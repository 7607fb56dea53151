"""The report of a comparison: from its document, one web page that opens without a network, and its pictures as SVG.

Needs the optional dependencies ``tiedreq[report]``. What a comparison does not have is left out and said so; what is
uncertain (unstable runs, differences within the intervals, tails of few calls) is marked in every picture.

Not for running anything (``cluster.compare``), except the one small call of the timeline (``race``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["write"]


def write(out: Path, document: dict[str, Any]) -> list[Path]:
    """Write ``report.html`` and its pictures for a comparison's document into an existing directory; their paths.

    Raises ``ValueError`` for a document that is none or has no rows, ``OSError`` where nothing can be written,
    ``ImportError`` that says what to install where nothing can be drawn.
    """
    try:
        import matplotlib
    except ImportError as error:
        text = "a report needs a plotting library: pip install 'tiedreq[report]'"
        raise ImportError(text, name=error.name) from None
    from cluster.compare.report import cost, fan_out, ladder, race_picture, tails, winners
    from cluster.compare.report.page import make_page
    from cluster.compare.report.picture import SETTINGS, Drawn, Picture
    from cluster.compare.report.views import read_document

    view = read_document(document)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # what a user has set up for other plots is not for these
        matplotlib.rcParams.update(SETTINGS)
        pictures: list[Picture] = [
            *tails.pictures(view),
            *cost.pictures(view),
            *winners.pictures(view),
            *ladder.pictures(view),
            *fan_out.pictures(view),
            *race_picture.pictures(),
        ]
        drawn = [Drawn(picture, picture.to_svg()) for picture in pictures]
    paths = []
    for each in drawn:
        path = out / f"{each.picture.name}.svg"
        path.write_bytes(each.svg)
        paths.append(path)
    page = out / "report.html"
    page.write_text(make_page(view, drawn), encoding="utf-8")
    return [page, *paths]
