"""The Kubernetes example fits Kubernetes' own schemas, and its parts fit each other."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from horovod.common.launched import Launcher, find

ROOT = Path(__file__).resolve().parents[2]
SERVICE, JOB = yaml.safe_load_all((ROOT / "examples/kubernetes/job.yaml").read_text())
POD = JOB["spec"]["template"]["spec"]


def variables(index: int) -> dict[str, str]:
    """Return the environment of pod ``index``, as Kubernetes makes it."""
    environ: dict[str, str] = {}
    for entry in POD["containers"][0]["env"]:
        source = entry.get("valueFrom", {})
        if "fieldRef" in source:
            assert "job-completion-index" in source["fieldRef"]["fieldPath"]
            environ[entry["name"]] = str(index)
        elif "secretKeyRef" in source:
            environ[entry["name"]] = "0123456789abcdef"
        else:
            environ[entry["name"]] = entry["value"]
    return environ


@pytest.mark.parametrize("version", ["1.28", "1.32", "1.36"])
@pytest.mark.parametrize("content", [SERVICE, JOB], ids=["service", "job"])
def test_it_fits_the_schema(content: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(content, version, strict=True)


def test_a_wrong_word_does_not_fit() -> None:
    wrong = copy.deepcopy(JOB)
    wrong["spec"]["completionModus"] = wrong["spec"].pop("completionMode")
    with pytest.raises(kubernetes_validate.ValidationError, match="completionModus"):
        kubernetes_validate.validate(wrong, "1.32", strict=True)


def test_its_pods_are_the_ranks_of_one_job_and_meet_at_pod_0() -> None:
    size, name = JOB["spec"]["completions"], JOB["metadata"]["name"]
    assert JOB["spec"]["parallelism"] == size and JOB["spec"]["completionMode"] == "Indexed"
    found = [find(variables(index), has_mpi=False) for index in range(size)]
    assert [(each.rank, each.size) for each in found] == [(i, size) for i in range(size)]
    (place,) = {each.place for each in found}
    assert place is not None and place.listener is Launcher.VARIABLES
    assert place.host == f"{name}-0.{POD['subdomain']}"
    assert POD["subdomain"] == SERVICE["metadata"]["name"]
    assert SERVICE["spec"]["clusterIP"] == "None"
    assert SERVICE["spec"]["selector"] == {"job-name": name}
    assert [port["port"] for port in SERVICE["spec"]["ports"]] == [place.port]
