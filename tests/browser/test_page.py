"""The page of `weft explain` in a real browser: it shows what the compiler did, and everything on it works."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
import weft.core as mx
from tests.browser.driver import Browser, BrowserError, missing
from weft.passes.pipeline import PASSES
from weft.report.explain import Report
from weft.report.script import watching

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(missing()), reason=missing() or "there is a browser"),
]


# ---- pages ----


def attention(x: mx.array, w: mx.array, scale: mx.array) -> mx.array:
    normal = x * mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) + 1e-5) * scale
    q = normal @ w
    weights = mx.softmax(q @ q.T * 0.125, axis=-1)
    return mx.mean(mx.square(mx.tanh((weights @ q) * 1.0 + x)))


def deep_network(layers: list[mx.array], x: mx.array) -> mx.array:
    for w in layers:
        x = mx.maximum(x @ w, 0.0)
        x = x * mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) + 1e-5)
    return mx.sum(x)


@pytest.fixture(scope="module")
def report() -> Report:
    x, w, scale = mx.random.normal((64, 32)), mx.random.normal((32, 32)), mx.ones((32,))
    return weft.explain(mx.compile(mx.value_and_grad(attention, argnums=(1, 2))), x, w, scale)


@pytest.fixture(scope="module")
def page(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.save(tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    browser = Browser()
    try:
        yield browser
    finally:
        browser.close()


@pytest.fixture
def browser(window: Browser, page: Path) -> Browser:
    """The page, freshly opened."""
    return opened(window, page)


def opened(window: Browser, page: Path) -> Browser:
    window.messages()
    window.requests()
    window.open(page)
    return window


def data_of(page: Path) -> Any:
    """The data that a page holds."""
    return json.loads(re.findall(r'<script id="data" type="application/json">(.*?)</script>', page.read_text())[0])


def until(browser: Browser, script: str, *args: Any) -> Any:
    """The value of a script once it is true: what moves takes a moment."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        value = browser.run(script, *args)
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"never true: {script}")


NODES = "return [...document.querySelectorAll('.node:not(.leave)')].map((n) => +n.dataset.number).sort((a, b) => a - b)"
SET = """
    const [id, value, event] = arguments, input = document.getElementById(id);
    input.value = value;
    input.dispatchEvent(new Event(event));
"""
CLICK = "document.querySelector(arguments[0]).dispatchEvent(new MouseEvent('click', {bubbles: true}))"
VIEW = """
    const [x, y, k] = document.getElementById('view').getAttribute('transform').match(/-?[\\d.]+/g).map(Number);
    return {x, y, k};
"""


# ---- tests ----


def test_the_page_loads_alone_and_in_silence(browser: Browser, page: Path) -> None:
    """No message of any level, and no request but for the file itself."""
    assert browser.messages() == []
    asked = [url for url in browser.requests() if not url.startswith("data:")]
    assert asked == [page.resolve().as_uri()]
    assert browser.run("return document.querySelector('h1').textContent") == "attention"
    outside = re.findall(r"https?://[^\s\"'`)]+", page.read_text())
    assert set(outside) <= {"http://www.w3.org/2000/svg"}, "a name, not an address"


def test_the_slider_shows_the_graph_after_each_pass(browser: Browser, page: Path) -> None:
    stages = data_of(page)["programs"][0]["stages"]
    assert [stage["name"] for stage in stages] == ["traced", *(step.__name__ for step in PASSES), "views", "kernels"]
    sets = [sorted(node["number"] for node in stage["nodes"]) for stage in stages]
    assert len({tuple(numbers) for numbers in sets}) >= 4, "passes that do nothing would show nothing"
    for number, expected in enumerate(sets):
        browser.run(SET, "stage", number, "input")
        assert browser.run(NODES) == expected
        assert (
            browser.run("return document.querySelector('#ticks [aria-current]').textContent") == stages[number]["name"]
        )
    assert browser.run("return document.querySelectorAll('.box').length") == len(stages[-1]["boxes"])
    assert browser.messages() == []


def test_the_slider_listens_to_the_keyboard(browser: Browser, page: Path) -> None:
    third = data_of(page)["programs"][0]["stages"][2]["name"]
    assert browser.run("return document.getElementById('stage').value") == "0"
    browser.press(["ArrowRight", "ArrowRight"], "#stage")
    assert browser.run("return document.getElementById('stage').value") == "2"
    assert browser.run("return document.getElementById('says').textContent").startswith(f"{third}:")
    browser.press("[")
    assert browser.run("return document.getElementById('stage').value") == "1"


def test_nodes_keep_their_places_in_the_story(browser: Browser, page: Path) -> None:
    """A node that survives a pass is the same element, so that it can be seen to move."""
    stages = data_of(page)["programs"][0]["stages"]
    stays = set.intersection(*({n["number"] for n in s["nodes"] if n["role"] != "view"} for s in stages))
    number = max(stays)
    browser.run("document.querySelector(`.node[data-number='${arguments[0]}']`).dataset.mine = 'yes'", number)
    browser.run(SET, "stage", 99, "input")
    assert (
        browser.run("return document.querySelector(`.node[data-number='${arguments[0]}']`).dataset.mine", number)
        == "yes"
    )


