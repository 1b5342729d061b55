"""A browser, driven by the standard library alone: WebDriver is JSON over HTTP, and chromedriver speaks it."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--force-color-profile=srgb",
)  # fmt: skip
KEYS = {"Escape": "\ue00c", "ArrowRight": "\ue014", "ArrowLeft": "\ue012", "ArrowDown": "\ue015", "Enter": "\ue007"}
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def missing() -> str:
    """What is not installed; empty if all is."""
    if not any(map(shutil.which, BROWSERS)):
        return "no browser: chromium is not installed (apt-get install chromium chromium-driver)"
    if not shutil.which("chromedriver"):
        return "no chromedriver (apt-get install chromium-driver)"
    return ""


class BrowserError(RuntimeError):
    """What the driver answered instead of a result."""


class Browser:
    """One window of a headless Chromium with a profile of its own."""

    def __init__(self, width: int = 1440, height: int = 900) -> None:
        self.profile = tempfile.mkdtemp(prefix="weft-browser-")
        self.process = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            self.base = f"http://127.0.0.1:{self._port()}"
            binary = next(path for path in map(shutil.which, BROWSERS) if path)
            flags = [*FLAGS, f"--user-data-dir={self.profile}", f"--window-size={width},{height}"]
            options = {"binary": binary, "args": flags}
            always = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
            made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": always}})
            self.session = f"/session/{made['sessionId']}"
        except BaseException:
            self.close()
            raise

    def _port(self) -> int:
        """The port that chromedriver chose, from what it prints."""
        assert self.process.stdout is not None
        end = time.monotonic() + 30
        while time.monotonic() < end:
            line = self.process.stdout.readline()
            if "started successfully on port" in line:
                return int(line.rstrip(".\n").rpartition(" ")[2])
            if not line:
                break
        raise BrowserError("chromedriver did not start")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps(body if body is not None else {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        # No proxy that the environment may name: the driver is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise BrowserError(json.loads(error.read())["value"]["message"]) from None

    def close(self) -> None:
        """End the browser and its driver, and remove the profile."""
        if hasattr(self, "session"):
            with suppress(BrowserError, OSError):
                self._call("DELETE", self.session)
        self.process.terminate()
        self.process.wait(20)
        if self.process.stdout is not None:
            self.process.stdout.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    # ---- what a user does ----

    def open(self, page: Path) -> None:
        self._call("POST", f"{self.session}/url", {"url": page.resolve().as_uri()})

    def run(self, script: str, *args: Any) -> Any:
        """The value that a script returns."""
        return self._call("POST", f"{self.session}/execute/sync", {"script": script, "args": list(args)})

    def find(self, selector: str) -> str:
        found = self._call("POST", f"{self.session}/element", {"using": "css selector", "value": selector})
        return str(found[ELEMENT])

    def click(self, selector: str) -> None:
        """A real click in the middle of the element, which fails if something else lies on top of it."""
        self._call("POST", f"{self.session}/element/{self.find(selector)}/click")

    def press(self, keys: str | Sequence[str], selector: str = "body") -> None:
        """Keys, named as in JavaScript, as if the element had the focus."""
        text = "".join(KEYS.get(key, key) for key in ([keys] if isinstance(keys, str) else keys))
        self._call("POST", f"{self.session}/element/{self.find(selector)}/value", {"text": text})

    def actions(self, *sources: dict[str, Any]) -> None:
        self._call("POST", f"{self.session}/actions", {"actions": list(sources)})

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """With the mouse, from one point of the window to another."""
        x, y = start
        moves = [
            {"type": "pointerMove", "x": x, "y": y, "duration": 0},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerMove", "x": (x + end[0]) // 2, "y": (y + end[1]) // 2, "duration": 30},
            {"type": "pointerMove", "x": end[0], "y": end[1], "duration": 30},
            {"type": "pointerUp", "button": 0},
        ]
        self.actions({"type": "pointer", "id": "mouse", "actions": moves})

    def wheel(self, at: tuple[int, int], amount: int) -> None:
        scroll = {"type": "scroll", "x": at[0], "y": at[1], "deltaX": 0, "deltaY": amount, "duration": 0}
        self.actions({"type": "wheel", "id": "wheel", "actions": [scroll]})

    def messages(self) -> list[dict[str, Any]]:
        """What the console has said since it was asked last, errors of scripts and of loading included."""
        found: list[dict[str, Any]] = self._call("POST", f"{self.session}/se/log", {"type": "browser"})
        return found

    def requests(self) -> list[str]:
        """Addresses that pages asked for since this was called last."""
        entries = self._call("POST", f"{self.session}/se/log", {"type": "performance"})
        sent = [json.loads(entry["message"])["message"] for entry in entries]
        return [m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"]

    def tell(self, command: str, **parameters: Any) -> Any:
        """A command of the protocol that developer tools speak."""
        return self._call("POST", f"{self.session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def screenshot(self, path: Path) -> Path:
        path.write_bytes(base64.b64decode(self._call("GET", f"{self.session}/screenshot")))
        return path
