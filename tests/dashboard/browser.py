"""A headless Chromium, driven by its DevTools protocol over a pair of pipes; no other package is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 40.0


def browser_path() -> str | None:
    """Where a browser is, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class BrowserError(AssertionError):
    """The browser refused, or ended."""


class Page:
    """One page of a browser."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []

    def attach(self) -> None:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, /, **params: Any) -> dict[str, Any]:
        """One command, and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            found = self._read(until)
            if found.get("id") == self._number:
                if "error" in found:
                    raise BrowserError(f"{method}: {found['error']}")
                result: dict[str, Any] = found["result"]
                return result

    def _read(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(self._answers, 1 << 20) if ready else b""
            if not chunk:
                raise BrowserError("the browser does not answer" if not ready else "the browser has ended")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        self._note(found)
        return found

    def _note(self, message: dict[str, Any]) -> None:
        match message:
            case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": details}}:
                self.errors.append(details.get("exception", {}).get("description") or details["text"])
            case {"method": "Log.entryAdded", "params": {"entry": {"level": "error", "text": text}}}:
                self.errors.append(text)
            case {"method": "Network.requestWillBeSent", "params": {"request": {"url": url}}}:
                self.requests.append(url)

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.wait("location.protocol === 'http:' && document.readyState === 'complete'")

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """The size of the window, and the color scheme that its user wants."""
        mobile = width < 600
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str) -> Any:
        """The value of an expression."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise BrowserError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = PATIENCE) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + seconds
        while not self.run(f"!!({script})"):
            if time.monotonic() > until:
                raise BrowserError(f"not within {seconds:g} s: {script}")
            time.sleep(0.1)

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        common = {"key": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A picture of the page as it is now, all of it or what fits the window."""
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def open_page(folder: Path) -> Iterator[Page]:
    """A browser with one page; its profile is in ``folder``."""
    path = browser_path()
    assert path is not None
    command_read, command_write = os.pipe()
    answer_read, answer_write = os.pipe()
    options = "--headless=new --remote-debugging-pipe --disable-gpu --no-first-run --hide-scrollbars --mute-audio "
    options += "--disable-dev-shm-usage --disable-background-networking --disable-sync --no-default-browser-check "
    options += "--disable-component-update --disable-extensions"
    arguments = [*options.split(), f"--user-data-dir={folder / 'profile'}"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")

    def descriptors() -> None:
        first, second = os.dup(command_read), os.dup(answer_write)
        os.dup2(first, 3)
        os.dup2(second, 4)

    with open(folder / "browser.log", "wb") as log:
        process = subprocess.Popen(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(3, 4),
            preexec_fn=descriptors,
            start_new_session=True,
        )
    os.close(command_read)
    os.close(answer_write)
    page = Page(command_write, answer_read)
    try:
        page.attach()
        yield page
    finally:
        os.close(command_write)
        os.close(answer_read)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
