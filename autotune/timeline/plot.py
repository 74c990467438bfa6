"""A picture of the steps: phases as stacked bars, and by how much which rank was late.

SVG, written here: no plotting library is needed. The colours follow the reader's light or dark
setting.
"""

from __future__ import annotations

import math
from html import escape
from statistics import median

from autotune.errors import TimelineError
from autotune.timeline.findings import duration
from autotune.timeline.phases import Phase
from autotune.timeline.report import TimelineReport

BARS = 60
"""Neighbouring steps share a bar when there are more."""

_WIDTH, _LEFT, _RIGHT = 900, 70, 20
_TOP, _HEIGHT, _GAP, _LATE_HEIGHT = 96, 240, 64, 100
_PANEL = _TOP + _HEIGHT + _GAP + _LATE_HEIGHT + 40
_PLOT_WIDTH = _WIDTH - _LEFT - _RIGHT

# Colour-blind safe (Okabe and Ito); by phase: light, dark.
_COLOURS = {
    Phase.TRANSFER: ("#0072b2", "#56a8de"),
    Phase.COPIES: ("#56b4e9", "#9bd4f5"),
    Phase.QUEUE: ("#009e73", "#3cc79d"),
    Phase.DATA: ("#f0e442", "#f0e442"),
    Phase.PROTOCOL: ("#cc79a7", "#dd9cc0"),
    Phase.NEGOTIATION: ("#e69f00", "#f0b63c"),
    Phase.LAST_RANK: ("#d55e00", "#ee8434"),
    Phase.IDLE: ("#d9d9d9", "#4a4a4a"),
}
_RANK_COLOURS = (
    ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    ("#56a8de", "#ee8434", "#3cc79d", "#dd9cc0", "#f0b63c", "#9bd4f5"),
)  # light, dark
_TITLE_LENGTH = 70
_STYLE = "text{font:12px sans-serif}.title{font-size:15px}"


def save(reports: list[TimelineReport], path: str) -> None:
    """Write the picture of ``reports``, one panel each.

    Raises:
        TimelineError: No file has steps, or ``path`` cannot be written.
    """
    for report in reports:
        if not len(report.steps):
            raise TimelineError(f"{report.path}: no steps to draw")
    content = draw(reports)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
    except OSError as error:
        raise TimelineError(f"{path}: {(error.strerror or str(error)).lower()}") from None


def draw(reports: list[TimelineReport]) -> str:
    """Return the picture as SVG text; panels share one scale."""
    bars = [_bars(report) for report in reports]
    top_us = max(_top([sum(bar[0]) for bar in all_of_one]) for all_of_one in bars)
    late_us = max(_top([bar[2] for bar in all_of_one if bar[2] > 0]) for all_of_one in bars)
    height = _PANEL * len(reports)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img">',
        f"<style>{_STYLE}{_theme(0)}@media (prefers-color-scheme: dark){{{_theme(1)}}}</style>",
        f'<rect class="back" width="{_WIDTH}" height="{height}"/>',
    ]
    for number, (report, all_of_one) in enumerate(zip(reports, bars, strict=True)):
        parts.append(f'<g transform="translate(0 {number * _PANEL})">')
        parts += _panel(report, all_of_one, top_us, late_us)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


_Bar = tuple[list[float], int, float]  # phases, rank that was late most, by how much


def _bars(report: TimelineReport) -> list[_Bar]:
    """Return the mean of neighbouring steps, at most ``BARS`` of them."""
    steps, bars = report.steps, []
    each = max(1, math.ceil(len(steps) / BARS))
    for start in range(0, len(steps), each):
        rows = range(start, min(start + each, len(steps)))
        phases = [sum(column[i] for i in rows) / len(rows) for column in steps.phases]
        late: dict[int, float] = {}
        for i in rows:
            late[steps.late_rank[i]] = late.get(steps.late_rank[i], 0.0) + steps.late_us[i]
        rank = max(late, key=late.__getitem__)
        bars.append((phases, rank, late[rank] / len(rows)))
    return bars


def _top(lengths: list[float]) -> float:
    """Return the scale's end: an odd bar, much longer than most, is cut rather than obeyed."""
    return min(max(lengths), 3 * median(lengths)) if lengths else 0.0


