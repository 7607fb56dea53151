"""The pinned requirements fit pyproject.toml, and nothing in them is without a hash."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.tidy._tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUPS = PROJECT["dependency-groups"]
RUN = [*PROJECT["project"]["dependencies"], *GROUPS["build"]]
REPORT = [*RUN, *PROJECT["project"]["optional-dependencies"]["report"]]
RAY = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["ray"]]
NEEDED = {"run": RUN, "report": REPORT, "dev": [*REPORT, *GROUPS["dev"]], "ray": RAY}


def pins(text: str) -> dict[str, tuple[Version, int]]:
    """Name to version and number of hashes; raises ValueError on a line that pins nothing."""
    pinned = {}
    for entry in re.sub(r"\\\n", " ", text).splitlines():
        if entry.startswith("#") or not entry.strip():
            continue
        match = re.match(r"([\w.-]+)==([\w.]+)( ; [^#]*?)?((?:\s+--hash=sha256:[0-9a-f]{64})+)$", entry)
        if match is None:
            raise ValueError(f"not a pin with hashes: {entry[:100]}")
        pinned[match[1]] = (Version(match[2]), match[4].count("--hash"))
    return pinned


@pytest.fixture(scope="module")
def pinned() -> dict[str, dict[str, tuple[Version, int]]]:
    return {kind: pins((ROOT / "requirements" / f"{kind}.txt").read_text()) for kind in NEEDED}


@pytest.mark.parametrize("kind", NEEDED)
def test_pins_satisfy_the_project(kind: str, pinned) -> None:
    for line in NEEDED[kind]:
        needed = Requirement(line)
        assert needed.name in pinned[kind], "run scripts/_pin"
        assert pinned[kind][needed.name][0] in needed.specifier, "run scripts/_pin"


def test_the_sets_pin_the_same_versions(pinned) -> None:
    # An environment for `dev` also serves `report`, and that one `run`: scripts/_install.py marks it so.
    assert pinned["run"].items() <= pinned["report"].items() <= pinned["dev"].items()


def test_who_only_runs_it_needs_no_plotting_library(pinned) -> None:
    assert not {"matplotlib", "numpy", "pillow"} & set(pinned["run"])


def test_ray_is_for_those_who_ask_for_it_and_agrees_with_the_rest(pinned) -> None:
    # scripts/_install.py adds it to an environment that is there, and must change nothing in it.
    assert "ray" not in pinned["dev"]
    shared = pinned["ray"].keys() & pinned["dev"].keys()
    assert "trio" in shared
    assert {name: pinned["ray"][name][0] for name in shared} == {name: pinned["dev"][name][0] for name in shared}


def test_the_build_group_is_what_the_build_needs() -> None:
    assert GROUPS["build"] == PROJECT["build-system"]["requires"]


def test_a_line_without_hash_is_found() -> None:
    assert list(pins("a==1.0 \\\n    --hash=sha256:" + "0" * 64)) == ["a"]
    for bad in ("a==1.0", "a>=1.0 --hash=sha256:" + "0" * 64, "-r other.txt"):
        with pytest.raises(ValueError, match="not a pin"):
            pins(bad)
