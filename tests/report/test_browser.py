"""The pages in a real browser: quiet console, sorting, sliders, tooltips, themes, access."""

from __future__ import annotations

import dataclasses
import time

import pytest

from browsing import launched, opened
from focalcal import decisions
from focalcal.report import write
from focalcal_papers import theory_page as theory
from report.toys import calibrated

pytestmark = pytest.mark.browser

DRAWN = "[...document.querySelectorAll('.chart')].every(c => c.querySelector('svg.main-svg'))"


@pytest.fixture(scope="module")
def browser():
    with launched() as running:
        yield running


@pytest.fixture(scope="module")
def file(tmp_path_factory, data):
    return write(data, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def theory_file(tmp_path_factory):
    return theory.write(tmp_path_factory.mktemp("page") / "theory.html")


def until(page, condition: str, seconds: float = 20) -> None:
    """Wait for a condition; the page's own policy forbids the driver to evaluate text in it."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)


@pytest.fixture
def visit(browser):
    """A function that opens a page and draws every figure; the pages are closed after the test."""
    pages = []

    def visited(path, *, width=1280, scheme="light"):
        page, complaints = opened(browser, path, width=width, scheme=scheme)
        pages.append(page)
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        until(page, DRAWN)
        assert complaints == []
        return page

    yield visited
    for page in pages:
        page.context.close()


def check_that_it_fits(page):
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert audit(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_report_is_quiet_and_fits(visit, file, width, scheme):
    check_that_it_fits(visit(file, width=width, scheme=scheme))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_theory_is_quiet_and_fits(visit, theory_file, width, scheme):
    page = visit(theory_file, width=width, scheme=scheme)
    check_that_it_fits(page)
    before = page.evaluate("document.getElementById('fig-map').data[3].y[80]")
    page.locator("#fig-map-pick").press("ArrowRight")
    assert page.locator("output[for=fig-map-pick]").inner_text() == "γ = 5"
    assert page.evaluate("document.getElementById('fig-map').data[3].y[80]") > before
    assert "e-16" not in page.inner_text("#errata").replace("−", "-")  # rounding errors are zero
    assert theory_file.stat().st_size < 6e6


def test_sorting_by_click_and_by_key(visit, file, data):
    page = visit(file)
    head = page.locator("#m0-table thead button", has_text="Brier")
    cells = (
        "[...document.querySelectorAll('#m0-table tbody tr')].map(r => +r.cells[4].dataset.value)"
    )
    head.click()
    own = sorted(m.evaluation["brier"].value for m in data.models[0].methods)
    assert page.evaluate(cells) == own
    head.focus()
    page.keyboard.press("Enter")
    assert page.evaluate(cells) == own[::-1]
    assert head.locator("..").get_attribute("aria-sort") == "descending"
    assert "Sorted by Brier" in page.locator("#status").inner_text()


def test_tooltip_slider_and_class_picker(visit, file, data):
    page = visit(file)
    point = page.locator("#fig-m0-reliability-before .scatterlayer .points path").last
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    page.wait_for_selector("#fig-m0-reliability-before .hoverlayer .hovertext")
    shown = page.locator("#fig-m0-reliability-before .hoverlayer").text_content()
    assert "accuracy" in shown
    slider = page.locator("#m0-threshold")
    slider.press("Home")
    kept = page.locator("output[for=m0-threshold]").inner_text()
    assert kept.startswith("confidence ≥ 0.00: before, 100.0 % kept")
    assert slider.get_attribute("aria-valuetext") == kept
    traces = "JSON.stringify(document.getElementById('fig-m0-class-reliability').data[1].y)"
    first = page.evaluate(traces)
    page.locator("#fig-m0-class-reliability-pick").select_option("1")
    assert page.evaluate(traces) != first


def test_a_chosen_goal_shows_its_own_threshold_and_not_that_of_the_nearest_step(
    visit, data, model, tmp_path
):
    one = data.models[0]
    own = decisions.threshold(
        model.test.labels, calibrated(model, one.chosen), target_accuracy=0.75
    )
    assert 100 * own.threshold % 1 != 0
    changed = dataclasses.replace(one, thresholds=(own,))
    page = visit(write(dataclasses.replace(data, models=(changed,)), tmp_path / "goal.html"))
    slider, goal = page.locator("#m0-threshold"), page.locator("#m0-threshold-goal")
    said = page.locator("output[for=m0-threshold]")
    goal.select_option("0")
    assert said.inner_text() == f"{own.rule} Guarantee: {own.guarantee}."
    assert float(slider.input_value()) == round(100 * own.threshold)
    assert page.locator("#m0-risk output").count() == 1
    slider.press("Home")
    assert said.inner_text().startswith("confidence ≥ 0.00: ")
    assert goal.input_value() == ""


def test_dark_mode_reaches_the_plots(visit, file):
    page = visit(file)
    colour = "document.getElementById('fig-m0-risk-coverage').layout.font.color"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    until(page, f"{colour} !== '{light}'")


def test_loads_in_two_seconds(browser, file):
    """The text is there to read; figures follow. The best of three, for busy machines."""
    seconds = []
    for _ in range(3):
        page = browser.new_page()
        started = time.perf_counter()
        page.goto(file.as_uri())
        seconds.append(time.perf_counter() - started)
        page.close()
    assert min(seconds) < 2


def audit(page) -> list[str]:
    """Faults of access: by axe-core where it is installed, and by the checks below in any case."""
    faults = page.evaluate(CHECKS)
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ModuleNotFoundError:
        return faults
    for rule in Axe().run(page).response["violations"]:
        if rule["impact"] in ("serious", "critical"):
            faults += [f"{rule['id']}: {node['html'][:120]}" for node in rule["nodes"]]
    return faults


# ruff: noqa: E501
CHECKS = r"""() => {
  const faults = [];
  const luminance = (c) => {
    const [r, g, b] = c.map((v) => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const rgb = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c.slice(0, 3);
    }
    return [255, 255, 255];
  };
  for (const e of document.querySelectorAll("main *, header *, footer *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || e.closest("svg") || !e.checkVisibility() || e.tagName === "OPTION") continue;
    const style = getComputedStyle(e);
    const [a, b] = [luminance(rgb(style.color).slice(0, 3)), luminance(behind(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) faults.push(`contrast ${ratio.toFixed(2)}: ${e.outerHTML.slice(0, 90)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].filter((e) => !e.closest("svg")).map((e) => e.id);
  if (new Set(ids).size !== ids.length) faults.push("an id occurs twice");
  for (const e of document.querySelectorAll("input, select")) {
    if (!e.labels.length) faults.push(`no label: ${e.outerHTML.slice(0, 90)}`);
  }
  for (const e of document.querySelectorAll(".chart")) {
    if (e.getAttribute("role") !== "img" || !e.getAttribute("aria-label")) faults.push(`no text: ${e.id}`);
  }
  for (const e of document.querySelectorAll("section")) {
    if (!document.getElementById(e.getAttribute("aria-labelledby"))) faults.push(`no name: ${e.id}`);
  }
  for (const e of document.querySelectorAll("table")) if (!e.caption) faults.push("no caption");
  for (const e of document.querySelectorAll("th")) if (!e.scope) faults.push("th without scope");
  for (const e of document.querySelectorAll(".scroll, pre")) {
    if (e.tabIndex !== 0) faults.push("scrolls, but not by keyboard");
  }
  const levels = [...document.querySelectorAll("h1, h2, h3, h4")].map((e) => +e.tagName[1]);
  levels.forEach((l, i) => { if (i && l > levels[i - 1] + 1) faults.push(`heading jumps to h${l}`); });
  if (!document.documentElement.lang || !document.title) faults.push("no language or title");
  for (const a of document.querySelectorAll('nav a')) {
    if (!document.querySelector(a.getAttribute("href"))) faults.push(`dead link ${a.href}`);
  }
  return faults;
}"""


def test_on_a_phone_no_number_is_cut(visit, file):
    page = visit(file, width=390)
    cut = "[...document.querySelectorAll('td')].filter(c => c.getBoundingClientRect().right > 391)"
    assert page.evaluate(f"{cut}.map(c => c.textContent)") == []


def test_the_deciding_column_is_visible_on_a_laptop(visit, file):
    page = visit(file, width=1280)
    head = page.locator("#m0-table thead button", has_text="validation NLL")
    box = head.bounding_box()
    assert box["x"] + box["width"] < 1280


def test_printed_pages_hold_whole_tables_and_no_controls(visit, file):
    page = visit(file, width=718)  # A4 less the margins
    page.emulate_media(media="print")
    cut = "[...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth)"
    assert page.evaluate(f"{cut}.map(s => s.ariaLabel)") == []
    shown = (
        "[...document.querySelectorAll('nav, .controls, .download')].filter(e => e.offsetParent)"
    )
    assert page.evaluate(f"{shown}.length") == 0


def test_captions_fit_where_the_table_does_not(visit, file):
    page = visit(file, width=800)
    ends = "[...document.querySelectorAll('caption')].map(c => c.getBoundingClientRect().right)"
    assert max(page.evaluate(ends)) <= 800


def test_without_scripts_there_are_no_empty_charts(browser, file):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(file.as_uri())
    assert page.locator(".chart").first.is_hidden()
    assert page.locator("noscript .warning").is_visible()
    page.context.close()


def test_axes_end_in_a_label_on_a_phone(visit, file):
    page = visit(file, width=390)
    labels = "[...document.querySelectorAll('#fig-m0-reliability-before .xtick text')]"
    assert "100%" in page.evaluate(
        f"{labels}.filter(t => getComputedStyle(t).opacity > 0 && getComputedStyle(t).display"
        " !== 'none').map(t => t.textContent)"
    )