def test_dragging_moves_the_graph(browser: Browser) -> None:
    before = browser.run(VIEW)
    room = browser.run("const r = document.getElementById('graph').getBoundingClientRect(); return [r.left, r.top]")
    start = (int(room[0]) + 12, int(room[1]) + 40)
    browser.drag(start, (start[0] + 90, start[1] + 60))
    after = browser.run(VIEW)
    assert after["k"] == before["k"]
    assert after["x"] - before["x"] == pytest.approx(90, abs=2)
    assert after["y"] - before["y"] == pytest.approx(60, abs=2)


def test_scrolling_zooms_around_the_pointer(browser: Browser) -> None:
    room = browser.run("const r = document.getElementById('graph').getBoundingClientRect(); return [r.left, r.top]")
    at = (int(room[0]) + 300, int(room[1]) + 120)
    before = browser.run(VIEW)
    browser.wheel(at, -240)
    after = browser.run(VIEW)
    assert after["k"] > before["k"] * 1.2
    for axis, inside in (("x", at[0] - room[0]), ("y", at[1] - room[1])):
        under = [(inside - view[axis]) / view["k"] for view in (before, after)]
        assert under[0] == pytest.approx(under[1], abs=1)
    browser.wheel(at, 240)
    assert browser.run(VIEW)["k"] == pytest.approx(before["k"], rel=0.01)


def test_buttons_and_keys_zoom_and_fit(browser: Browser) -> None:
    first = browser.run(VIEW)["k"]
    browser.click("#in")
    closer = browser.run(VIEW)["k"]
    assert closer > first
    browser.press("-")
    assert browser.run(VIEW)["k"] < closer
    browser.click("#fit")
    inside = """
        const room = document.getElementById('graph').getBoundingClientRect();
        return [...document.querySelectorAll('.node .body')].every((n) => {
          const r = n.getBoundingClientRect();
          return r.left >= room.left && r.right <= room.right && r.top >= room.top && r.bottom <= room.bottom;
        });
    """
    until(browser, inside)
    before = browser.run(VIEW)
    browser.press("ArrowLeft", "#graph")
    assert browser.run(VIEW)["x"] > before["x"]


def test_the_timeline_has_one_bar_for_each_kernel(browser: Browser, page: Path) -> None:
    kernels = data_of(page)["programs"][0]["kernels"]
    bars = browser.run(
        "return [...document.querySelectorAll('#timeline .kernel-bar')]"
        ".map((b) => [+b.dataset.kernel, +b.getAttribute('x'), +b.getAttribute('width')])"
    )
    assert [bar[0] for bar in bars] == [kernel["number"] for kernel in kernels]
    assert [bar[1] for bar in bars] == sorted(bar[1] for bar in bars), "in the order in which they run"
    slowest = max(kernels, key=lambda kernel: kernel["seconds"])["number"]
    assert max(bars, key=lambda bar: bar[2])[0] == slowest
    arena = [s for s in data_of(page)["programs"][0]["stored"] if s["where"] == "arena"]
    assert arena
    assert browser.run("return document.querySelectorAll('#timeline .buffer').length") == len(arena)


def test_a_click_on_a_kernel_shows_its_code(browser: Browser, page: Path) -> None:
    whole = data_of(page)
    kernel = next(k for k in whole["programs"][0]["kernels"] if k["form"] == "row")
    name = kernel["launches"][0]["name"]
    browser.click(f".kernel-bar[data-kernel='{kernel['number']}']")
    assert f"Kernel {kernel['number']}" in browser.run("return document.querySelector('#detail h2').textContent")
    browser.click("#detail [data-tab=llvm]")
    shown = browser.run("return document.querySelector('#detail pre.code.llvm').innerText")
    assert f"define void @{name}(" in shown
    assert len(shown.strip().splitlines()) == len(whole["code"][name]["llvm"].splitlines())
    browser.click("#detail [data-tab=asm]")
    assert f"{name}:" in browser.run("return document.querySelector('#detail pre.code.asm').innerText")
    browser.click("#detail [data-tab=kernel]")
    assert browser.run("return document.querySelector('#detail pre.code').innerText").startswith("row ")
    assert browser.messages() == []


def test_a_click_on_a_box_and_on_a_node(browser: Browser, page: Path) -> None:
    program = data_of(page)["programs"][0]
    browser.run(SET, "stage", 99, "input")
    browser.click("#fit")
    browser.run(CLICK, ".box[data-kernel='1'] rect")
    assert browser.run("return [...document.querySelectorAll('.box.on')].map((b) => b.dataset.kernel)") == ["1"]
    assert browser.run("return [...document.querySelectorAll('.kernel-bar.on')].map((b) => b.dataset.kernel)") == ["1"]
    node = next(n for n in program["stages"][-1]["nodes"] if n["kernel"] == 0 and n.get("line"))
    browser.run(CLICK, f".node[data-number='{node['number']}'] .body")
    text = browser.run("return document.getElementById('detail').innerText")
    assert node["line"]["source"] in text, "the user's line that made the node"
    assert "Kernel 0" in text


