"""The report's page in a real browser: it draws, sorts, hides and turns dark without a complaint."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_report import write_run

from mildly.report.page import make_report, write_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
    pytest.mark.skipif(sys.platform == "win32", reason="speaks to the browser through POSIX pipes"),
]


class Browser:
    """Chromium without a window, spoken to by its DevTools protocol over two pipes."""

    def __init__(self, profile: Path) -> None:
        to_read, self.to_browser = os.pipe()
        self.from_browser, to_write = os.pipe()
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe")
        flags += (f"--user-data-dir={profile}", "about:blank")
        command = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'  # the numbers that the protocol wants
        self.process = subprocess.Popen(
            ["bash", "-c", command, str(CHROMIUM), *flags],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.waiting = b""
        self.number = 0
        self.session: str | None = None
        self.complaints: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer; complaints that come meanwhile are kept."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self.waiting:
            read = os.read(self.from_browser, 1 << 16)
            assert read, "the browser has gone"
            self.waiting += read
        text, self.waiting = self.waiting.split(b"\0", 1)
        message = json.loads(text)
        method, said = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown" or (method == "Log.entryAdded" and said["entry"]["level"] == "error"):
            self.complaints.append(json.dumps(said))
        if method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(said))
        if method == "Network.requestWillBeSent" and not said["request"]["url"].startswith(("file:", "data:", "blob:")):
            self.complaints.append(f"asked the network for {said['request']['url']}")
        return message

    def open(self, path: Path, width: int = 1280, *, height: int = 900, dark: bool = False) -> None:
        self.complaints.clear()
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=path.absolute().as_uri())
        while self.receive().get("method") != "Page.loadEventFired":
            pass

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def draw_all(self) -> None:
        """Scroll through the page, so that every chart is drawn."""
        self.run(
            "(async () => { for (let y = 0; y < document.body.scrollHeight; y += 400) {"
            "scrollTo({top: y, behavior: 'instant'}); await new Promise((go) => setTimeout(go, 30)); }"
            "scrollTo({top: 0, behavior: 'instant'}); await new Promise((go) => setTimeout(go, 50)); })()"
        )

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        picture = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.to_browser)
        os.close(self.from_browser)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        for dataset in ("a-set", "another-set"):
            write_run(folder / f"bc-{dataset}-{seed}", "bc", dataset, seed, level=10.0 + seed)
            write_run(folder / f"mcq-{dataset}-{seed}", "mcq", dataset, seed, level=50.0 + seed)
    write_run(folder / "<script>window.evil = 1<!--", "mcq", "<img src=x onerror='window.evil = 1'>")
    return write_page(make_report([folder]), folder / "page.html")


SIZES = {"desktop": (1280, False), "dark": (1280, True), "phone": (390, False)}


@pytest.mark.parametrize("size", SIZES)
def test_every_chart_is_drawn_without_a_complaint_and_the_page_does_not_scroll_sideways(browser, page, size):
    width, dark = SIZES[size]
    browser.open(page, width, dark=dark)
    browser.draw_all()
    figures, drawn = browser.run(
        "[document.querySelectorAll('figure').length, document.querySelectorAll('.stage > svg').length]"
    )
    assert figures == drawn > 5
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("window.evil") is None
    assert browser.complaints == []


def test_charts_out_of_sight_are_not_drawn(browser, page):
    browser.open(page, height=300)
    assert browser.run("document.querySelectorAll('.stage > svg').length") < browser.run(
        "document.querySelectorAll('figure').length"
    )


def test_a_table_is_sorted_by_a_click_on_its_header(browser, page):
    browser.open(page)
    column = "[...document.querySelectorAll('#runs-table tbody tr')].map((row) => +row.cells[4].dataset.value)"
    browser.run("document.querySelectorAll('#runs-table th button')[4].click()")
    assert browser.run(column) == sorted(browser.run(column), reverse=True)
    browser.run("document.querySelectorAll('#runs-table th button')[4].click()")
    assert browser.run(column) == sorted(browser.run(column))
    assert browser.run("document.querySelectorAll('#runs-table th')[4].ariaSort") == "ascending"


def test_the_filter_leaves_the_rows_with_all_its_words(browser, page):
    browser.open(page)
    shown = browser.run(
        "(() => { const field = document.querySelector('input[data-filter]'); field.value = 'bc another';"
        "field.dispatchEvent(new Event('input'));"
        "return document.querySelectorAll('#runs-table tbody tr:not([hidden])').length; })()"
    )
    assert shown == 3


def test_the_legend_hides_a_line_and_shows_it_again(browser, page):
    browser.open(page)
    browser.draw_all()
    chart = "document.querySelector('figure[data-chart=\"learning-1\"]')"
    lines, key = f"{chart}.querySelectorAll('path.line').length", f"{chart}.querySelector('.legend button')"
    assert browser.run(lines) == 2
    browser.run(f"{key}.click()")
    assert (browser.run(lines), browser.run(f"{key}.ariaPressed")) == (1, "false")
    browser.run(f"{key}.click()")
    assert (browser.run(lines), browser.run(f"{key}.ariaPressed")) == (2, "true")


def test_the_band_can_be_chosen(browser, page):
    browser.open(page)
    browser.draw_all()
    counts = "[...'band run'.split(' ')].map((kind) => document.querySelectorAll('#learning path.' + kind).length)"
    assert browser.run(counts) == [4, 0]
    browser.run("document.querySelector('input[value=runs]').click()")
    assert browser.run(counts) == [0, 12]


def test_values_can_be_shown_as_differences_from_those_of_the_data(browser, page):
    browser.open(page)
    browser.draw_all()
    browser.run("document.querySelector('input[value=difference]').click()")
    chart = "document.querySelector('figure[data-chart=\"values-1\"]')"
    flat = browser.run(f"{chart}.querySelector('path.line').getBBox().height")  # the data's own less itself
    assert flat == pytest.approx(0, abs=0.5)


def test_the_pointer_and_the_arrow_keys_read_out_values(browser, page):
    browser.open(page)
    browser.draw_all()
    chart = "document.querySelector('figure[data-chart=\"learning-1\"]')"
    browser.run(f"{chart}.scrollIntoView({{behavior: 'instant'}}); {chart}.querySelector('svg[tabindex]').focus()")
    browser.send("Input.dispatchKeyEvent", type="keyDown", key="End")
    said = browser.run(f"{chart}.querySelector('.read-out').innerText")
    assert "step 1,000" in said
    assert "51" in said
    assert browser.run("document.getElementById('announcer').textContent") == said
    browser.send("Input.dispatchKeyEvent", type="keyDown", key="Escape")
    assert browser.run(f"{chart}.querySelector('.read-out')") is None
    box = browser.run(f"(() => {{ const b = {chart}.querySelector('.stage').getBoundingClientRect();"
                      "return [b.left, b.top, b.width, b.height]; })()")  # fmt: skip
    middle = {"x": box[0] + box[2] / 2, "y": box[1] + box[3] / 2}
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", **middle)
    assert "step" in browser.run(f"{chart}.querySelector('.read-out').innerText")


def test_dark_comes_with_the_system_and_with_the_button(browser, page):
    ground = "getComputedStyle(document.body).backgroundColor"
    browser.open(page)
    light = browser.run(ground)
    browser.run("document.getElementById('theme').click()")
    turned = browser.run(ground)
    browser.open(page, dark=True)
    assert browser.run(ground) == turned != light
    browser.run("document.getElementById('theme').click()")
    assert browser.run(ground) == light


def test_charts_and_tables_are_saved_as_files(browser, page):
    browser.open(page)
    browser.draw_all()
    # what would be saved is caught on its way to the disk
    saved = browser.run(
        """(async () => {
            const caught = [], make = URL.createObjectURL;
            URL.createObjectURL = (blob) => { caught.push(blob); return make.call(URL, blob); };
            HTMLAnchorElement.prototype.click = function () { caught[caught.length - 1].name = this.download; };
            const head = document.querySelector('figure[data-chart="learning-1"]');
            head.querySelectorAll('.save button').forEach((button) => button.click());
            document.querySelector('button[data-save=summary-table]').click();
            for (let i = 0; i < 100 && caught.length < 3; i++) await new Promise((go) => setTimeout(go, 20));
            return Promise.all(caught.map(async (blob) => [blob.name, blob.type, blob.size, await blob.text()]));
        })()"""
    )
    files = {name: (kind, size, text) for name, kind, size, text in saved}
    assert set(files) == {"learning-a-set.svg", "learning-a-set.png", "summary-table.csv"}
    svg = files["learning-a-set.svg"][2]
    assert svg.startswith("<svg")
    assert "var(--" not in re.sub(r'style="[^"]*"', "", svg)
    assert ">mcq</text>" in svg
    assert files["learning-a-set.png"][:1] == ("image/png",)
    assert files["learning-a-set.png"][1] > 5_000
    assert "bc,a-set,11.0 ± 1.0,3" in files["summary-table.csv"][2]


def test_a_printed_page_has_all_its_charts_on_white(browser, page):
    browser.open(page, dark=True)
    printed = browser.send("Page.printToPDF")["data"]
    assert len(base64.b64decode(printed)) > 20_000
    assert browser.run("document.querySelectorAll('.stage > svg').length") == browser.run(
        "document.querySelectorAll('figure').length"
    )
    assert browser.complaints == []
