"""A figure as SVG inside a page: text stays text, and style sheets say the colours.

Figures are drawn in colours that stand for names (``MARKED``); in the SVG these become variables of
the page's style sheet, so one picture is readable on light and on dark paper.
"""

from __future__ import annotations

import html
import io
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from autotune.report.figures import Palette

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = tuple(field.name for field in fields(Palette))
_MARKS = {name: f"#0000{number:02x}" for number, name in enumerate(_NAMES, 1)}
MARKED = Palette(**_MARKS)
"""Colours that ``inline`` replaces by variables of the same names."""


def inline(figure: Figure, *, key: str, title: str, description: str) -> str:
    """Return an ``<svg>`` element.

    Args:
        figure: Drawn with ``MARKED``.
        key: Makes its ids unique in the page.
        title: What a screen reader calls it.
        description: What there is to see.
    """
    import matplotlib

    key = f"picture-{key}"
    fixed: Any = {
        "svg.hashsalt": key,
        "svg.fonttype": "none",
        "svg.id": key,
        "text.parse_math": False,
    }
    file = io.StringIO()
    with matplotlib.rc_context(fixed):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"#]*">', "<g>", body)
    body = re.sub(r'\bid="', f'id="{key}-', body).replace('xlink:href="#', f'href="#{key}-')
    body = _once(body.replace("url(#", f"url(#{key}-"))
    for name, mark in _MARKS.items():
        body = body.replace(mark, f"var(--{name})")
    body = re.sub(r"font-family: [^;\"]*; ?", "", body)  # the page's own font
    body = re.sub(r"(font: [\d.]+px) [^;\"]*", r"\1 var(--font)", body)
    (width, height) = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', body)[0]
    head = (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="{key}-title {key}-desc">'
        f'<title id="{key}-title">{html.escape(title)}</title>'
        f'<desc id="{key}-desc">{html.escape(description)}</desc>'
    )
    return re.sub(r"^<svg[^>]*>", lambda _: head, body, count=1).strip()


def _once(text: str) -> str:
    """Return markup whose repeated ids are gone: equal ids belong to equal shapes."""
    seen: set[str] = set()

    def kept(match: re.Match[str]) -> str:
        is_new = match[0] not in seen
        seen.add(match[0])
        return match[0] if is_new else ""

    return re.sub(r'\sid="[^"]*"', kept, text)
