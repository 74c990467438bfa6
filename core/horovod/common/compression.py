"""What a compression of gradients is, and the one that does nothing."""

from __future__ import annotations

from typing import Any, ClassVar


class Compressor:
    """Interface of a compression: two static functions around a reduction.

    Attributes:
        wire_type: What ``compress`` makes of a float32 tensor, if all it does is to change its
            type: the engine does that itself where it can, on its way through a GPU's memory.
        may_compress: The engine may let float32 tensors travel in a shorter type where the
            parameters in force say so.
    """

    wire_type: ClassVar[str | None] = None
    may_compress: ClassVar[bool] = False

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, object]:
        """**Local.** Return (what travels, context for ``decompress``)."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """**Local.** Return the tensor in its first form."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """What travels is the tensor itself."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, object]:
        """**Local.** Return (``tensor``, None)."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """**Local.** Return ``tensor``."""
        return tensor


class AsTuned(NoneCompressor):
    """What an optimizer's gradients without a compression have: the user may have it tuned."""

    may_compress = True
