"""Compression of gradients before they are reduced."""

from __future__ import annotations

from typing import ClassVar

import torch

from horovod.common.compression import Compressor, NoneCompressor

__all__ = [
    "BF16Compressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "NoneCompressor",
    "compresses",
]


class _CastCompressor(Compressor):
    """Floating-point tensors travel in a shorter type; others as they are."""

    dtype: ClassVar[torch.dtype]

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        """**Local.** Return (``tensor`` in the short type, its type)."""
        if not tensor.dtype.is_floating_point:
            return tensor, None
        return tensor.to(cls.dtype), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        """**Local.** Return ``tensor`` in the type that it had."""
        return tensor.to(ctx) if isinstance(ctx, torch.dtype) else tensor


class FP16Compressor(_CastCompressor):
    """Floating-point tensors travel as float16."""

    wire_type = "float16"
    dtype = torch.float16


class BF16Compressor(_CastCompressor):
    """Floating-point tensors travel as bfloat16."""

    wire_type = "bfloat16"
    dtype = torch.bfloat16


def compresses(tensor: torch.Tensor, wire_type: str | None) -> bool:
    """**Local.** Return whether the engine itself can let ``tensor`` travel as ``wire_type``."""
    return wire_type is not None and tensor.dtype is torch.float32 and tensor.is_cuda


class Compression:
    """The compressions that there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
