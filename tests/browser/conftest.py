"""Chromium without a screen, and pages of logs that simulated jobs left."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

import made_logs
from autotune.cli.main import main

DATA = Path(__file__).parents[1] / "data"
TIMELINES = sorted(map(str, DATA.glob("horovod-*-timeline-*.json")))


class Browser:
    """A Chromium that counts what it requests and complains about."""

    def __init__(self) -> None:
        options = Options()
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.add_argument("--window-size=1000,900")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = Service(shutil.which("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        self.driver.set_page_load_timeout(30)
        self.driver.set_script_timeout(30)

    def open(self, page: Path) -> None:
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(page.as_uri())

    def prefers(self, scheme: str) -> None:
        """Have pages be shown ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the page was opened."""
        messages = [json.loads(entry["message"])["message"] for entry in self._performance()]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def _performance(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.driver.get_log("performance")
        return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    started = Browser()
    try:
        yield started
    finally:
        started.driver.quit()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """{what the log is: its page}."""
    folder = tmp_path_factory.mktemp("pages")
    gain = made_logs.write(folder / "gain" / "log.csv", made_logs.job("bowl"))
    none = made_logs.write(folder / "none" / "log.csv", made_logs.job("flat"))
    early = made_logs.job("bowl", 3, most_steps=400)
    logs = {
        "gain": [gain, "--timeline", *TIMELINES],
        "no gain": [none],
        "unfinished": [made_logs.write(folder / "early" / "log.csv", early)],
        "horovod": [str(DATA / "horovod-0.28.1-autotune-many-small-2-ranks.csv")],
        "several": [
            gain,
            made_logs.write(folder / "four" / "log.csv", made_logs.job("bowl", 1), size=4),
            none,
        ],
    }
    made = {}
    for name, arguments in logs.items():
        made[name] = folder / f"{name.replace(' ', '-')}.html"
        assert main(["report", *arguments, "-o", str(made[name])]) == 0
    return made
