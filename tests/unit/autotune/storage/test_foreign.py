from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import LogError
from autotune.space import BY_NAME, HOROVOD
from autotune.storage.foreign import CsvContent, parse_csv
from autotune.trial import CommParams, TrialState

HEADER = ",".join(HOROVOD.columns)

DATA = Path(__file__).parents[3] / "data"
FIVE = "hierarchical_allreduce,hierarchical_allgather,cycle_time_ms,tensor_fusion_threshold,score"
SIX = FIVE.replace("cycle", "cache_enabled,cycle")
SEVEN = SIX.replace("cache_enabled", "torus_allreduce,cache_enabled")


def parse(*lines: str, end: str = "\n") -> CsvContent:
    return parse_csv("".join(line + end for line in lines).encode(), "log.csv")


@pytest.mark.parametrize(
    ("name", "trials", "best"),
    [
        ("resnet50-gradients-2-ranks", 84, (1.87024, int(1.42992 * 2**20), 1024, False, True)),
        ("many-small-2-ranks", 84, (10.0329, int(8.0159 * 2**20), 1024, False, True)),
    ],
)
def test_finished_logs_of_horovod_give_their_last_line(name: str, trials: int, best: tuple) -> None:
    content = parse_csv((DATA / f"horovod-0.28.1-autotune-{name}.csv").read_bytes(), name)
    assert not content.own
    assert len(content.trials) == trials
    assert content.best is not None
    params = content.best.params
    assert best == (
        params.cycle_time_ms,
        params.fusion_threshold_bytes,
        params.cache_capacity,
        params.hierarchical_allreduce,
        params.hierarchical_allgather,
    )
    assert content.warnings == ()


def test_a_log_cut_short_has_no_best() -> None:
    content = parse_csv((DATA / "horovod-0.28.1-autotune-cut-short.csv").read_bytes(), "")
    assert len(content.trials) == 29
    assert content.best is None


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        (FIVE, ["0,0,5,4,10", "1,0,2.5,12.2035,30.5", "1,0,2.5,12.2035,30.5"]),
        (SIX, ["0,0, 0,5,4,10", "1,0, 1,2.5,12.2035,30.5", "1,0, 1,2.5,12.2035,30.5"]),
        (SEVEN, ["0,0,0, 0,5,4,10", "1,0,0, 1,2.5,12.2035,30.5", "1,0,0, 1,2.5,12.2035,30.5"]),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_release_gives_the_same_best(header: str, rows: list[str], end: str) -> None:
    best = parse(header, *rows, end=end).best
    assert best is not None
    assert best.params == CommParams(
        fusion_threshold_bytes=int(12.2035 * 1048576),
        cycle_time_ms=2.5,
        cache_capacity=1024,
        hierarchical_allreduce=True,
    )


def test_columns_are_found_by_name_in_any_order() -> None:
    content = parse("score, tensor_fusion_threshold ,cycle_time_ms", "7,2,1")
    assert content.trials[0].params.fusion_threshold_bytes == 2 * 2**20
    assert content.trials[0].score == 7


@pytest.mark.parametrize(("cycle", "mib"), [("0", "0"), ("0", "0.00014"), ("1e-3", "1e-06")])
def test_values_outside_any_search_range_are_valid(cycle: str, mib: str) -> None:
    params = parse(SEVEN, f"0,0,0, 0,{cycle},{mib},5").trials[0].params
    assert params.cycle_time_ms == float(cycle)
    assert params.fusion_threshold_bytes == int(float(mib) * 2**20)
    assert params.cache_capacity == 0


def test_an_unfinished_last_line_is_ignored() -> None:
    whole = f"{HEADER}\n0,0,1024,1,16,5\n0,0,1024,2,16,6\n".encode()
    assert parse_csv(whole[:-1], "").trials == parse_csv(whole[:-5], "").trials
    content = parse_csv(whole[:-1], "")
    assert len(content.trials) == 1 and content.best is None
    assert content.damage.startswith("line 3, the last one, is ignored: it has no newline")


@pytest.mark.parametrize("content", [b"", b"\n", HEADER.encode(), f"{HEADER}\n".encode()])
def test_empty_files_and_headers_alone_are_logs_without_trials(content: bytes) -> None:
    assert parse_csv(content, "").trials == ()
    assert parse_csv(content, "").best is None