def _panel(report: TimelineReport, bars: list[_Bar], top_us: float, late_us: float) -> list[str]:
    each = math.ceil(len(report.steps) / BARS)
    unit = "step" if each == 1 else f"{each} steps (mean)"
    parts = [_text(_LEFT, 24, f"{_short(report.path)}: where each step's time goes", "title")]
    parts += _legend(report)
    parts += _axis(_TOP, _HEIGHT, top_us)
    width = _PLOT_WIDTH / len(bars)
    for number, (phases, _, _) in enumerate(bars):
        parts += _stack(_LEFT + number * width, width * 0.86, phases, top_us)
    bottom = _TOP + _HEIGHT
    cut = sum(sum(phases) > top_us for phases, _, _ in bars)
    note = f"; longer than shown: {cut}" if cut else ""
    parts.append(_text(_LEFT, bottom + 18, f"one bar: one {unit}, from left to right{note}"))
    return parts + _late_panel(bars, bottom + _GAP, width, late_us)


def _short(path: str) -> str:
    """Return the end of a path that is longer than the picture is wide."""
    return path if len(path) <= _TITLE_LENGTH else "..." + path[-_TITLE_LENGTH:]


def _stack(x: float, width: float, phases: list[float], top_us: float) -> list[str]:
    parts, y = [], float(_TOP + _HEIGHT)
    for phase in Phase:
        height = min(phases[phase] / (top_us or 1.0) * _HEIGHT, y - _TOP)
        if height <= 0:
            continue
        y -= height
        hint = f"<title>{phase.label}: {duration(phases[phase])}</title>"
        parts.append(_box(x, y, width, height, f"p{phase.value}", hint))
    return parts


def _late_panel(bars: list[_Bar], top: float, width: float, late_us: float) -> list[str]:
    if late_us <= 0:
        return [_text(_LEFT, top, "late ranks: unknown or none")]
    ranks = sorted({bar[1] for bar in bars if bar[1] >= 0})
    parts = [_text(_LEFT, top - 8, "the last rank of each step, and how late it was:")]
    for place, rank in enumerate(ranks[:6]):
        x = _LEFT + 290.0 + 80 * place
        parts += [_box(x, top - 18, 10, 10, f"r{rank % 6}"), _text(x + 14, top - 8, f"rank {rank}")]
    parts += _axis(top, _LATE_HEIGHT, late_us)
    for number, (_, rank, late) in enumerate(bars):
        height = min(late / late_us, 1.0) * _LATE_HEIGHT
        if rank >= 0 and height > 0:
            x, y = _LEFT + number * width, top + _LATE_HEIGHT - height
            hint = f"<title>rank {rank}: {duration(late)}</title>"
            parts.append(_box(x, y, width * 0.86, height, f"r{rank % 6}", hint))
    return parts


def _legend(report: TimelineReport) -> list[str]:
    parts, x, y = [], float(_LEFT), 40
    for phase in Phase:
        if not any(report.steps.phases[phase]):
            continue
        length = 30 + 6.6 * len(phase.label)
        if x + length > _WIDTH:
            x, y = _LEFT, y + 18
        parts += [_box(x, y, 10, 10, f"p{phase.value}"), _text(x + 14, y + 10, phase.label)]
        x += math.ceil(length)
    return parts


def _axis(top: float, height: float, end_us: float) -> list[str]:
    parts = []
    for part in range(5):
        y = top + height * (1 - part / 4)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        text = duration(end_us * part / 4) if part else "0"
        parts.append(_text(_LEFT - 8, y + 4, text, "end"))
    return parts


def _box(x: float, y: float, width: float, height: float, kind: str, inside: str = "") -> str:
    shape = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    return f'<rect class="{kind}" {shape}>{inside}</rect>'


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    anchor = ' text-anchor="end"' if kind == "end" else ""
    name = ' class="title"' if kind == "title" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{anchor}{name}>{escape(text)}</text>'


def _theme(dark: int) -> str:
    rules = [
        f".back{{fill:{('#ffffff', '#1b1b1b')[dark]}}}",
        f"text{{fill:{('#222222', '#e8e8e8')[dark]}}}",
        f".grid{{stroke:{('#e5e5e5', '#3a3a3a')[dark]}}}",
    ]
    rules += [f".p{phase.value}{{fill:{_COLOURS[phase][dark]}}}" for phase in Phase]
    rules += [f".r{number}{{fill:{colour}}}" for number, colour in enumerate(_RANK_COLOURS[dark])]
    return "".join(rules)
