"""A tuned configuration for launchers and queues other than ``horovodrun``.

``mpirun`` and ``mpiexec`` are arguments for a command line of one's own::

    mpirun $(autotune best log.csv --format mpirun) -np 4 python train.py      # Open MPI
    mpiexec $(autotune best log.csv --format mpiexec) -n 4 python train.py     # MPICH, Intel MPI

``slurm`` and ``pbs`` are whole batch scripts, ``k8s`` is the ``env`` block of an MPIJob's launcher
container. Values are plain numbers, so nothing needs quoting in a shell.
"""

from __future__ import annotations

from autotune.result import SCORE_UNIT, Result, environment, gain_text, start_up_of
from autotune.tables.nccl import ALGORITHMS, LEAST_BYTES, NCCL_PARAMETERS, PROTOCOLS

TRAIN = "python train.py"
"""Stands for the job's own command in scripts."""


def mpirun(result: Result) -> str:
    """Return the arguments of Open MPI's mpirun: it passes only variables that ``-x`` names."""
    return " ".join(f"-x {pair}" for pair in _pairs(result))


def mpiexec(result: Result) -> str:
    """Return the arguments of mpiexec of MPICH and Intel MPI."""
    return " ".join(f"-genv {name} {text}" for name, text in environment(result.params).items())


def slurm(result: Result) -> str:
    """Return a batch script for Slurm; srun passes on what the script exports."""
    size, local_size = _shape(result)
    return "\n".join(
        [
            "#!/bin/bash",
            f"#SBATCH --ntasks={size}",
            f"#SBATCH --ntasks-per-node={local_size}",
            *_about(result),
            *(f"export {pair}" for pair in _pairs(result)),
            f"srun --mpi=pmix --export=ALL {TRAIN}",
        ]
    )


def pbs(result: Result) -> str:
    """Return a batch script for PBS; ``env`` reaches all hosts under any mpiexec."""
    size, local_size = _shape(result)
    hosts = -(-size // local_size)
    variables = (f"  {pair} \\" for pair in _pairs(result))
    return "\n".join(
        [
            "#!/bin/bash",
            f"#PBS -l select={hosts}:ncpus={local_size}:mpiprocs={local_size}",
            *_about(result),
            'cd "${PBS_O_WORKDIR:-.}"',
            f"mpiexec -n {size} env \\",
            *variables,
            f"  {TRAIN}",
        ]
    )


def k8s(result: Result) -> str:
    """Return the ``env`` block of the launcher container of a Kubeflow MPIJob."""
    lines = [
        *_about(result),
        "# goes to spec.mpiReplicaSpecs.Launcher.template.spec.containers[0]; horovodrun passes it",
        "# on to the workers, plain mpirun wants '-x NAME' for each",
        "env:",
    ]
    for name, text in environment(result.params).items():
        lines += [f"  - name: {name}", f'    value: "{text}"']
    return "\n".join(lines)


def nccl(result: Result) -> str:
    """Return ``nccl_tuner.conf`` for NVIDIA's example tuner, with this package's variables above.

    Fields: collective, least and most bytes, algorithm, protocol, channels (-1: NCCL's own), nodes,
    ranks, operations in the group and registered buffers (-1: any).

    Source: NCCL, plugins/tuner/example/README.md.
    """
    values = result.params.as_dict()
    algorithm, protocol, channels = (int(values[row.name]) for row in NCCL_PARAMETERS)
    lines = [
        *_about(result),
        "# this package's own tuner takes it by autotune replay, or by",
        *(f"#   {row.env}={row.format(values[row.name])}" for row in NCCL_PARAMETERS),
    ]
    if not (algorithm or protocol or channels):
        return "\n".join([*lines, "# NCCL's own choices are kept: there is nothing to set"])
    if not (algorithm and protocol):
        lines.append(
            "# the example's tuner wants an algorithm and a protocol: NCCL mostly has these"
        )
    row = [
        "allreduce",
        str(LEAST_BYTES),
        str(2**32 - 1),
        ALGORITHMS[algorithm] or "ring",
        PROTOCOLS[protocol] or "simple",
        str(channels or -1),
    ]
    return "\n".join([*lines, ",".join([*row, "-1", "-1", "-1", "-1"])])


def _pairs(result: Result) -> list[str]:
    pairs = {**environment(result.params), **start_up_of(result)}
    return [f"{name}={text}" for name, text in pairs.items()]


def _shape(result: Result) -> tuple[int, int]:
    """Return ranks and ranks a host of the tuned job; 2 and 1 where the log does not say."""
    size, local_size = result.job.get("size", 2), result.job.get("local_size", 1)
    known = all(isinstance(number, int) and number > 0 for number in (size, local_size))
    return (size, local_size) if known else (2, 1)


def _about(result: Result) -> list[str]:
    """Return comment lines: where the values come from and what they are worth."""
    answer = "the best so far" if result.promising is None else "the default, until more is known"
    state = "finished" if result.finished else f"NOT finished: {answer}"
    lines = [f"# found by autotune; tuning {state}; gain {gain_text(result)}"]
    if result.score is not None:
        lines.append(f"# score {result.score:.6g} {SCORE_UNIT}")
    if not result.job:
        lines.append("# the log does not say how many ranks the job had: correct them here")
    return lines
