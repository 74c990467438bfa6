"""Tensors of an operation that failed belong to the script again: no late message writes there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from e2e.commands import Commands

SCRIPT = Path(__file__).with_name("freed_tensors.py")
ONE_PER_HOST = 'HOROVOD_HOSTNAME=host-$OMPI_COMM_WORLD_RANK exec "$@"'


@pytest.mark.parametrize("operation", ["broadcast", "allreduce"])
def test_a_tensor_is_left_alone_once_its_operation_has_failed(
    operation: str, commands: Commands
) -> None:
    words = ["mpirun", "-n", "2", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    words += ["--mca", "btl", "self,tcp", "sh", "-c", ONE_PER_HOST, "sh"]  # memory is read at once
    result = commands.run(*words, sys.executable, SCRIPT, operation, limit_s=110)
    assert result.stdout.split() == ["untouched"], result  # ranks end without MPI's finalize
