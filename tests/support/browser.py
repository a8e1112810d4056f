"""Pages in a real browser: Debian's Chromium, without a window.

DYNADP_PICTURES=FOLDER keeps the pictures that are taken; docs/pictures has them.
"""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

DYNADP = Path(sys.executable).with_name("dynadp")
CHROMIUM = os.environ.get("DYNADP_CHROMIUM") or shutil.which("chromium")
WAIT = 120_000  # milliseconds, at most: other tests may need the machine too
VIEWS = {
    "desktop": (1440, 900, "light"),
    "dark": (1440, 900, "dark"),
    "narrow": (390, 844, "light"),
    "wide": (1440, 900, "light"),
    "wide-dark": (1440, 900, "dark"),
    "narrow-dark": (390, 844, "dark"),
}
WATCHED = """
window.broken = [];
document.addEventListener(
  "securitypolicyviolation", (event) => window.broken.push(event.violatedDirective));
"""


class Opened:
    """A page, what it asked for and what went wrong on it."""

    def __init__(self, browser, view="desktop", **given):
        width, height, scheme = VIEWS[view]
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, **given
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT)
        self.asked, self.errors = [], []
        self.page.add_init_script(WATCHED)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda said: said.type == "error" and self.errors.append(said.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def text(self, selector):
        return self.page.locator(selector).inner_text()

    def until(self, expression, argument=None):
        """Wait until a JavaScript expression holds; the page's policy forbids to do that on the
        page itself.
        """
        for _ in range(WAIT // 50):
            if self.page.evaluate(expression, argument):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(
            f"never came: {expression}; {self.errors}; "
            f"{self.page.evaluate('document.body.innerText')}"
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


@contextmanager
def chromium():
    """A browser; its absence skips the test."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: make browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def served(*arguments, token, command="explore", port=0, folder=None, before=()):
    """A command that serves a page as a process, and the address that it printed."""
    line = [
        *before,
        DYNADP,
        command,
        *arguments,
        "--port",
        str(port),
        "--token-file",
        str(token),
        "--no-browser",
    ]
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [str(part) for part in line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **one_thread},
    )
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), process.communicate()
        yield address, process
    finally:
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "")
        assert said == "Ctrl-C ends it.\nStopped.\n"


def keep(page, name, of=None, **given):
    """Keep a picture of the page, or of an element of it, where pictures are wanted."""
    if folder := os.environ.get("DYNADP_PICTURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        path = Path(folder) / f"{name}.png"
        if of is None:
            page.screenshot(path=path, full_page=True, **given)
        else:
            page.locator(of).screenshot(path=path, **given)


def faults(page):
    """What axe-core finds wrong."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [(fault["id"], [node["html"][:120] for node in fault["nodes"]][:3]) for fault in found]
