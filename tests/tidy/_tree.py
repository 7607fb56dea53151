"""The files of the repository as the tidy tests see them."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


# Where there is no git to say what is ignored, as in an unpacked archive.
NOT_OURS = re.compile(
    r"\.git|\.venv.*|\.tiedreq|\.hypothesis|.*_cache|__pycache__|dist|build|.*\.egg-info|.*\.py[cd]|\.coverage"
)


@cache
def files() -> tuple[Path, ...]:
    """Every file that is or would be committed, as a path below the checkout."""
    try:
        paths = listed_by_git()
    except (OSError, subprocess.CalledProcessError):
        paths = found_below(ROOT)
    return tuple(sorted(paths))


def listed_by_git() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    return [path for name in listed.split("\0") if name and (ROOT / (path := Path(name))).is_file()]


def found_below(folder: Path) -> list[Path]:
    paths: list[Path] = []
    for entry in folder.iterdir():
        if not NOT_OURS.fullmatch(entry.name):
            paths += found_below(entry) if entry.is_dir() else [entry.relative_to(ROOT)]
    return paths


def modules(*folders: str) -> list[Path]:
    return [path for path in files() if path.suffix == ".py" and path.parts[0] in folders]


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")
