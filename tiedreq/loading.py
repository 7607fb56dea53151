"""Find an engineer's service by its name on a command line: ``package.module:service``.

The current directory is importable. When the module can't be imported, what the user sees is the module's own
traceback, without the lines of this program.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import TracebackType

from tiedreq.core.errors import BadOption
from tiedreq.service import Service


class AppError(Exception):
    """The service can't be had. ``story`` is what to show: a traceback, or one line where that says it all."""

    def __init__(self, story: str) -> None:
        super().__init__(story)
        self.story = story


def load_service(spec: str) -> Service:
    """Import the module of ``MODULE:SERVICE`` and return its service.

    Raises ``BadOption`` when ``spec`` has not that form and ``AppError`` when the service can't be had. Call it outside
    Trio, so that a module may do at import whatever it likes.
    """
    module_name, colon, attribute = spec.partition(":")
    if not colon or not all(part.isidentifier() for part in f"{module_name}.{attribute}".split(".")):
        raise BadOption(f"app: {spec[:80]!r} is not MODULE:SERVICE, such as app:service")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit() in a module too
        raise AppError(_story(spec, module_name, error)) from None
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise AppError(f"{spec}: module {module_name!r} has no {attribute!r}{_services(module_name)}")
        found = getattr(found, name)
    if not isinstance(found, Service):
        raise AppError(f"{spec}: is {type(found).__name__!r}, not a tiedreq.Service{_services(module_name)}")
    return found


def _services(module_name: str) -> str:
    names = [name for name, value in vars(sys.modules[module_name]).items() if isinstance(value, Service)]
    return f"; its services: {', '.join(names)}" if names else "; it holds no tiedreq.Service"


def _story(spec: str, module_name: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
        return f"{spec}: ModuleNotFoundError: {error} (looked in {os.getcwd()} and on sys.path)"
    shown = traceback.TracebackException(type(error), error, _own_frames(error.__traceback__), compact=True)
    return f"{spec}: can't be imported\n{''.join(shown.format()).rstrip()}"


def _own_frames(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame on that is neither here nor in the import system."""
    while frames is not None:
        file = frames.tb_frame.f_code.co_filename
        if file not in (__file__, importlib.__file__) and not file.startswith("<frozen importlib"):
            break
        frames = frames.tb_next
    return frames
