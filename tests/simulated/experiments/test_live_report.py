"""What the README says of the live runs is what is stored of them."""

from __future__ import annotations

import json
import statistics

import live_report

from simulated.experiments.conftest import EXPERIMENTS

LIVE = EXPERIMENTS / "tuner_live"
ALLOWED = 0.05


def test_the_readme_shows_each_run_with_what_it_lost_and_how_far_its_certificate_was_off() -> None:
    stored = json.loads((LIVE / "results-two-hosts.json").read_text())
    runs = stored["parts"]["two-hosts"]["runs"]
    text = (LIVE / "README.md").read_text()
    assert live_report.each_run(runs) in text
    lost = [run["lost"] for run in runs]
    assert f"**{sum(one > ALLOWED for one in lost)} of {len(runs)}** runs" in text
    assert f"median {statistics.median(lost):.1%}, worst {max(lost):.1%}".replace("%", " %") in text
