"""Compression of gradients before they are reduced."""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf
from horovod.common.compression import Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _CastCompressor(Compressor):
    """Floating-point tensors travel in a shorter type; others as they are."""

    dtype: ClassVar[Any]

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, object]:
        """**Local.** Return (``tensor`` in the short type, its type)."""
        if not tensor.dtype.is_floating:
            return tensor, None
        return tf.cast(tensor, cls.dtype), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """**Local.** Return ``tensor`` in the type that it had."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_CastCompressor):
    """Floating-point tensors travel as float16."""

    wire_type = "float16"
    dtype = tf.float16


class BF16Compressor(_CastCompressor):
    """Floating-point tensors travel as bfloat16."""

    wire_type = "bfloat16"
    dtype = tf.bfloat16


class Compression:
    """The compressions that there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
