"""A tuned job on two hosts, started as users start it."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

from cluster.hosts import BIN, TwoHosts

JOB = Path(__file__).parent.parent / "e2e" / "job.py"
FAST = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "5",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "6",
    "HOROVOD_AUTOTUNE_BUDGET": "1",
    "HOROVOD_AUTOTUNE_SEED": "1",
}


def test_the_tuner_explores_the_hierarchical_allreduce(
    slow_hosts: TwoHosts, tmp_path: Path
) -> None:
    log = tmp_path / "log.csv"
    words = [BIN / "horovodrun", "-np", "4", "-H", slow_hosts.places((2, 2))]
    words += [sys.executable, JOB, tmp_path, "4000"]
    environ = {**slow_hosts.launch_variables(), **FAST, "HOROVOD_AUTOTUNE_LOG": str(log)}
    process = slow_hosts.start_on_a(words, **environ)
    _, err = process.communicate(timeout=110)
    assert process.returncode == 0, err
    with log.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["hierarchical_allreduce"] for row in rows} == {"0", "1"}
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(4)]
    assert all(rank["params"] == ranks[0]["params"] for rank in ranks)
    assert ranks[0]["state"] == "done"
