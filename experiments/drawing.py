"""What the experiments' pictures share: colours for light and dark pages, axes, equal files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Colours that tell apart what is compared, in this order, also for the colour-blind: blue, red,
# purple, green, brown, grey.
_LIGHT = ("#0969da", "#cf222e", "#8250df", "#1a7f37", "#9a6700", "#6e7781")
_DARK = ("#58a6ff", "#ff7b72", "#bc8cff", "#3fb950", "#d29922", "#8b949e")


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colours of one kind of page.

    Attributes:
        name: Part of the file's name.
        paper, ink, faint: Of the page, of text, of lines that should not be looked at.
        colours: Of what is compared.
    """

    name: str
    paper: str
    ink: str
    faint: str
    colours: tuple[str, ...]


LIGHT = Theme(name="light", paper="#ffffff", ink="#1f2328", faint="#d0d7de", colours=_LIGHT)
DARK = Theme(name="dark", paper="#0d1117", ink="#e6edf3", faint="#30363d", colours=_DARK)
THEMES = (LIGHT, DARK)


def style(axes: Iterable[Axes], theme: Theme) -> None:
    """Give finished ``axes`` the theme's colours, and no frame."""
    for one in axes:
        one.set_facecolor(theme.paper)
        for side, spine in one.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(theme.faint)
        one.tick_params(colors=theme.ink, which="both", labelsize=8)
        one.grid(axis="y", color=theme.faint, linewidth=0.5, alpha=0.6)
        one.set_axisbelow(True)
        for text in (one.xaxis.label, one.yaxis.label, one.title):
            text.set_color(theme.ink)
        legend = one.get_legend()
        if legend is not None:
            legend.get_frame().set(facecolor=theme.paper, edgecolor=theme.faint)
            for text in (legend.get_title(), *legend.get_texts()):
                text.set_color(theme.ink)


def save(figure: Figure, path: Path, theme: Theme) -> None:
    """Write ``figure``; equal figures are equal files."""
    figure.set_facecolor(theme.paper)
    fixed = {"svg.fonttype": "none", "svg.hashsalt": path.stem}
    with matplotlib.rc_context(fixed):
        figure.savefig(path, metadata={"Date": None})
