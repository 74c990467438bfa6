from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import autotune

GUIDE = (Path(__file__).parents[3] / "docs/report.md").read_text(encoding="utf-8")
PLOTS = ("pairs", "ablation", "slices", "waiting", "history")


@pytest.fixture(scope="module")
def log(logs: dict[str, str]) -> autotune.Log:
    return autotune.load(logs["gain"])


def test_a_notebook_shows_the_verdict(log: autotune.Log, logs: dict[str, str]) -> None:
    shown = log._repr_html_()
    assert "<strong>Yes.</strong>" in shown and logs["gain"] in shown
    assert "Yes." in repr(log)


def test_frames_hold_what_the_log_holds(log: autotune.Log) -> None:
    view = autotune.read_log(log.story.path)
    assert list(log.trials["trial"]) == [trial.trial_id for trial in view.trials]
    assert log.trials["gain"].notna().sum() == len(view.trials) - 1
    assert len(log.pairs) == view.certificate.pairs
    assert (log.samples["kind"] == "certify").sum() >= 2 * view.certificate.pairs
    default = log.samples[log.samples["trial"] == 0]["step_us"].median()
    assert default == pytest.approx(134_000, rel=0.2)
    assert list(log.ablation["parameter"]) == [
        ", ".join(part.parameter.name for part in change.parts)
        for change in log.story.explanation.changes
    ]
    at = log.slices[log.slices["is_setting"]]
    assert (at["difference"].abs() < 1e-9).all() and at["does_not_matter"].all()


def test_figures_show_themselves(log: autotune.Log) -> None:
    for plot in PLOTS:
        figure = getattr(log, f"plot_{plot}")()
        assert figure._repr_svg_().lstrip().startswith("<?xml")


def test_what_is_not_there_is_said(logs: dict[str, str]) -> None:
    foreign = autotune.load(logs["horovod"])
    assert len(foreign.trials) > 10 and len(foreign.samples) == len(foreign.pairs) == 0
    for plot in (foreign.plot_pairs, foreign.plot_ablation, foreign.plot_history):
        with pytest.raises(autotune.NoAnswerError):
            plot()


def test_missing_pandas_is_one_sentence(logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(autotune.AutotuneError, match=r"pip install 'hvd-autotune\[notebook\]'"):
        len(autotune.load(logs["empty"]).trials)


def executed(folder: Path, *cells: str) -> list[list[dict[str, Any]]]:
    """Return what cells of a notebook put out that a kernel of its own executes in ``folder``."""
    path = folder / "log.ipynb"
    content = [
        {
            "cell_type": "code",
            "id": f"cell-{number}",
            "source": source,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
        for number, source in enumerate(cells)
    ]
    path.write_text(
        json.dumps({"cells": content, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    program = Path(sys.executable).with_name("jupyter-execute")
    environ = {**os.environ, "IPYTHONDIR": str(folder / "ipython"), "JUPYTER_PLATFORM_DIRS": "1"}
    ended = subprocess.run(
        [program, "--inplace", "--timeout=100", "--kernel_name=python3", path],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert ended.returncode == 0, ended.stderr
    return [cell["outputs"] for cell in json.loads(path.read_text())["cells"]]


@pytest.mark.timeout(200)
def test_a_kernel_shows_verdict_frames_and_figures(tmp_path: Path, logs: dict[str, str]) -> None:
    for file in Path(logs["gain"]).parent.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (block,) = re.findall(r"( {4}import autotune\n(?: {4}.*\n)+)", GUIDE)
    plots = [f"log.plot_{plot}()" for plot in PLOTS]
    _, verdict, frame, *drawn = executed(
        tmp_path, re.sub("^ {4}", "", block, flags=re.MULTILINE), "log", "log.trials", *plots
    )
    assert "<strong>Yes.</strong>" in "".join(verdict[0]["data"]["text/html"])
    assert "gain_low" in "".join(frame[0]["data"]["text/html"])
    for outputs in drawn:
        assert "</svg>" in "".join(outputs[0]["data"]["image/svg+xml"])
