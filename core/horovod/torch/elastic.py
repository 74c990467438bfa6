"""Elastic jobs (``hvd.elastic``) are not in this version; scripts may import the module.

Every name in it raises the same sentence when it is used.
"""

from __future__ import annotations

from typing import NoReturn

_SENTENCE = (
    "horovod.torch.elastic.{} is not in this version: jobs have a fixed size; save checkpoints "
    "and start the job again instead"
)


def run(func: object) -> NoReturn:
    """Raise: elastic jobs are not in this version.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError(_SENTENCE.format("run"))


class _Missing:
    """Raises when it is instantiated."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError(_SENTENCE.format(type(self).__name__))


class TorchState(_Missing):
    """Not in this version."""


class ElasticSampler(_Missing):
    """Not in this version."""


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(_SENTENCE.format(name))
