"""The tables of the README from the stored results."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import spread

Row = list[Any]


def report(folder: Path) -> str:
    """Return what ``folder`` holds, part by part."""
    parts: dict[str, Callable[[dict[str, Any]], str]] = {
        "gradients": gradients,
        "steps": steps,
        "host": host,
        "tuning": tuning,
        "slow_tuning": tuning,
    }
    found = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        ranks, part = path.stem.split("-", 1)
        title = f"### {part}, {ranks} ranks\n\n{about_line(content['about'])}"
        found.append(f"{title}; {content['seconds']} s\n\n{parts[part](content['result'])}")
    return "\n\n".join(found)


def about_line(about: dict[str, Any]) -> str:
    names = ("cards", "driver", "cuda", "nccl", "torch", "mpi", "python", "commit", "date")
    words = [f"{name} {about[name]}" for name in names if about.get(name)]
    defaults = about["defaults"]
    threshold, cycle = defaults["fusion_threshold_bytes"] / 2**20, defaults["cycle_time_ms"]
    return ", ".join(words) + f", our default {threshold:g} MiB, {cycle:g} ms"


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    head = list(head)
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def name(key: Row) -> str:
    """Return a turn for people."""
    kind, *values = key
    if kind == "ddp":
        return f"DDP, {values[0]:g} MB{', gradients are views' if values[1] else ''}"
    titles = {
        "floor": "one flat NCCL allreduce",
        "each": "torch.distributed, one allreduce per tensor",
        "single": "ours, one by one",
        "grouped": "ours, one group",
        "ours": "ours",
        "alone": "without communication",
    }
    place = f", {values[0]:g} MiB, {values[1]:g} ms" if values else ""
    return titles[kind] + place


def find(rows: list[Row], key: Row) -> list[float]:
    return next(values for other, values in rows if other == key)


def marked(key: Row, default: Row, best: list[Row]) -> str:
    words = ["default"] * (key[1:] == default) + ["best"] * (key in best)
    return f" ({', '.join(words)})" if words else ""


def grid(rows: list[Row], kind: str, scale: float) -> str:
    """Return the medians of the search over ``scale``."""
    cells = {
        (k[1], k[2]): statistics.median(v) / scale for k, v in rows if k[0] == kind and len(k) == 3
    }
    cycles = sorted({cycle for _, cycle in cells})
    head = ["MiB \\ ms", *(f"{cycle:g}" for cycle in cycles)]
    lines = [
        [f"{size:g}", *(f"{cells[size, cycle]:.2f}" for cycle in cycles)]
        for size in sorted({size for size, _ in cells})
    ]
    return table(head, lines)


def gradients(result: dict[str, Any]) -> str:
    texts = []
    for title, part in result.items():
        rows = part["in_turns"]
        floor = find(rows, ["floor"])
        lines = []
        for key, values in rows:
            ratio = statistics.median(a / b for a, b in zip(values, floor, strict=True))
            mark = marked(key, part["default"], list(part["best"].values()))
            lines.append([name(key) + mark, spread(values, 3), f"{ratio:.2f}"])
        samples = len(floor)
        texts.append(
            f"{title}: {part['tensors']} tensors, {part['bytes'] / 1e6:.1f} MB; ms, medians "
            f"(min-max) of {samples} rounds of {part['steps_per_sample']} steps\n\n"
            + table(["", "ms", "x floor"], lines)
        )
        middle = statistics.median(find(part["grid"], ["floor"]))
        for kind in part["best"]:
            texts.append(
                f"{name([kind])}, x floor by threshold and cycle time (the search):\n\n"
                + grid(part["grid"], kind, middle)
            )
    return "\n\n".join(texts)


def steps(result: dict[str, Any]) -> str:
    lines = []
    for title, part in result.items():
        rows, exposed = part["in_turns"], part["exposed_ms"]
        alone = statistics.median(find(rows, ["alone"]))
        for key, values in rows:
            mark = marked(key, part["default"], part["best"]) if key[0] == "ours" else ""
            efficiency = alone / statistics.median(values)
            cells = [title, name(key) + mark, spread(values, 2)]
            lines.append([*cells, f"{find(exposed, key):.2f}", f"{efficiency:.1%}"])
    head = ["network", "", "ms a step", "exposed, ms", "scaling efficiency"]
    texts = [table(head, lines)]
    for title, part in result.items():
        buckets = [(k, v) for k, v in part["grid"] if k[0] == "ddp"]
        cells = [f"{k[1]:g} MB: {statistics.median(v):.1f}" for k, v in buckets]
        texts.append(
            f"{title}, the search: DDP, ms: {', '.join(cells)}; distance of the weights to DDP's "
            f"after 3 steps {part['distance_to_ddp']:.1e}; ours, ms a step:\n\n"
            + grid(part["grid"], "ours", 1.0)
        )
    return "\n\n".join(texts)


def host(result: dict[str, Any]) -> str:
    times = {key: statistics.median(values) for key, values in result["us_per_tensor"].items()}
    plain = times["plain"]
    lines = [
        ["hooks: backward pass with less without", f"{times['hooks'] - plain:.2f}"],
        ["the same of DDP", f"{times['ddp'] - plain:.2f}"],
        ["optimizer.synchronize()", f"{times['synchronize']:.2f}"],
        ["allreduce_async_", f"{times['enqueue']:.2f}"],
        ["synchronize", f"{times['wait']:.2f}"],
        ["grouped_allreduce_async_", f"{times['enqueue_group']:.2f}"],
        ["synchronize of the group", f"{times['wait_group']:.2f}"],
    ]
    about = f"{result['tensors']} tensors, medians of {result['rounds']} rounds"
    return f"{about}\n\n" + table(["host time", "us a tensor"], lines)


def tuning(result: dict[str, Any]) -> str:
    lines = []
    for link, run in result.items():
        windows = dict(run["windows"])
        pairs = zip(windows["default"], windows["final"], strict=True)
        measured = statistics.median(default / final for default, final in pairs) - 1
        claimed = f"{run['gain']:+.1%}, at least {run['gain_low']:+.1%}" if run["certified"] else ""
        final = run["final"]
        setting = f"{final['fusion_threshold_bytes'] / 2**20:g} MiB, {final['cycle_time_ms']:g} ms"
        kept = run["finished"] and not run["certified"]  # both windows are of the default
        cells = [link, str(run["trials"]), str(run["certificate_windows"]), str(run["steps"])]
        cells += [f"{run['seconds']:.0f}", "done" if run["finished"] else "cut short", claimed]
        cells += [spread(windows[key]) for key in ("alone", "default", "final")]
        cells += ["none: the same", setting] if kept else [f"{measured:+.1%}", setting]
        lines.append(cells)
    head = ["links", "trials", "certificate windows", "steps", "s", "", "certified gain"]
    head += ["without, ms", "default, ms", "final, ms", "measured gain", "final"]
    reasons = [f"{link}: {run['reason'] or run['text']}" for link, run in result.items()]
    return "\n\n".join([table(head, lines), *reasons])
