"""Opens a page in headless Chromium over a pipe (DevTools protocol): what it says, asks for, and how wide it is.

Needs nothing but Python and the browser. The browser and its children are one process group with an id of their own,
which is ended by that id in every case.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-breakpad",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)
"""The resolver rule keeps also a page that does ask for something from reaching it."""

WIDEST = r"""(() => {
  const width = document.documentElement.clientWidth;
  const scrolls = (e) => {
    for (let p = e.parentElement; p && p !== document.body; p = p.parentElement)
      if (["auto", "scroll", "hidden"].includes(getComputedStyle(p).overflowX)) return true;
    return false;
  };
  const wide = [...document.body.querySelectorAll("*")].filter((e) => {
    const box = e.getBoundingClientRect();
    return box.width > 0 && box.right > width + 0.5 && !scrolls(e) && !e.closest("svg svg, svg *");
  });
  const scale = (e) => e.ownerSVGElement ? Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b) : 1;
  const texts = [...document.querySelectorAll("p, li, td, th, figcaption, svg text")]
    .map((e) => [e.getBoundingClientRect(), e]).filter(([box]) => box.width > 0 && box.height > 0)
    .map(([, e]) => parseFloat(getComputedStyle(e).fontSize) * scale(e));
  const rgba = (c) => c.match(/[\d.]+/g).map(Number);
  const light = (c) => rgba(c).slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if ((rgba(color)[3] ?? 1) > 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const contrast = (e) => {
    const style = getComputedStyle(e);
    const pair = [light(e.ownerSVGElement ? style.fill : style.color), light(behind(e))].sort((a, b) => b - a);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
  };
  const seen = [...document.querySelectorAll("p, li, a, td, th, figcaption, svg text")]
    .filter((e) => e.getBoundingClientRect().width > 0);
  return {width, background: behind(document.body),
          least_contrast: Math.min(...seen.map(contrast)),
          scroll: document.documentElement.scrollWidth,
          smallest_text: Math.min(...texts),
          clipped: [...document.querySelectorAll("svg text")].filter((e) => {
            const text = e.getBoundingClientRect(), box = e.ownerSVGElement.getBoundingClientRect();
            return text.width > 0 && (text.left < box.left - 1 || text.right > box.right + 1
              || text.top < box.top - 1 || text.bottom > box.bottom + 1);
          }).map((e) => e.textContent),
          overflowing: wide.slice(0, 5).map((e) => e.outerHTML.slice(0, 120))};
})()"""


LATER = "new Promise((done) => setTimeout(() => requestIdleCallback(done), 300))"
"""Kept when the page has done what it meant to do within .3 s, on its own clock, and rests: late errors count too."""


def find() -> str | None:
    """The browser's path, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Visit:
    """What happened when a page was opened."""

    console: list[str] = field(default_factory=list)
    """Errors and warnings of the console, exceptions, refused and failed requests."""
    requests: list[str] = field(default_factory=list)
    """Addresses the page asked for, other than itself and data: URIs."""
    layout: dict[str, Any] = field(default_factory=dict)
    """In pixels: width of the window, scroll (width of the document), smallest_text. background, least_contrast of
    texts, clipped texts of pictures, overflowing elements."""
    screenshot: bytes = b""


def living(group: int) -> list[str]:
    """The processes of a group that live: their lines of ``ps``."""
    command = ["ps", "-eo", "pgid=,stat=,pid="]
    listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    fields = (line.split() for line in listing.splitlines())
    return [" ".join(f) for f in fields if f[0] == str(group) and "Z" not in f[1]]


