from __future__ import annotations

import pytest

from autotune.errors import LogError
from autotune.storage.placeholders import JOB_ID_VARIABLES, expand


def path_of(path: str, **environ: str) -> str:
    return expand(path, "HOROVOD_AUTOTUNE_LOG", environ, host="node1.site")


@pytest.mark.parametrize("variable", JOB_ID_VARIABLES)
def test_every_queue_gives_its_job_a_name(variable: str) -> None:
    assert path_of("logs/{job_id}.csv", **{variable: "4711"}) == "logs/4711.csv"


def test_a_path_may_hold_both_and_more_than_once() -> None:
    text = path_of("/a/{host}/{job_id}-{job_id}.csv", SLURM_JOB_ID="7")
    assert text == "/a/node1.site/7-7.csv"


def test_a_job_name_cannot_leave_its_folder() -> None:
    assert path_of("{job_id}.csv", PBS_JOBID="12[3].server/../x") == "12_3_.server_.._x.csv"


def test_without_a_queue_the_error_names_path_and_variables() -> None:
    with pytest.raises(LogError, match=r"HOROVOD_AUTOTUNE_LOG=\{job_id\}\.csv.*SLURM_JOB_ID"):
        path_of("{job_id}.csv", SLURM_JOB_ID=" ")


def test_other_text_in_braces_is_left_alone() -> None:
    assert path_of("{rank}-{}.csv") == "{rank}-{}.csv"
