"""Slurm's lists of nodes: ``a[01-03,7],b`` stands for a01, a02, a03, a7 and b."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

_ENTRY = re.compile(r"(?:[^\s,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


def expand(text: str) -> list[str]:
    """Return the names of the list ``text``, in its order; an empty one for what is no list."""
    return [name for entry in _ENTRY.findall(text) for name in _names(entry)]


def first_node(text: str) -> str:
    """Return the first name of the list ``text``, "" where it has none."""
    for entry in _ENTRY.findall(text):
        choices = _choices(entry)
        firsts = [name for choice in choices for name in itertools.islice(choice, 1)]
        if len(firsts) == len(choices):
            return "".join(firsts)
    return ""


def repeated(text: str) -> list[int]:
    """Return the numbers of a list like SLURM_TASKS_PER_NODE: ``2(x3),1`` is 2, 2, 2, 1."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(number) for number, times in found for _ in range(int(times or 1))]


def _names(entry: str) -> Iterator[str]:
    return map("".join, itertools.product(*_choices(entry)))


def _choices(entry: str) -> list[Iterator[str]]:
    """Return what each part of an entry may be, in order."""
    parts = _BRACKETS.split(entry)  # plain, inside of brackets, plain, ...
    return [_numbers(part) if i % 2 else iter((part,)) for i, part in enumerate(parts)]


def _numbers(text: str) -> Iterator[str]:
    """Yield the numbers of ``01-03,7``, with the zeros that fill them up."""
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if dash and low.isdecimal() and high.isdecimal():
            yield from (f"{i:0{len(low)}d}" for i in range(int(low), int(high) + 1))
        elif part.strip():
            yield part.strip()
