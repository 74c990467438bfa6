from __future__ import annotations

import sys

import pytest

import autotune


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
        change.parameter.name for change in log.story.explanation.changes
    ]
    at = log.slices[log.slices["is_setting"]]
    assert (at["difference"].abs() < 1e-9).all() and at["does_not_matter"].all()


def test_figures_show_themselves(log: autotune.Log) -> None:
    for plot in ("pairs", "ablation", "slices", "waiting", "history"):
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
