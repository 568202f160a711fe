"""The figure and the numbers of a real deployment, from the logs its server keeps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedpbc.errors import ConfigError
from fedpbc.io.journal import Journal
from fedpbc.io.participation import Reading, read_participation
from fedpbc.plots.palette import COLORS
from fedpbc.plots.style import own_style

STATES = {"heard": COLORS[1], "still catching up": COLORS[4], "reply refused": COLORS[0], "not heard": "0.93"}
NEEDED = {"active", "caught_up", "catching_up", "refused", "failed", "bytes_down", "bytes_up", "seconds"}
UNMET = re.compile(r"node [0-9]{10,}")
"""How a node is called that never said who it is."""
MAX_NAMES, MAX_ROUNDS = 40, 2000
"""More clients are drawn without names; of more rounds the latest are drawn."""


@dataclass(frozen=True)
class Deployment:
    """What participation.jsonl, metrics.jsonl and evaluation.jsonl say, by round."""

    path: Path
    clients: list[str]
    rounds: list[dict[str, Any]]
    heard: list[set[str]]
    curves: dict[str, list[tuple[int, float]]]
    """Metric -> (round, value): evaluated by the server, else by the clients, else of their training."""
    measured: str
    """By whom the curves were: "server", "clients", or "train", by the clients that trained."""
    measured_in: tuple[int, ...]
    """The rounds of the curves."""


def read_deployment(path: Path) -> Deployment:
    """The logs of a deployment; who was heard is read as the audit reads it.

    Raises ConfigError when no round is closed yet, and for a participation log that the audit refuses.
    """
    metrics = {line["round"]: line for line in Journal(path / "metrics.jsonl").lines() if line.keys() >= NEEDED}
    heard = _heard(path / "participation.jsonl")
    rounds = sorted(metrics.keys() & heard.keys())
    if not rounds:
        raise ConfigError(f"{path}: no round is closed yet")
    names = set().union(*heard.values())
    for line in metrics.values():
        names |= set(line["catching_up"]) | {entry["client"] for entry in [*line["refused"], *line["failed"]]}
    names = {name for name in names if not UNMET.fullmatch(name)}
    evaluations = Journal(path / "evaluation.jsonl").lines()
    lines = {"server": evaluations, "clients": evaluations, "train": list(metrics.values())}
    measured = next((kind for kind in lines if _curves(lines[kind], kind)), "train")
    curves = _curves(lines[measured], measured)
    return Deployment(
        path, sorted(names, key=_natural), [metrics[t] for t in rounds], [heard[t] for t in rounds], curves, measured,
        tuple(sorted({t - 1 for points in curves.values() for t, _ in points})),
    )  # fmt: skip


def _heard(path: Path) -> dict[int, set[str]]:
    """Round -> the clients heard in it, of every round that the log knows of."""
    if not path.is_file() or not path.stat().st_size:
        return {}
    log = read_participation(path, Reading(missing_rounds="unknown"))
    heard: dict[int, set[str]] = {log.first_round + t: set() for t in range(log.num_rounds)}
    for t, i in zip(log.rounds.tolist(), log.members.tolist(), strict=True):
        heard[log.first_round + t].add(log.clients[i])
    for t in log.unknown.tolist():
        del heard[log.first_round + t]
    return heard


def _curves(lines: list[dict[str, Any]], kind: str) -> dict[str, list[tuple[int, float]]]:
    curves: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        for name, value in (line.get(kind) or {}).items():
            if isinstance(value, (int, float)) and abs(value) < 1e300:
                curves.setdefault(name, []).append((line["round"] + 1, float(value)))
    return curves


def _natural(name: str) -> list[Any]:
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part), "") if i % 2 else (1, 0, part) for i, part in enumerate(parts) if part]


def draw_deployment(deployment: Deployment) -> Figure:
    """Draw the metrics, which clients were heard in which round, and how long rounds took. Rounds count from 1."""
    with own_style({}):
        curves = list(deployment.curves.items())[:2]
        height = 0.16 * min(len(deployment.clients), MAX_NAMES) + 0.7
        heights = [1.7] * len(curves) + [height, 1.0]
        figure = Figure(figsize=(7.5, sum(heights) + 0.7), layout="constrained")
        axes = figure.subplots(len(heights), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
        for ax, (name, points) in zip(axes, curves, strict=False):
            _curve(ax, name, points)
        _participation(axes[-2], deployment)
        _seconds(axes[-1], deployment)
        axes[0].set_xlim(deployment.rounds[-MAX_ROUNDS:][0]["round"] + 0.5, deployment.rounds[-1]["round"] + 1.5)
        title = f"deployment: {deployment.path.resolve().name}"
        figure.suptitle(title, fontsize=11, fontweight="bold", parse_math=False)
        patches = [Patch(color=color, label=state) for state, color in STATES.items()]
        figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
        return figure


def _curve(ax: Axes, name: str, points: list[tuple[int, float]]) -> None:
    rounds, values = np.array(points[-MAX_ROUNDS:]).T
    ax.plot(rounds, values, color="0.2", linewidth=1.3, marker="." if len(rounds) <= 60 else "")
    ax.set_ylabel(name.replace("_", " "), fontsize=8)
    if np.all(values > 0) and values.max() > 100 * values.min():
        ax.set_yscale("log")
        ax.tick_params(which="minor", labelsize=7)
    _plain(ax)


def _participation(ax: Axes, deployment: Deployment) -> None:
    rounds, names = deployment.rounds[-MAX_ROUNDS:], deployment.clients or ["nobody"]
    codes = np.full((len(names), len(rounds)), 3)
    place = {name: i for i, name in enumerate(names)}
    for column, (line, heard) in enumerate(zip(rounds, deployment.heard[-MAX_ROUNDS:], strict=True)):
        by_state = (heard, line["catching_up"], [entry["client"] for entry in line["refused"]])
        for code, who in reversed(list(enumerate(by_state))):
            codes[[place[name] for name in who if name in place], column] = code
    first, last = rounds[0]["round"] + 0.5, rounds[-1]["round"] + 1.5
    image = np.array([_rgb(color) for color in STATES.values()])[codes]
    ax.imshow(image, aspect="auto", interpolation="nearest", extent=(first, last, len(names) - 0.5, -0.5))
    ax.set_ylabel("client", fontsize=8)
    ax.tick_params(labelsize=8)
    if len(names) <= MAX_NAMES:
        for tick in ax.set_yticks(range(len(names)), names, fontsize=7):
            tick.label1.set_parse_math(False)


def _seconds(ax: Axes, deployment: Deployment) -> None:
    rounds = deployment.rounds[-MAX_ROUNDS:]
    ax.bar([line["round"] + 1 for line in rounds], [line["seconds"] for line in rounds], width=0.9, color="0.6")
    ax.set_ylabel("seconds", fontsize=8)
    ax.set_xlabel("round")
    ax.locator_params(axis="x", integer=True)
    _plain(ax)


def _rgb(color: str) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    return to_rgb(color)


def _plain(ax: Axes) -> None:
    ax.grid(True, alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)


def describe_deployment(deployment: Deployment) -> list[tuple[str, str]]:
    """A summary over all rounds, as pairs (what, how much)."""
    rounds = deployment.rounds

    def total(key: str) -> int:
        return sum(line[key] if isinstance(line[key], int) else len(line[key]) for line in rounds)

    last = [(name.replace("_", " "), f"{points[-1][1]:.4g}") for name, points in deployment.curves.items()]
    active = [line["active"] for line in rounds]
    return [
        ("rounds", f"{len(rounds)}, {sum(count == 0 for count in active)} of them without anybody"),
        ("clients", f"{len(deployment.clients)}, on average {np.mean(active):.1f} heard in a round"),
        ("missed rounds caught up", f"{total('caught_up'):,}"),
        ("replies refused", f"{total('refused'):,}"),
        ("sent, received", f"{_bytes(total('bytes_down'))}, {_bytes(total('bytes_up'))}"),
        ("seconds a round, median", f"{np.median([line['seconds'] for line in rounds]):.1f}"),
        *last,
    ]


def warnings_of(deployment: Deployment) -> list[str]:
    """What the numbers cannot be trusted with: that they are means over the clients that replied, and how uneven.

    A client's say is the mean over the rounds with numbers of 1{heard} / |heard|; evenly it were 1/m.
    """
    if deployment.measured == "server" or not deployment.curves:
        return []
    heard = {line["round"]: names for line, names in zip(deployment.rounds, deployment.heard, strict=True)}
    asked = [heard[t] for t in deployment.measured_in if heard.get(t)]
    m = len(deployment.clients)
    if not asked or m < 2:
        return []
    say = {name: sum((name in names) / len(names) for names in asked) / len(asked) for name in deployment.clients}
    least = sum(sorted(say.values())[: m // 2])
    what = "evaluated" if deployment.measured == "clients" else "measured in training"
    away = sum(abs(value - 1 / m) for value in say.values()) / 2
    return [
        f"{', '.join(deployment.curves)}: {what} by the clients that were heard, not by all: the {m // 2} of {m} heard "
        f"least have {least:.0%} of the say, and {away:.0%} of it is with other clients than if all had the same. "
        "Where their data differ it is optimistic; evaluate_fn on the server is not (docs/audit.md)"
    ]


def _bytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} kB"
