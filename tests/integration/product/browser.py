"""A headless Chromium driven over its DevTools pipe: no packages beside Debian's chromium."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading

TIMEOUT_S = 120


def find():
    """Path of the browser, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One page. A context manager; the process ends with it."""

    def __init__(self, width=1280, height=860):
        self.profile = tempfile.TemporaryDirectory(prefix="deepinfer-browser-")
        to_browser, self.out = os.pipe()
        self.inp, from_browser = os.pipe()

        def take_pipes():
            # The browser reads descriptor 3 and writes 4; what is duplicated first must not be one.
            read, write = os.dup(to_browser), os.dup(from_browser)
            high_read, high_write = os.dup2(read, 60), os.dup2(write, 61)
            os.dup2(high_read, 3)
            os.dup2(high_write, 4)

        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--user-data-dir=" + self.profile.name, "--window-size=%d,%d" % (width, height),
             "about:blank"],
            preexec_fn=take_pipes, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.changed = threading.Condition()
        self.answers, self.events, self.next_id, self.closed = {}, [], 0, False
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        targets = self._send("Target.getTargets")["targetInfos"]
        page = next(t for t in targets if t["type"] == "page")
        self.session = self._send("Target.attachToTarget", targetId=page["targetId"],
                                  flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)

    def _read(self):
        pending = b""
        while True:
            data = os.read(self.inp, 1 << 16)
            if not data:
                break
            *messages, pending = (pending + data).split(b"\0")
            with self.changed:
                for message in map(json.loads, messages):
                    if "id" in message:
                        self.answers[message["id"]] = message
                    else:
                        self.events.append(message)
                self.changed.notify_all()
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _send(self, method, session=None, **params):
        self.next_id += 1
        number = self.next_id
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        with self.changed:
            done = self.changed.wait_for(lambda: number in self.answers or self.closed, TIMEOUT_S)
            if not done or number not in self.answers:
                raise AssertionError("the browser did not answer " + method)
            answer = self.answers.pop(number)
        if "error" in answer:
            raise AssertionError("%s: %s" % (method, answer["error"]))
        return answer["result"]

    def call(self, method, **params):
        return self._send(method, session=self.session, **params)

    def evaluate(self, expression):
        """Value of a JavaScript expression; promises are awaited."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True,
                           returnByValue=True)
        if "exceptionDetails" in result:
            raise AssertionError(result["exceptionDetails"])
        return result["result"].get("value")

    def wait_for(self, expression):
        """Until the expression is true in the page."""
        self.evaluate("""new Promise((resolve, reject) => {
            const end = performance.now() + %d;
            const look = () => {
              if (%s) resolve(true);
              else if (performance.now() > end) reject(new Error("waited in vain"));
              else setTimeout(look, 20);
            };
            look(); })""" % ((TIMEOUT_S - 10) * 1000, expression))

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href === %s" %
                      json.dumps(url))

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, code=0, **more):
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode=code, **(text if kind == "keyDown" else {}), **more)

    def colours(self, scheme):
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def requested_urls(self):
        with self.changed:
            return [e["params"]["request"]["url"] for e in self.events
                    if e["method"] == "Network.requestWillBeSent"]

    def complaints(self):
        """Texts of exceptions, of errors in the log, and of breaches of the security policy."""
        with self.changed:
            return [json.dumps(e["params"]) for e in self.events
                    if e["method"] == "Runtime.exceptionThrown" or
                    (e["method"] == "Log.entryAdded" and
                     e["params"]["entry"]["level"] == "error")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Asked to close, the browser ends its helper processes first; killed, it would leave them
        # writing into the profile.
        try:
            self._send("Browser.close")
            self.process.wait(TIMEOUT_S)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        self.reader.join()
        os.close(self.inp)
        self.profile.cleanup()
