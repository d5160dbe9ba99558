"""A real browser for tests: Chromium by chromedriver, in the W3C WebDriver protocol, without a client
library."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")


class Browser:
    """One headless window. `errors` holds what its console complained of."""

    def __init__(self, *, dark: bool = False) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        assert DRIVER
        self.process = subprocess.Popen(
            [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.base = f"http://127.0.0.1:{port}"
        self._wait_until_ready()
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        if dark:
            arguments.append("--blink-settings=preferredColorScheme=0")
        options = {"binary": CHROMIUM, "args": arguments}
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self.base += f"/session/{session['sessionId']}"

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait(timeout=20)

    def _wait_until_ready(self) -> None:
        for _ in range(300):
            try:
                if self._call("GET", "/status")["ready"]:
                    return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError("chromedriver does not answer")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            self.base + path,
            data=json.dumps(body).encode() if body is not None else None,
            method=method,
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def open(self, page: Path, width: int = 1200, height: int = 900) -> None:
        self._call("POST", "/window/rect", {"width": width, "height": height})
        self._call("POST", "/url", {"url": page.resolve().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a script returns, after its promise where it returns one."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, condition: str) -> None:
        """Until an expression is true."""
        for _ in range(300):
            if self.run(f"return Boolean({condition})"):
                return
            time.sleep(0.1)
        raise TimeoutError(condition)

    def hover(self, x: float, y: float) -> None:
        """Move the pointer to a place in the window."""
        move = {"type": "pointerMove", "duration": 50, "x": round(x), "y": round(y)}
        pointer = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}}
        self._call("POST", "/actions", {"actions": [pointer | {"actions": [move]}]})

    def keys(self, text: str) -> None:
        """Press keys; WebDriver's private characters stand for Tab (U+E004) and Enter (U+E007)."""
        presses = [{"type": kind, "value": c} for c in text for kind in ("keyDown", "keyUp")]
        self._call(
            "POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": presses}]}
        )

    @property
    def errors(self) -> list[str]:
        entries = self._call("POST", "/se/log", {"type": "browser"})
        return [e["message"] for e in entries if e["level"] in ("SEVERE", "WARNING")]

    def print_pdf(self) -> bytes:
        return base64.b64decode(self._call("POST", "/print", {}))

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))
