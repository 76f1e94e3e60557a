"""A headless Chromium, driven over its debugging pipe: no library, no port, and the browser that the system has."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

TIMEOUT: Final = 60.0  # seconds
_POLL: Final = 0.1
_FOCUSED: Final = """(one => one.matches("textarea, input") ? one.id : one.innerText.trim())(document.activeElement)"""


class Browser:
    """One page of a browser."""

    def __init__(self, to: IO[bytes], back: IO[bytes]) -> None:
        self._to = to
        self._back = back
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        """What the page's console and its policy had to say: errors, refused scripts and styles."""

    def attach(self) -> None:
        """Open a page."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self._call(f"{domain}.enable")

    def resize(self, width: int, height: int = 900) -> None:
        """Look through a window of another size."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def theme(self, name: str) -> None:
        """Prefer light or dark."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def allow_copying(self, origin: str) -> None:
        """Let pages write to the clipboard and let a test read it."""
        self._call(
            "Browser.grantPermissions",
            origin=origin,
            permissions=["clipboardReadWrite", "clipboardSanitizedWrite"],
        )
        self._call("Emulation.setFocusEmulationEnabled", enabled=True)

    def open(self, url: str) -> None:
        """Go to a page and wait until it is there."""
        self._call("Page.navigate", url=url)
        self.wait(f"location.href.startsWith({json.dumps(url.partition('?')[0])}) && document.readyState == 'complete'")

    def before_scripts(self, script: str) -> None:
        """Run a script on each page that is opened from now on, before any script of the page."""
        self._call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def run(self, script: str) -> Any:
        """Return the value of an expression of the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression of the page is true; AssertionError with what the page shows."""
        until = time.monotonic() + TIMEOUT
        while True:
            try:
                if self.run(f"Boolean({condition})"):
                    return
            except AssertionError:
                if time.monotonic() > until:
                    raise
            if time.monotonic() > until:
                raise AssertionError(f"never: {condition}\n{self.text()}")
            time.sleep(_POLL)  # between two questions, to a browser that cannot be waited on

    def text(self) -> str:
        """Return what is read on the page."""
        return str(self.run("document.body.innerText"))

    def wait_for(self, text: str) -> None:
        """Wait until a text is on the page."""
        self.wait(f"document.body.innerText.includes({json.dumps(text)})")

    def key(self, name: str) -> None:
        """Press a key: Tab, Enter or Space."""
        codes = {"Tab": (9, ""), "Enter": (13, "\r"), "Space": (32, " ")}
        code, text = codes[name]
        common = {
            "key": " " if name == "Space" else name,
            "code": name,
            "windowsVirtualKeyCode": code,
        }
        self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self._call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self._call("Input.insertText", text=text)

    def tab_to(self, name: str) -> None:
        """Go on with Tab until what is so called has the focus, as someone without a mouse does."""
        for _step in range(100):
            self.key("Tab")
            if self.run(_FOCUSED) == name:
                return
        raise AssertionError(f"Tab never comes to {name}:\n{self.text()}")

    def press(self, name: str) -> None:
        """Click the link or button of this name."""
        found = self.run(
            "(() => { const all = [...document.querySelectorAll('a, button')];"
            f"const it = all.find(one => one.innerText.trim() == {json.dumps(name)});"
            "if (it) it.click(); return Boolean(it); })()"
        )
        assert found, f"no link or button is called {name}:\n{self.text()}"

    def fill(self, label: str, text: str) -> None:
        """Write into the field that a label names."""
        found = self.run(
            "(() => { const label = [...document.querySelectorAll('label')]"
            f".find(one => one.innerText.trim().startsWith({json.dumps(label)}));"
            "const field = label && (label.control);"
            f"if (field) {{ field.focus(); field.value = {json.dumps(text)}; }} return Boolean(field); }})()"
        )
        assert found, f"no field is labelled {label}:\n{self.text()}"

    def accessible(self) -> Sequence[tuple[str, str]]:
        """Return role and name of each thing that a screen reader is told of."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [
            (str(node.get("role", {}).get("value", "")), str(node.get("name", {}).get("value", "")).strip())
            for node in nodes
            if not node.get("ignored")
        ]

    def screenshot(self, *, height: int | None = None) -> bytes:
        """Return a PNG of the page down to a height, or of the whole page."""
        width = self.run("innerWidth")
        height = height or self.run("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(shot["data"])

    def close(self) -> None:
        """End the browser."""
        self._session = None
        self._call("Browser.close")

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        number, session = self._number, {} if self._session is None else {"sessionId": self._session}
        message = {"id": number, "method": method, "params": parameters, **session}
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while True:
            answer = self._read()
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self._listen(answer)

    def _listen(self, event: Any) -> None:
        match event.get("method"):
            case "Log.entryAdded":
                entry = event["params"]["entry"]
                if entry["level"] == "error":
                    self.complaints.append(entry["text"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(event["params"]["exceptionDetails"].get("text")))
            case "Page.javascriptDialogOpening":
                self.complaints.append(f"dialog: {event['params']['message']}")
            case _:
                pass

    def _read(self) -> Any:
        data = bytearray()
        while (byte := self._back.read(1)) != b"\0":
            if not byte:
                raise AssertionError("the browser has ended")
            data += byte
        return json.loads(data)


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """Start a browser for the block."""
    program = shutil.which("chromium")
    assert program is not None, "no chromium is on PATH: apt-get install chromium"
    (ours_in, to), (back, ours_out) = os.pipe(), os.pipe()
    # It reads from 3 and writes to 4. A shell puts the pipes there, whatever numbers they have here.
    command = [
        *("bash", "-c", f'exec "$@" 3<&{ours_in} 4>&{ours_out}', "bash", program),
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *("--disable-background-networking", "--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe"),
        f"--user-data-dir={profile}",
    ]
    with (profile.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            command, pass_fds=(ours_in, ours_out), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    os.close(ours_in)
    os.close(ours_out)
    with os.fdopen(to, "wb") as writing, os.fdopen(back, "rb") as reading:
        browser = Browser(writing, reading)
        try:
            browser.attach()
            yield browser
            browser.close()
        finally:
            process.terminate()
            process.wait()
