"""Headless Chromium over its debugging pipe (file descriptors 3 and 4, JSON ended by NUL): no driver, no package."""

import base64
import json
import os
import queue
import shutil
import subprocess
import threading
import time

WAIT_S = 120    # on a machine that builds at the same time
KEYS = {
    "Enter": ("Enter", 13, "\r"), "Escape": ("Escape", 27, ""), "Tab": ("Tab", 9, ""), "ArrowUp": ("ArrowUp", 38, ""),
    "/": ("Slash", 191, "/"), " ": ("Space", 32, " "),
}
ALT, CTRL, META, SHIFT = 1, 2, 4, 8


class Browser:
    """One Chromium with a fresh profile. `page()` opens a tab in an own context (own storage)."""

    def __init__(self, profile):
        binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if binary is None:
            raise RuntimeError("chromium is not installed; `tools/setup.sh test` does it")
        to_browser, self.write_fd = os.pipe()
        self.read_fd, from_browser = os.pipe()
        command = [binary, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run",
                   "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-background-networking",
                   "--disable-component-update", "--disable-background-timer-throttling",
                   "--disable-renderer-backgrounding", "--disable-backgrounding-occluded-windows", "--disable-default-apps", "--disable-sync", "--force-color-profile=srgb",
                   "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")    # its sandbox refuses to run as root
        moved = [os.dup(to_browser), os.dup(from_browser)]

        def place_descriptors():
            os.dup2(moved[0], 3)
            os.dup2(moved[1], 4)

        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        preexec_fn=place_descriptors, close_fds=True, pass_fds=(3, 4))
        for fd in (to_browser, from_browser, *moved):
            os.close(fd)
        self.answers, self.hear, self.last_id = {}, {}, 0
        self.arrived = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        rest = b""
        while piece := os.read(self.read_fd, 1 << 16):
            *messages, rest = (rest + piece).split(b"\0")
            for text in messages:
                message = json.loads(text)
                with self.arrived:
                    if "id" in message:
                        self.answers[message["id"]] = message
                    elif message.get("sessionId") in self.hear:
                        self.hear[message["sessionId"]].put(message)
                    self.arrived.notify_all()

    def call(self, method, session=None, **params):
        with self.arrived:
            self.last_id += 1
            number = self.last_id
            message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
            os.write(self.write_fd, json.dumps(message).encode() + b"\0")
            if not self.arrived.wait_for(lambda: number in self.answers, WAIT_S):
                raise TimeoutError(f"chromium did not answer {method} within {WAIT_S} s")
            answer = self.answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def page(self, url, width=1280, height=860, **emulate):
        context = self.call("Target.createBrowserContext")["browserContextId"]
        return self.tab(url, context, width, height, **emulate)

    def tab(self, url, context, width=1280, height=860, **emulate):
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.hear[session] = queue.Queue()
        return Page(self, session, target, context, url, width, height, **emulate)

    def close(self):
        try:
            self.call("Browser.close")
            self.process.wait(10)
        except (OSError, RuntimeError, TimeoutError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.write_fd)


class Page:
    def __init__(self, browser, session, target, context, url, width, height, dark=False, phone=False):
        self.browser, self.session, self.target, self.context, self.events = browser, session, target, context, []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height, phone)
        self.dark(dark)
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)

    def resize(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def dark(self, dark):
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def js(self, expression):
        """The value of an expression (awaited); raises what it throws."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True)
        if "exceptionDetails" in done:
            details = done["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return done["result"].get("value")

    def wait(self, expression, seconds=WAIT_S):
        """Waits until the expression is true; returns its value."""
        end = time.monotonic() + seconds
        while True:
            try:
                value = self.js(expression)
            except RuntimeError as error:    # the page is being replaced, or what is asked for is not there yet
                value = None
                last = error
            else:
                last = value
            if value or value == {}:    # an element comes as {}
                return value
            if time.monotonic() > end:
                raise AssertionError(f"not true within {seconds} s: {expression}\nlast: {last}\non the page: "
                                     + str(self.js("document.body.innerText"))[:2000])
            time.sleep(0.03)

    def reload(self):
        self.js("window.before_reload = true")
        self.call("Page.reload")
        self.wait("document.readyState === 'complete' && !window.before_reload")

    def key(self, key, modifiers=0):
        """Presses and releases a key as a keyboard does."""
        code, number, text = KEYS.get(key, (f"Key{key.upper()}", ord(key.upper()[0]), key))
        text = "" if modifiers & (CTRL | META | ALT) else text
        event = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **event, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text):
        """Types into what has the focus, as an input method does."""
        self.call("Input.insertText", text=text)

    def click(self, selector):
        """Clicks with the mouse in the middle of the first element that matches and is shown."""
        box = self.wait(f"""(() => {{
            const e = [...document.querySelectorAll({json.dumps(selector)})].find(e => e.getClientRects().length);
            if (!e) return null;
            e.scrollIntoView({{block: 'nearest'}});
            const r = e.getBoundingClientRect();
            return [r.left + r.width / 2, r.top + r.height / 2];
        }})()""")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="none" if kind == "mouseMoved" else "left",
                      clickCount=0 if kind == "mouseMoved" else 1)

    def drain(self):
        """All events of this page so far."""
        inbox = self.browser.hear[self.session]
        while not inbox.empty():
            self.events.append(inbox.get())
        return self.events

    def requests(self):
        """Addresses of everything that the page asked the network for."""
        return [e["params"]["request"]["url"] for e in self.drain() if e["method"] == "Network.requestWillBeSent"]

    def complaints(self):
        """Uncaught exceptions, console errors, violations of the content security policy; failed fetches are not counted."""
        found = []
        for event in self.drain():
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"].get("exception", {}).get("description", params["exceptionDetails"]["text"]))
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                found.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning") and params["entry"]["source"] != "network":
                found.append(params["entry"]["text"])
        return found

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
