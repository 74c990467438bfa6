"""Elastic jobs (``hvd.elastic``) are not in this version; scripts may import the module."""

from __future__ import annotations

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"horovod.tensorflow.keras.elastic.{name} is not in this version: jobs have a fixed size; "
        "save checkpoints and start the job again instead"
    )
