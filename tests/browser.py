"""Headless Chromium for tests, over the debugging pipe: opens pages, collects what goes wrong, looks and prints.

In: an HTML file, a size, light or dark. Out: a `Page` that can be asked. Needs a Chromium or Chrome on this machine and
nothing from a package index; `find_browser` gives None where there is none. Nothing is downloaded: pages are opened
from files, and the browser has no network (a proxy that does not exist).
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DEADLINE_SECONDS = 60.0
FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
    "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-background-networking",
    "--proxy-server=127.0.0.1:9", "--force-color-profile=srgb",
)  # fmt: skip
QUIET = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 300))))"
"""Two frames and a moment: responsive charts redraw after a change of size."""


# Chromium reads descriptor 3 and writes descriptor 4. Not by a shell: some know no descriptors of two digits.
WITH_PIPES = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(pipe), fcntl.F_DUPFD, 10) for pipe in sys.argv[1:3]]
for place, pipe in enumerate(pipes, start=3):
    os.dup2(pipe, place)
    os.close(pipe)
os.execv(sys.argv[3], sys.argv[3:])
"""


class BrowserError(Exception):
    """The browser did not do what was asked."""


def find_browser() -> str | None:
    """Its path; FORESEE_BROWSER names one that is elsewhere."""
    named = os.environ.get("FORESEE_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


class Browser:
    """One process, ended when the context is left."""

    def __init__(self, executable: str) -> None:
        self._executable = executable
        self._buffer = b""
        self._number = 0
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        self._profile = tempfile.TemporaryDirectory(prefix="foresee-browser-", ignore_cleanup_errors=True)
        to_browser, self._to = os.pipe()
        self._from, from_browser = os.pipe()
        pipes = str(to_browser), str(from_browser)
        profile = f"--user-data-dir={self._profile.name}"
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", WITH_PIPES, *pipes, self._executable, *FLAGS, profile, "about:blank"],
            pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.send("Browser.close")
        except (BrowserError, OSError):
            pass
        os.close(self._to)
        os.close(self._from)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()

    def open(
        self, file: Path, *, width: int = 1280, height: int = 900, dark: bool = False, phone: bool = False
    ) -> Page:
        """A page in a tab of its own, loaded and drawn."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            page.send(f"{domain}.enable")
        page.resize(width, height, phone=phone)
        page.set_dark(dark)
        page.send("Page.navigate", url=file.resolve().as_uri())
        self._until(lambda: any(event["method"] == "Page.loadEventFired" for event in page.events))
        page.evaluate(QUIET)
        return page

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """A command and its answer; what the browser says in between is kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data, number = json.dumps(message).encode() + b"\0", self._number
        while data:
            data = data[os.write(self._to, data) :]
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            answer = self._receive(deadline, method)
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            self._events.append(answer)

    def events_of(self, session: str) -> list[dict[str, Any]]:
        return [event for event in self._events if event.get("sessionId") == session]

    def _until(self, done: Any) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not done():
            self._events.append(self._receive(deadline, "a page to load"))

    def _receive(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise BrowserError(f"waited {DEADLINE_SECONDS:.0f} s for {what}")
            if not (data := os.read(self._from, 1 << 20)):
                raise BrowserError(f"the browser has ended during {what}")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    @property
    def events(self) -> list[dict[str, Any]]:
        return self._browser.events_of(self._session)

    @property
    def errors(self) -> list[str]:
        """Uncaught exceptions, console errors and warnings, and what the browser itself logged as an error."""
        self.evaluate("1")  # what was said before is received with the answer
        found = []
        for event in self.events:
            content = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                details = content["exceptionDetails"]
                found.append(details.get("exception", {}).get("description") or details["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and content["type"] in ("error", "warning", "assert"):
                found.append(" ".join(str(part.get("value", part.get("description"))) for part in content["args"]))
            elif event["method"] == "Log.entryAdded" and content["entry"]["level"] == "error":
                found.append(content["entry"]["text"])
        return found

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.send(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are waited for."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression[:80]}: {answer['exceptionDetails']['text']}")
        return answer["result"].get("value")

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def set_dark(self, dark: bool) -> None:
        """What the reader's system prefers."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def settle(self) -> None:
        """Until a change of size or colour is drawn."""
        self.evaluate(QUIET)

    def screenshot(self, file: Path, *, top: int = 0, height: int | None = None) -> None:
        """Of the whole page, or of a strip of it."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": top, "width": size["width"], "height": height or size["height"] - top, "scale": 1}
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=True, format="png", clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        """As it would be printed."""
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])
