"""Pages in headless Chromium: the text of a page's parts after its scripts ran, and a picture."""
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed: scripts/setup")


def _run(page, profile, argument, hash=""):
    """What Chromium prints. A script that fails, or asks the network for something, says so."""
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--hide-scrollbars", "--virtual-time-budget=5000", "--enable-logging=stderr",
         f"--user-data-dir={profile}",
         *argument, Path(page).resolve().as_uri() + hash],
        capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
    return done.stdout


class _Parts(HTMLParser):
    """{id: text} of all elements with an id, but for scripts; how often each tag stands."""

    VOID = {"meta", "link", "br", "img", "input", "hr"}

    def __init__(self):
        super().__init__()
        self.text, self.tags, self.open = {}, {}, []

    def handle_starttag(self, tag, attributes):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        if tag not in self.VOID:
            name = dict(attributes).get("id")
            self.open.append((tag, name))
            if name:
                self.text[name] = ""

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if any(tag in ("script", "style") for tag, _ in self.open):
            return
        for _, name in self.open:
            if name:
                self.text[name] += data


def parts(page, profile, hash=""):
    """({id: text}, {tag: how many}) of the page as it is when its scripts are done."""
    parser = _Parts()
    parser.feed(_run(page, profile, ["--dump-dom"], hash))
    return parser.text, parser.tags


def screenshot(page, profile, path, size=(1200, 900), hash=""):
    """Writes a PNG of the page's top; gives the number of different colours in it."""
    _run(page, profile, [f"--window-size={size[0]},{size[1]}", f"--screenshot={path}"], hash)
    with Image.open(path) as image:
        assert image.size == size
        return len(image.convert("RGB").getcolors(size[0] * size[1]))
