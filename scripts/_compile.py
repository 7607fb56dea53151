"""The build hook of compiled wheels: with ``TIEDREQ_COMPILE=1`` mypyc compiles the cores and what surrounds them.

``TIEDREQ_COMPILE=1 pip wheel .`` makes a wheel for this machine's Python that has the modules of ``compiled_modules``
twice: as they are, and as C extensions, which Python prefers. They behave the same, since they are made from the same
text. Without the variable nothing happens, and the wheel is the pure one that works everywhere. An editable install is
always pure: what is edited is what runs. ``TIEDREQ_COMPILE_LEVEL`` is how hard the C compiler tries, 0 to 3.

Not compiled is all that waits (``async def`` is Trio's and Python's), what is called once per frame or less, and of the
cores ``errors``, since classes that others derive from together with built-in exceptions can't be C structures. A
compiled function checks the types of its arguments: where users' own values arrive it says ``Any``, so that they get
our errors and not a ``TypeError``.
Whoever derives from a class of a core in Python, as the broken cores of ``tests/mutants`` do, needs the pure version.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "TIEDREQ_COMPILE"
LEVEL_VARIABLE, LEVEL_DEFAULT = "TIEDREQ_COMPILE_LEVEL", "2"
NEEDED = ["mypy>=1.15", "setuptools>=65"]
TYPES = ["trio", "trio-websocket", "msgpack", "click", "rich", "prometheus-client", "opentelemetry-api", "h11"]
"""What the compiled modules import, directly or not: mypyc needs their types."""
GROUP = "tiedreq"
"""One library holds all modules, so that they call each other directly; it is the module ``tiedreq__mypyc``."""
PURE = ("__init__", "errors")
# Not ``handlers``, from whose classes workloads derive.
SIMULATOR = ("caller_node", "clock", "links", "meter", "network", "replica_node", "world")
WIRE = ("chunks", "codec", "content", "hot", "payload", "structure")
# Not ``packing``, which has what belongs to one thread each, nor the layouts and fields, which are for the unusual.
NET = (
    "desk",
    "executions",
    "frames",
    "framing",
    "opencall",
    "openstream",
    "outbox",
    "peer_news",
    "preparing",
    "reception",
    "sending",
    "times",
)
PROXY = ("headers", "messages", "rules")
# What never waits: no ``async def``, and no class that one with ``async def`` derives from.
SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup

extensions = mypycify(sys.argv[2:], opt_level={level!r}, debug_level="0", group_name={group!r})
for extension in extensions:
    # A warning of a compiler that mypyc's authors don't have is no reason to fail.
    extension.extra_compile_args = [flag for flag in extension.extra_compile_args if flag != "-Werror"]
setup(name="compiled", packages=[], ext_modules=extensions, script_args=["-q", "build_ext", "--build-lib", sys.argv[1]])
"""


def compiled_modules(root: Path) -> list[str]:
    """The files that are compiled, relative to ``root``: all cores, and what the simulator does for every message."""
    cores = sorted(path for path in (root / "tiedreq/core").glob("*.py") if path.stem not in PURE)
    return [
        *(path.relative_to(root).as_posix() for path in cores),
        *(f"tiedreq/wire/{name}.py" for name in WIRE),
        *(f"tiedreq/net/{name}.py" for name in NET),
        *(f"tiedreq/proxy/{name}.py" for name in PROXY),
        *(f"tiedreq/sim/{name}.py" for name in SIMULATOR),
    ]


def compile_into(target: Path, root: Path) -> list[Path]:
    """Compile, and put the extensions into ``target``. Returns their paths, relative to it.

    Raises ``SystemExit`` with mypyc's or the compiler's own words when that can't be done.
    """
    with tempfile.TemporaryDirectory(prefix="tiedreq-compile-") as directory:
        shutil.copytree(root / "tiedreq", Path(directory) / "tiedreq", ignore=shutil.ignore_patterns("__pycache__"))
        setup = Path(directory) / "setup.py"
        setup.write_text(SETUP.format(group=GROUP, level=os.environ.get(LEVEL_VARIABLE, LEVEL_DEFAULT)))
        command = [sys.executable, setup.name, str(target), *compiled_modules(root)]
        done = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{VARIABLE}=1: not compiled (see above); without it the wheel is pure")
    made = sorted(path for path in target.rglob("*") if path.is_file())
    return [path.relative_to(target) for path in made]


class CompileHook(BuildHookInterface[Any]):
    """What hatchling calls when it builds a wheel."""

    PLUGIN_NAME = "custom"

    @staticmethod
    def _wanted() -> bool:
        return os.environ.get(VARIABLE, "") not in ("", "0")

    def dependencies(self) -> list[str]:
        """What an isolated build installs before it calls ``initialize``."""
        return NEEDED + TYPES if self._wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel is put together, and add what was made."""
        if not self._wanted() or version == "editable":
            return
        self._made = tempfile.TemporaryDirectory(prefix="tiedreq-compiled-")
        target = Path(self._made.name)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in compile_into(target, Path(self.root)):
            build_data["force_include"][str(target / path)] = path.as_posix()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is made; what it was made of may go."""
        made = getattr(self, "_made", None)
        if made is not None:
            made.cleanup()
