"""Runs pytest on one rank of a job; each rank leaves its own JUnit file.

mpirun -n 2 python tests/tiers/rank_pytest.py REPORT_PREFIX PYTEST_ARGUMENTS...
"""

from __future__ import annotations

import os
import sys

import pytest

RANK_VARIABLES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def main(prefix: str, arguments: list[str]) -> int:
    rank = next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0")
    if rank != "0":
        arguments = [*arguments, "-qq", "--no-header", "--no-summary"]
    report = f"--junitxml={prefix}-rank{rank}.xml"
    return int(pytest.main([*arguments, report, "-p", "no:cacheprovider"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
