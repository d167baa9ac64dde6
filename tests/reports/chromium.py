"""A headless Chromium for tests, spoken to through chromedriver (W3C WebDriver) with the standard library alone."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
KEYS = {"ArrowRight": "\ue014", "ArrowLeft": "\ue012", "ArrowUp": "\ue013", "ArrowDown": "\ue015", "Tab": "\ue004"}
KEYS |= {"Enter": "\ue007", "Escape": "\ue00c", "PageDown": "\ue00f", "End": "\ue010"}
_OPTIONS = ["headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking", "disable-sync"]
_OPTIONS += ["disable-component-update", "disable-dev-shm-usage", "window-size=1280,1000"]
_OPTIONS += ["proxy-server=127.0.0.1:9"]  # nothing listens there: a network that is not there


def missing() -> str:
    """What is not installed here; empty where tests can run."""
    if not any(map(shutil.which, BROWSERS)):
        return "no Chromium here"
    return "" if shutil.which("chromedriver") else "no chromedriver here"


class Chromium:
    """One browser with an empty profile in ``folder``; a context manager, so that it ends with its test."""

    def __init__(self, folder: Path):
        binary = next(path for path in map(shutil.which, BROWSERS) if path)
        driver = ["chromedriver", "--port=0"]
        self._driver = subprocess.Popen(driver, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._driver.stdout is not None
        ready = re.compile(r"successfully on port (\d+)")
        port = next(found[1] for line in self._driver.stdout if (found := ready.search(line)))
        self._address = f"http://127.0.0.1:{port}/session"
        options: dict[str, Any] = {"binary": binary, "args": [*_OPTIONS, f"--user-data-dir={folder / 'profile'}"]}
        several = "profile.default_content_setting_values.automatic_downloads"
        options["prefs"] = {"download.default_directory": str(folder / "downloads"), several: 1}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"}}
        session = self._ask("POST", "", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        self._address += f"/{session}"
        self.downloads = folder / "downloads"

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._ask("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(10)

    def open(self, path: Path, fragment: str = "") -> None:
        self._ask("POST", "/url", {"url": "about:blank"})  # or another fragment would be the same page still
        self.requests()
        self._ask("POST", "/url", {"url": path.as_uri() + fragment})

    def run(self, script: str, *arguments: object) -> Any:
        """The value of a JavaScript function body, awaited where it is a promise."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def press(self, *keys: str) -> None:
        """Key strokes for whatever has the focus."""
        strokes = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    def point(self, x: int, y: int) -> None:
        """Moves the mouse to a place in the window, in pixels."""
        moves = [{"type": "pointerMove", "duration": 0, "x": x + step, "y": y} for step in (-1, 0)]
        self._ask("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": moves}]})

    def picture(self, target: Path) -> None:
        target.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def printed(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(self._ask("POST", "/print", {"background": False}))

    def size(self, width: int, height: int) -> None:
        self._ask("POST", "/window/rect", {"width": width, "height": height})

    def requests(self) -> list[str]:
        """Addresses that pages from disk asked for since the last call, whether they came or not."""
        log = self._ask("POST", "/se/log", {"type": "performance"})
        events = [json.loads(entry["message"])["message"] for entry in log]
        asked = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in asked if each["documentURL"].startswith("file:")]

    def complaints(self) -> list[str]:
        """What pages wrote to the console as warnings or errors since the last call."""
        return [one["message"] for one in self._ask("POST", "/se/log", {"type": "browser"})]

    def _ask(self, method: str, path: str, body: dict | None = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._address + path, data, kind, method=method)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None
