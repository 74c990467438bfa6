"""Numbers as text that comes back exactly, in the plain notation that every reader takes.

``repr`` gives the shortest digits that identify a float, but sometimes with an exponent
(``1e-05``), which YAML 1.1 takes for a string and shells and spreadsheets show badly. Here the same
digits are written out.
"""

from __future__ import annotations

from autotune.space import bytes_to_mib


def exact(value: float) -> str:
    """Return ``value`` without exponent and trailing ``.0``; ``float`` of the text is ``value``."""
    text = repr(float(value))
    if "e" in text:
        from decimal import Decimal

        text = format(Decimal(text), "f")
    return text.removesuffix(".0")


def rounded(value: float, digits: int) -> str:
    """Return ``value`` to ``digits`` significant digits, whole ones to the last, no exponent."""
    text = f"{value:.{digits}g}"
    if "e+" in text:
        return f"{value:.0f}"
    return exact(float(text)) if "e-" in text else text


def exact_mib(value_bytes: int) -> str:
    """Return ``value_bytes`` in MiB; ``space.mib_to_bytes(float(text))`` is ``value_bytes``."""
    return exact(bytes_to_mib(value_bytes))