def test_keys_walk_through_kernels(browser: Browser, page: Path) -> None:
    count = len(data_of(page)["programs"][0]["kernels"])
    chosen = "return [...document.querySelectorAll('.kernel-bar.on')].map((b) => +b.dataset.kernel)"
    browser.press("j")
    assert browser.run(chosen) == [0]
    browser.press("j")
    assert browser.run(chosen) == [1]
    browser.press(["k", "k"])
    assert browser.run(chosen) == [count - 1]
    browser.press("Escape")
    assert browser.run(chosen) == []
    browser.press("?")
    assert browser.run("return document.getElementById('keys').open")


def test_finding_dims_everything_else(browser: Browser) -> None:
    browser.press("tanh", "#find")
    clear = "return [...document.querySelectorAll('.node:not(.dim)')].map((n) => n.getAttribute('aria-label'))"
    found = browser.run(clear)
    assert found
    assert all("tanh" in label for label in found)


def test_charts(browser: Browser, page: Path) -> None:
    program = data_of(page)["programs"][0]
    browser.click("#tab-roofline")
    computing = [k for k in program["kernels"] if k["flops"] and k["bytes"]]
    assert browser.run("return document.querySelectorAll('#roofline .dot').length") == len(computing)
    browser.click("#tab-reasons")
    reasons = browser.run("return document.getElementById('reasons').innerText")
    for kernel in program["kernels"]:
        for note in kernel["notes"]:
            assert note in reasons
    browser.click("#tab-kernels")
    assert browser.run("return document.querySelectorAll('#table tbody tr').length") == len(program["kernels"])
    assert not browser.run("return document.getElementById('timeline').checkVisibility()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_reader_s_colours(window: Browser, page: Path, scheme: str) -> None:
    window.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    opened(window, page)
    bright = """
        const lum = (c) => c.match(/[\\d.]+/g).slice(0, 3).reduce((a, b) => a + +b, 0);
        const style = getComputedStyle(document.body);
        return lum(style.backgroundColor) > lum(style.color) ? 'light' : 'dark';
    """
    try:
        assert window.run(bright) == scheme
        window.press("t")
        assert window.run(bright) != scheme
    finally:
        window.tell("Emulation.setEmulatedMedia", features=[])


def test_hundreds_of_nodes(window: Browser, tmp_path: Path) -> None:
    """All are drawn, none lies on another, and every pass can be looked at."""
    layers = [mx.random.normal((16, 16)) for _ in range(16)]
    report = weft.explain(mx.grad(deep_network), layers, mx.random.normal((8, 16)), measure=False)
    path = report.save(tmp_path / "large.html")
    opened(window, path)
    stages = data_of(path)["programs"][0]["stages"]
    assert len(stages[0]["nodes"]) > 500
    for number, stage in enumerate(stages):
        window.run(SET, "stage", number, "input")
        assert window.run("return document.querySelectorAll('.node:not(.leave)').length") == len(stage["nodes"])
        places = sorted((n["y"], n["x"], n["w"]) for n in stage["nodes"])
        for (y, x, w), (y2, x2, _) in itertools.pairwise(places):
            assert y != y2 or x2 >= x + w, "boxes of one row stand apart"
    window.click("#fit")
    assert window.run(VIEW)["k"] < 0.5
    assert window.messages() == []


def test_several_programs_of_a_script(window: Browser, tmp_path: Path) -> None:
    with watching() as watch:
        double = mx.compile(lambda x: mx.exp(x) * 2)
        mx.eval(double(mx.ones((4, 4))))
        mx.eval(mx.sum(mx.sqrt(mx.ones((7, 3)) + 2), axis=0))
    path = watch.report("script").save(tmp_path / "script.html")
    opened(window, path)
    programs = data_of(path)["programs"]
    assert len(programs) >= 2
    for number, program in enumerate(programs):
        window.run(SET, "program", number, "change")
        assert window.run(NODES) == sorted(n["number"] for n in program["stages"][0]["nodes"])
        assert window.run("return document.querySelectorAll('.kernel-bar').length") == len(program["kernels"])
    assert window.messages() == []


def test_a_broken_page_would_be_noticed(window: Browser, page: Path, tmp_path: Path) -> None:
    """The tests above can fail: errors of scripts and requests for other files do reach them."""
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text().replace("navigation();\n", "navigation();\nmissing();\n"))
    opened(window, broken)
    assert any("missing is not defined" in message["message"] for message in window.messages())
    with pytest.raises(BrowserError):
        window.find("#absent")
