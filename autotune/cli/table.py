"""Tables as plain text: the same in a terminal, a pipe and a file."""

from __future__ import annotations

import io
from collections.abc import Sequence

_WIDEST = 100_000
"""Columns of text; nothing is wrapped or cut, so that a line is a row for whatever reads it."""


def lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line per row below the header's; columns are two blanks apart, flush right.

    Args:
        header: Of each column; of several lines where it holds line breaks.
        rows: Cells without line breaks.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, collapse_padding=True, padding=(0, 2))
    for title in header:
        table.add_column(Text(title), justify="right", no_wrap=True, vertical="bottom")
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    console = Console(file=io.StringIO(), width=_WIDEST, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]
