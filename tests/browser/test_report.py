"""The report in a real browser: what a reader meets."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import made_logs

if TYPE_CHECKING:
    from browser.conftest import Browser

NAMES = ("gain", "no gain", "unfinished", "horovod", "several")
SIX = ("faster", "run", "why", "no-matter", "time", "cost")
CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
ENOUGH = 4.5
"""Contrast of text that WCAG 2.2, 1.4.3 asks for."""


@pytest.mark.parametrize("name", NAMES)
def test_a_page_opens_without_errors_and_asks_nobody(browser: Browser, pages, name: str) -> None:
    browser.open(pages[name])
    assert browser.complaints() == []
    outside = [url for url in browser.requests() if not url.startswith(("file:", "data:"))]
    assert outside == []
    assert browser.requests() == []  # they were read above: the page has not asked again


@pytest.mark.parametrize("name", ("gain", "no gain", "unfinished", "horovod"))
def test_six_answers_are_there(browser: Browser, pages, name: str) -> None:
    browser.open(pages[name])
    for section in SIX:
        answer = browser.driver.find_element(By.CSS_SELECTOR, f"#{section} .answer")
        assert answer.is_displayed() and len(answer.text) > 20, section


@pytest.mark.parametrize("scheme", ("light", "dark"))
@pytest.mark.parametrize("name", NAMES)
def test_all_text_can_be_read(browser: Browser, pages, name: str, scheme: str) -> None:
    browser.prefers(scheme)
    browser.open(pages[name])
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    found = browser.run(CONTRAST)
    browser.prefers("light")
    assert found["texts"] > 100
    assert [one for one in found["all"] if one["contrast"] < ENOUGH] == []


def test_pictures_are_as_wide_as_the_page_and_have_names(browser: Browser, pages) -> None:
    browser.open(pages["gain"])
    pictures = browser.driver.find_elements(By.CSS_SELECTOR, "figure svg")
    assert len(pictures) == 6
    for one in pictures:
        assert one.size["width"] > 500 and one.size["height"] > 80
        assert one.accessible_name


def test_the_page_can_be_used_by_keyboard(browser: Browser, pages) -> None:
    browser.open(pages["gain"])
    seen = []
    for _ in range(40):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        active = browser.driver.switch_to.active_element
        seen.append(active.tag_name)
        if len(seen) == 1:
            assert active.text == "Skip to the answers" and active.is_displayed()
        if active.tag_name == "summary":
            active.send_keys(Keys.ENTER)
            opened = browser.run("return arguments[0].parentElement.open", active)
            assert opened
        if active.text == "Copy":
            active.send_keys(Keys.ENTER)
            deadline = time.monotonic() + 5
            while active.text != "Copied" and time.monotonic() < deadline:
                time.sleep(0.05)
            assert active.text == "Copied"
            break
    assert {"a", "summary", "button"} <= set(seen)


def test_the_replay_line_is_copied(browser: Browser, pages) -> None:
    browser.open(pages["gain"])
    line = browser.driver.find_element(By.CSS_SELECTOR, "#run pre").text
    browser.driver.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]}
    )
    browser.driver.find_element(By.CSS_SELECTOR, "#run button").click()
    copied = browser.driver.execute_async_script(
        "const done = arguments[0];"
        "setTimeout(() => navigator.clipboard.readText().then(done, (e) => done(String(e))), 200);"
    )
    assert copied == line and line.startswith("autotune replay ")


def test_everything_is_open_in_print(browser: Browser, pages) -> None:
    browser.open(pages["gain"])
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run("return [...document.querySelectorAll('details')].every((one) => one.open)")
    made = browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})
    assert len(made["data"]) > 20_000


def test_a_narrow_page_does_not_scroll_sideways(browser: Browser, pages) -> None:
    metrics = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        for name in NAMES:
            browser.open(pages[name])
            width = browser.run("return document.documentElement.scrollWidth")
            assert width <= 390, name
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.timeout(240)
def test_an_open_page_follows_a_live_job(browser: Browser, tmp_path: Path) -> None:
    entries = list(made_logs.job("bowl"))
    logs = made_logs.start(tmp_path / "log.csv")
    go_on = threading.Event()

    def write() -> None:
        now_s = made_logs.BEGIN_S
        for number, entry in enumerate(entries):
            if number == 30:
                go_on.wait(200)
            now_s += getattr(entry, "duration_us", 0.0) / 1e6
            with made_logs.clock(now_s):
                made_logs.tell(logs, entry)
            time.sleep(0.05)
        logs.close()

    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "autotune", "report", str(tmp_path / "log.csv")]
    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(2)
    follower = subprocess.Popen(
        [*command, "-o", str(page), "--follow", "--every", "1"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert follower.stdout is not None and follower.stdout.readline() == f"{page}\n"
        deadline = time.monotonic() + 150
        while "data-follow" not in page.read_text() and time.monotonic() < deadline:
            time.sleep(0.2)
        browser.open(page)
        assert browser.driver.find_element(By.CSS_SELECTOR, ".live").is_displayed()
        first = _trials(browser)
        go_on.set()
        while _is_followed(browser) and time.monotonic() < deadline:
            time.sleep(0.3)
        assert "State: finished" in _text(browser)
        assert _trials(browser) > first
        assert "Yes." in browser.driver.find_element(By.CSS_SELECTOR, "#faster .answer").text
        assert browser.complaints() == []
        assert follower.wait(20) == 0
    finally:
        go_on.set()
        follower.kill()
        follower.communicate()
        writer.join()


def _trials(browser: Browser) -> int:
    script = "return document.querySelectorAll('#history table')[0].tBodies[0].rows.length"
    return int(_patiently(browser, script))


def _is_followed(browser: Browser) -> bool:
    return bool(_patiently(browser, "return document.querySelectorAll('.live').length"))


def _text(browser: Browser) -> str:
    return str(_patiently(browser, "return document.body.innerText"))


def _patiently(browser: Browser, script: str) -> object:
    """Return what a script says; a page may just be being read again."""
    for _ in range(20):
        try:
            return browser.run(script)
        except Exception:
            time.sleep(0.1)
    return browser.run(script)
