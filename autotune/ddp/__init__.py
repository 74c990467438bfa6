"""Tuning of plain DistributedDataParallel while the job trains: nothing of ``horovod`` is needed.

Two ways in, both without a changed line of training: ``autotune run -- torchrun train.py``, or, in
the script and before the model is wrapped::

    import autotune.ddp
    autotune.ddp.install(log="log.csv")

==================  ============================================================================
module              knows
==================  ============================================================================
``entry``           how the adapter gets into a script; imports no torch
``settings``        variables of a job, its description
``meeting``         what ranks tell each other once, at the start
``agreement``       what they agree on while they train: which change, at which step
``lines``           connections between rank 0 and the others
``session``         rank 0's talk with the tuner's service
``steps``           time, exposed communication and content of each step
``adapter``         where all of these meet: one per process
``torch_private``   torch's private parts, and nothing else does
==================  ============================================================================

What fails here is one sentence, and training goes on as it would without.
"""

from autotune.ddp.entry import install, status

__all__ = ["install", "status"]
