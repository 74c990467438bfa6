"""Parameters that cannot matter in a job, by what its training steps communicate.

What the launch rules out (one host, one rank) the runtime knows and says at the start.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from autotune.space import Table


def without_operation(
    operations: Sequence[tuple[str, int]], frozen: Collection[str], table: Table
) -> dict[str, str]:
    """Return {parameter: reason} of those not ``frozen`` whose operation no training step uses.

    Args:
        operations: As in ``protocol.Signature``. NCCL's allgather is one whatever the setting.
        frozen: Parameters that have a reason already.
        table: All parameters.
    """
    used = {operation for operation, _ in operations}
    if "cuda allreduce" in used:
        used.add("allreduce")
    reasons = {}
    for parameter in table.parameters:
        operation = parameter.operation
        if operation is not None and parameter.name not in frozen and operation not in used:
            where = " of tensors in host memory" if f"cuda {operation}" in used else ""
            reasons[parameter.name] = f"a training step of this job has no {operation}{where}"
    return reasons