@pytest.mark.parametrize("content", [b"h\n", b"hello,world\n1,2\n", b"\0\1\2", b"score\n1\n"])
def test_other_files_are_refused(content: bytes) -> None:
    with pytest.raises(LogError, match=r"log\.csv: not an autotune log"):
        parse_csv(content, "log.csv")


@pytest.mark.parametrize(
    ("rest", "final", "damaged"),
    [("", True, False), ("0,0,1024,1,1", True, True), ("0,0,1024,-1,16,5\n", False, True)],
)
def test_a_whole_last_line_that_cannot_be_used_hides_whether_the_log_is_final(
    rest: str, final: bool, damaged: bool
) -> None:
    whole = f"{HEADER}\n0,0,1024,1,16,5\n0,0,1024,2,16,6\n0,0,1024,1,16,5\n"
    content = parse_csv(f"{whole}{rest}".encode(), "")
    assert (content.best is not None, bool(content.damage)) == (final, damaged)


def test_the_last_row_of_ours_repeats_a_setting_and_of_horovod_a_whole_row() -> None:
    ours = parse(HEADER, "0,0,1024,1,16,5", "0,0,1024,2,16,6", "0,0,1024,1,16,4")
    assert ours.best is not None and (ours.best.trial_id, ours.best.score) == (0, 4.0)
    assert [trial.score for trial in ours.trials] == [5.0, 6.0]
    rows = ["0,0,0, 0,5,4,10.5", "0,0,0, 0,6,4,12.5", "0,0,0, 0,5,4,12.5"]
    assert parse(SEVEN, *rows).best is None
    assert len(parse(SEVEN, *rows).trials) == 3


def test_horovod_reading_one_setting_twice_is_not_the_end() -> None:
    """With every parameter fixed, Horovod's trials all have one setting."""
    rows = ["0,0,0, 0,5,4,10.5", "0,0,0, 0,5,4,12.5", "0,0,0, 0,5,4,11.5"]
    assert parse(SEVEN, *rows).best is None
    assert parse(SEVEN, *rows, rows[0]).best is None
    best = parse(SEVEN, *rows, rows[1]).best
    assert best is not None and best.score == 12.5


def test_rows_that_cannot_be_used_are_named_and_skipped() -> None:
    content = parse(HEADER, "0,0,1024,1,16,5", "x,0,1,1,1,1", "0,0,1", "0,0,1024,-1,16,5")
    assert len(content.trials) == 1
    assert ["line 3", "line 4"] == [text[:6] for text in content.warnings]
    assert content.damage.startswith("line 5, the last one, is ignored: cycle_time_ms: expected")


@pytest.mark.parametrize("score", ["nan", "inf", "-1", "1e999"])
def test_a_score_that_is_no_score_is_rejected(score: str) -> None:
    trial = parse(SEVEN, f"0,0,0, 0,5,4,{score}").trials[0]
    assert trial.state is TrialState.REJECTED
    assert trial.score == 0


def test_torus_is_ignored_aloud() -> None:
    assert "torus_allreduce" in parse(SEVEN, "0,0,1, 0,5,4,10").warnings[0]


CELLS = st.one_of(
    st.sampled_from(
        ["0", "1", " 0", "", "nan", "inf", "-inf", "1e999", "1_0", "é", '"', "9" * 400]
    ),
    st.floats().map(str),
    st.integers().map(str),
    st.text(max_size=5),
)
LINES = st.lists(CELLS, max_size=8).map(",".join)


@settings(max_examples=50)
@given(st.sampled_from([FIVE, SIX, SEVEN, HEADER]), st.lists(LINES, max_size=6))
def test_any_rows_are_read(header: str, lines: list[str]) -> None:
    content = parse_csv("\n".join([header, *lines]).encode("utf-8", "replace"), "")
    for trial in content.trials:
        assert trial.params.fusion_threshold_bytes <= BY_NAME["fusion_threshold_bytes"].valid_high


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    try:
        assert parse_csv(content, "").trials == ()
    except LogError as error:
        assert "\n" not in str(error)
