"""Numbers as text that comes back exactly, in the plain notation that every reader takes.

``repr`` gives the shortest digits that identify a float, but sometimes with an exponent
(``1e-05``), which YAML 1.1 takes for a string and shells and spreadsheets show badly. Here the same
digits are written out.
"""

from __future__ import annotations

from autotune.space import Parameter, Value


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


def exact_shown(parameter: Parameter, value: Value) -> str:
    """Return ``value`` in the unit that people read; ``parameter.of_shown`` inverts it.

    Whole numbers of ``unit`` come back exactly where ``units_in_shown`` is a power of two: below
    2**53 such a quotient is an exact binary fraction.
    """
    if parameter.units_in_shown == 1 and parameter.type is not float:
        return str(int(value))
    return exact(value / parameter.units_in_shown)


def rounded_shown(parameter: Parameter, value: Value, digits: int) -> str:
    """Return ``value`` in the unit that people read, to so many digits; its word if it has one."""
    if 0 <= value < len(parameter.names):
        return parameter.names[int(value)]
    if parameter.units_in_shown == 1 and parameter.type is not float:
        return str(int(value))
    return rounded(value / parameter.units_in_shown, digits)


def value_text(parameter: Parameter, value: Value) -> str:
    """Return a value for a sentence: ``fusion 16 MiB``, ``cycle 1 ms``, ``cache off``."""
    if parameter.type is bool:
        text = "on" if value else "off"
    elif parameter.zero_is_special and not value:
        text = parameter.zero_word
    else:
        text = f"{rounded_shown(parameter, value, 4)} {parameter.shown_unit}".rstrip()
    return f"{parameter.word} {text}"
