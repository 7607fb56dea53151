from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tiedreq").addoption(
        "--rewrite",
        action="store_true",
        help="write what the scenarios tell into their files, to be reviewed as a diff",
    )