class Chromium:
    """A browser; ``with Chromium(path) as browser: browser.visit(page, 360)``."""

    def __init__(self, path: str, deadline: float = 600) -> None:
        self.deadline = deadline
        self.profile = tempfile.mkdtemp(prefix="fedpbc-chromium-")
        down, self._write = os.pipe()
        self._read, up = os.pipe()
        # The browser reads commands from its descriptor 3 and writes to 4; the shell puts ours there.
        high = [os.dup2(fd, 50 + i) for i, fd in enumerate((down, up))] if {down, up} & {3, 4} else [down, up]
        try:
            self.process = subprocess.Popen(
                [
                    "bash",
                    "-c",
                    f'exec "$@" 3<&{high[0]} 4>&{high[1]}',
                    "bash",
                    path,
                    *FLAGS,
                    f"--user-data-dir={self.profile}",
                    "about:blank",
                ],
                pass_fds=high,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except BaseException:
            shutil.rmtree(self.profile, ignore_errors=True)
            os.close(self._read)
            os.close(self._write)
            raise
        finally:
            for fd in {down, up, *high}:
                os.close(fd)
        self._buffer = b""
        self._next = 0
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and all its children, whatever state it is in."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        while True:  # until the children are gone, too: what they still write would outlive us
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.poll()
            if not living(self.process.pid):
                break
            time.sleep(0.02)
        self.process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self.profile, ignore_errors=True)

    def visit(self, page: Path, width: int, dark: bool = False, screenshot: bool = False, height: int = 800) -> Visit:
        """Open a file in a fresh tab of this width in CSS pixels, as a phone does below 600."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable", session)
        phone = {"width": width, "height": height, "mobile": width < 600, "deviceScaleFactor": 2 if width < 600 else 1}
        self._call("Emulation.setDeviceMetricsOverride", session, **phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", session, features=[scheme])
        self._call("Page.setLifecycleEventsEnabled", session, enabled=True)
        self._events.clear()
        address = page.resolve().as_uri()
        navigated = self._call("Page.navigate", session, url=address)
        if navigated.get("errorText"):
            raise RuntimeError(f"{address}: {navigated['errorText']}")
        self._until("Page.lifecycleEvent", session, loaderId=navigated["loaderId"], name="load")
        self._call("Runtime.evaluate", session, expression=LATER, awaitPromise=True)
        self._until("Page.lifecycleEvent", session, loaderId=navigated["loaderId"], name="networkIdle")
        visit = Visit(
            layout=self._call("Runtime.evaluate", session, expression=WIDEST, returnByValue=True)["result"]["value"]
        )
        if screenshot:
            shot = self._call("Page.captureScreenshot", session, captureBeyondViewport=True, format="png")
            visit.screenshot = base64.b64decode(shot["data"])
        for event in self._events:
            if event.get("sessionId") == session:
                _note(visit, event["method"], event["params"], address)
        self._call("Target.closeTarget", targetId=target)
        return visit

    def _call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + self.deadline
        while True:
            answer = self._receive(end)
            if answer.get("id") == self._next:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _until(self, method: str, session: str, **params: Any) -> None:
        """Wait for an event with these parameters."""
        end = time.monotonic() + self.deadline
        while not any(
            event["method"] == method
            and event.get("sessionId") == session
            and params.items() <= event["params"].items()
            for event in self._events
        ):
            self._receive(end)

    def _receive(self, end: float) -> dict[str, Any]:
        """The next message; events are kept. Raises TimeoutError."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self._read, 1 << 20)
            if not piece:
                raise RuntimeError(f"the browser ended, exit status {self.process.poll()}")
            self._buffer += piece
        message, self._buffer = self._buffer.split(b"\0", 1)
        answer = json.loads(message)
        if "method" in answer:
            self._events.append(answer)
        return answer


def _note(visit: Visit, method: str, params: dict[str, Any], page: str) -> None:
    if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
        visit.console.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
    elif method == "Runtime.exceptionThrown":
        details = params["exceptionDetails"]
        visit.console.append(details.get("exception", {}).get("description", details["text"]))
    elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
        visit.console.append(params["entry"]["text"])
    elif method == "Network.requestWillBeSent":
        address = params["request"]["url"]
        if address != page and not address.startswith("data:"):
            visit.requests.append(address)
