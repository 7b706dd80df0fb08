"""A real browser without a screen: Debian's chromium, driven through its debugging pipe."""
import base64
import itertools
import json
import os
import select
import subprocess
import time

from lib import Scratch, die_with_parent


class Browser:
    """One page. `evaluate()` asks it, `shoot()` takes its picture."""

    def __init__(self, width, height, mobile=False):
        self.scratch = Scratch()
        self.numbers = itertools.count(1)
        self.read = b""
        to_browser, self.out = os.pipe()
        self.inp, from_browser = os.pipe()

        def prepare():
            die_with_parent()
            # The browser reads its descriptor 3 and writes to 4.
            high = os.dup(to_browser), os.dup(from_browser)
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.log = open(os.path.join(self.scratch.path, "log"), "wb")
        self.process = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync",
             "--remote-debugging-pipe", "--user-data-dir=" + self.scratch.path, "about:blank"],
            pass_fds=(3, 4), preexec_fn=prepare, stdout=self.log, stderr=self.log,
            env=dict(os.environ, HOME=self.scratch.path))
        os.close(to_browser)
        os.close(from_browser)
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t for t in targets if t["type"] == "page")
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"],
                                 flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=mobile)

    def call(self, method, **params):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            while b"\0" in self.read:
                text, self.read = self.read.split(b"\0", 1)
                answer = json.loads(text)
                if answer.get("id") == number:
                    if "error" in answer:
                        raise AssertionError("%s: %s" % (method, answer["error"]))
                    return answer["result"]
            ready, _, _ = select.select([self.inp], [], [], max(0, deadline - time.monotonic()))
            piece = os.read(self.inp, 1 << 20) if ready else b""
            if not piece:
                raise AssertionError("the browser does not answer " + method)
            self.read += piece

    def open(self, url):
        self.call("Page.navigate", url=url)

    def evaluate(self, expression):
        return self.call("Runtime.evaluate", expression=expression,
                         returnByValue=True)["result"].get("value")

    def shoot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.out)
        os.close(self.inp)
        self.process.kill()
        self.process.wait()
        self.log.close()
        self.scratch.__exit__()
