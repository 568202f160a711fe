"""Tables of runs, for a terminal, Markdown and LaTeX: values after the last round, mean and spread over the seeds."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len

from fedpbc.core.measures import base_of
from fedpbc.plots.choice import models_of, run_labels, shown_metrics, tuned_on
from fedpbc.plots.comparison import Compared
from fedpbc.plots.spread import WORDS, last_values, spread, spread_of, written
from fedpbc.runs.run import Group, Run

COSTS = ("empty_rounds", "gradient_steps", "bytes_up", "bytes_down")
ROUNDS = "last round"
"""The column of a table in which a cell was stopped early."""
_GAP = "  "


class Line(NamedTuple):
    """One row: a group of one run."""

    run: Run
    label: str
    group: Group


def lines_of(runs: Sequence[Run]) -> list[Line]:
    """Every group of every run."""
    return [Line(run, label, group) for run, label in zip(runs, run_labels(runs), strict=True) for group in run.groups]


def table_columns(
    runs: Sequence[Run],
    metrics: str | Sequence[str] | None = None,
    costs: bool = True,
    compared: Compared | None = None,
) -> list[str]:
    """Columns of a table: the shown metrics of the shown models, consensus distance, and what it cost.

    Of a comparison: of the server's model alone.
    """
    models = ("server", "mean") if any("mean" in models_of(run) for run in runs) else ("server",)
    shown = shown_metrics(runs, metrics)
    if compared:
        models, shown = ("server",), compared.metrics(shown) if metrics is None else shown
    wanted = [f"{model}_{metric}" for metric in shown for model in models]
    wanted += ["consensus_distance"] if "mean" in models else []
    wanted += COSTS if costs else ()
    early = [ROUNDS] if any(run.stopped for run in runs) else []
    return early + [name for name in wanted if all(name in run.columns for run in runs)]


def finals(line: Line, column: str) -> np.ndarray:
    """The last value of each seed, [seeds]."""
    return last_values(line.run, line.group, "round" if column == ROUNDS else column)


def cell(line: Line, column: str, plus_minus: str = " ± ", compared: Compared | None = None) -> str:
    """Mean and spread of a group; of a comparison with its confidence interval and its mark."""
    if " to " in column and compared:
        return compared.cell(line.run, line.group, column)
    values = finals(line, column)
    if column == ROUNDS:
        low, high = int(values.min()), int(values.max())
        return f"{low:,}" if low == high else f"{low:,} to {high:,}"
    if not np.all(np.isfinite(values)):
        return "not finite"
    if column in COSTS:
        mean = values.mean()
        return f"{mean / 1e6:,.3g}" if column.startswith("bytes") else f"{mean:,.0f}"
    how = "ci" if compared else spread_of([line.run])
    mark = compared.mark(line.run, line.group, column) if compared else ""
    return written(spread(values, how), how, len(values) < 2, plus_minus) + mark


def heading(run: Run, column: str, compared: Compared | None = None) -> str:
    """What stands above a column, with its unit."""
    if " to " in column and compared:
        return dict(compared.columns())[column]
    if column == ROUNDS:
        return ROUNDS
    if column.startswith("bytes"):
        return column.replace("bytes", "MB").replace("_", " ")
    measure = run.measure(column)
    model = column.removesuffix(f"_{base_of(column)}") if base_of(column) in run.measures else ""
    return " ".join(text for text in (model, measure.title, f"[{measure.unit}]" if measure.unit else "") if text)


def terminal(
    runs: Sequence[Run],
    width: int = 80,
    metrics: str | Sequence[str] | None = None,
    compared: Compared | None = None,
) -> str:
    """A table for a terminal of ``width`` columns. Words and numbers are never split.

    Link settings stand above their methods. Metrics that have no room beside each other follow in a table below; what
    a run cost is left out where there is no room.
    """
    lines = lines_of(runs)
    several = any(len(run.table["seeds"]) > 1 for run in runs)
    title = " / ".join(dict.fromkeys(run.name for run in runs)) + ": after the last round"
    text = [*_wrapped(title + (f", {WORDS[_spread(runs, compared)]}" if several else ""), width), ""]
    names = _names(lines)
    own_columns = [*table_columns(runs, metrics, False, compared), *_targets(compared)]
    columns = [_Column.of(lines, name, compared) for name in own_columns]
    extra = [_Column.of(lines, name) for name in table_columns(runs, metrics) if name in COSTS]
    own = max(map(cell_len, names))
    apart = own + len(_GAP) + max(column.width for column in columns) > width
    first = 2 if apart else own
    blocks = _blocks(columns, first, width)
    for column in extra:
        if first + sum(len(_GAP) + other.width for other in [*blocks[-1], column]) <= width:
            blocks[-1].append(column)
    for block in blocks:
        text += [*_block(lines, names, block, first, apart, width), ""]
    text += _notes(runs, [column.name for block in blocks for column in block], width)
    text += [line for note in (compared.notes() if compared else ()) for line in _wrapped(note, width)]
    left_out = [column.heading for column in extra if not any(column in block for block in blocks)]
    if left_out:
        text += _wrapped(f"No room here: {', '.join(left_out)}; --markdown and metrics.csv have them.", width)
    return "\n".join(line.rstrip() for line in text) + "\n"


class _Column(NamedTuple):
    name: str
    heading: str
    cells: list[str]
    width: int

    @classmethod
    def of(cls, lines: Sequence[Line], name: str, compared: Compared | None = None) -> _Column:
        """As wide as its widest value or the longest word above it."""
        title = heading(lines[0].run, name, compared)
        cells = [cell(line, name, compared=compared) for line in lines]
        return cls(name, title, cells, max(min(cell_len(title), 8), *map(cell_len, [*cells, *title.split()])))


def _names(lines: Sequence[Line]) -> list[str]:
    computes = len({line.group.compute for line in lines}) > 1
    return [line.group.algorithm + (f", {line.group.compute}" if computes else "") for line in lines]


def _blocks(columns: Sequence[_Column], first: int, width: int) -> list[list[_Column]]:
    """Columns that fit beside each other, from the left."""
    blocks: list[list[_Column]] = [[]]
    for column in columns:
        used = first + sum(len(_GAP) + other.width for other in blocks[-1])
        if blocks[-1] and used + len(_GAP) + column.width > width:
            blocks.append([])
        blocks[-1].append(column)
    return blocks


def _block(
    lines: Sequence[Line], names: Sequence[str], columns: Sequence[_Column], first: int, apart: bool, width: int
) -> list[str]:
    """Headings, and the rows under their link settings."""
    heads = [textwrap.wrap(column.heading, column.width, break_long_words=False) for column in columns]
    depth = max(map(len, heads))
    text = [
        " " * first + "".join(_GAP + _right(([""] * (depth - len(head)) + head)[row], column.width)
                              for head, column in zip(heads, columns, strict=True))
        for row in range(depth)
    ]  # fmt: skip
    used = first + sum(len(_GAP) + column.width for column in columns)
    text.append("─" * min(used, width))
    before = None
    for i, (line, name) in enumerate(zip(lines, names, strict=True)):
        here = (line.label, line.group.links)
        if here != before:
            text += [""] if before is not None else []
            text += _wrapped(": ".join(part for part in here if part), width)
        before = here
        values = "".join(_GAP + _right(column.cells[i], column.width) for column in columns)
        text += [*_wrapped(name, width), " " * first + values] if apart else [_left(name, first) + values]
    return text


def _left(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _notes(runs: Sequence[Run], names: Sequence[str], width: int) -> list[str]:
    """What the columns are, a line each."""
    notes = ["server: the model the server holds."]
    if any(name.startswith("mean_") for name in names):
        notes[0] += " mean: the mean of all client models, which no server can compute."
    if len({group.compute for run in runs for group in run.groups}) > 1:
        notes.append("all, active: who computes, all clients or the active ones.")
    if "consensus_distance" in names:
        notes.append("consensus distance: (1/m) sum ||x_i - mean||^2, squared.")
    if "empty_rounds" in names:
        notes.append("empty rounds: no client was active.")
    if "gradient_steps" in names:
        notes.append("gradient steps: local steps the method uses.")
    if ROUNDS in names:
        notes.append("last round: where a callback ended a run early, its last; values are those after it.")
    notes += [f"{line}." for line in tuned_on(runs)]
    return [line for note in notes for line in _wrapped(note, width)]


def markdown(runs: Sequence[Run], metrics: str | Sequence[str] | None = None, compared: Compared | None = None) -> str:
    """A Markdown table of the final values."""
    head, body = _plain(runs, metrics, " ± ", compared)
    rows = [head, ["---"] * len(head), *body]
    return (
        "\n".join("| " + " | ".join(map(_markdown_text, row)) + " |" for row in rows) + "\n" + _caption(runs, compared)
    )


def _markdown_text(text: str) -> str:
    for character in "\\|*_`<$[":
        text = text.replace(character, f"\\{character}")
    return text


def _spread(runs: Sequence[Run], compared: Compared | None) -> str:
    return "ci" if compared else spread_of(runs)


def _targets(compared: Compared | None) -> list[str]:
    return [name for name, _ in compared.columns()] if compared else []


def _caption(runs: Sequence[Run], compared: Compared | None = None, ends: str = "\n") -> str:
    several = any(len(run.table["seeds"]) > 1 for run in runs)
    notes = [f"After the last round, {WORDS[_spread(runs, compared)]}"] if several else []
    notes += [*tuned_on(runs), *(note.rstrip(".") for note in (compared.notes() if compared else ()))]
    return f"{ends}{'; '.join(notes)}.\n" if notes else ""


_LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "<": r"\textless{}",
          "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "|": r"\textbar{}",
          ">": r"\textgreater{}", "±": r"$\pm$"}  # fmt: skip


def latex(runs: Sequence[Run], metrics: str | Sequence[str] | None = None, compared: Compared | None = None) -> str:
    """A LaTeX table of the final values; needs the package booktabs."""
    head, body = _plain(runs, metrics, " ± ", compared)
    numbers = len(table_columns(runs, metrics, compared=compared)) + len(_targets(compared))
    rule = "l" * (len(head) - numbers) + "r" * numbers
    lines = [rf"\begin{{tabular}}{{{rule}}}", r"\toprule", _latex_row(head), r"\midrule", *map(_latex_row, body)]
    caption = _caption(runs, compared, "").strip()
    note = [f"% {caption}"] if caption else []
    return "\n".join([*note, *lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in cells) + r" \\"


def _plain(
    runs: Sequence[Run], metrics: str | Sequence[str] | None, plus_minus: str, compared: Compared | None = None
) -> tuple[list[str], list[list[str]]]:
    """Head and rows, with every column; ``compute`` only where it differs."""
    names = [*table_columns(runs, metrics, compared=compared), *_targets(compared)]
    lines = lines_of(runs)
    keys = [name for name in Group._fields if name != "compute" or len({line.group.compute for line in lines}) > 1]
    labelled = any(line.label for line in lines)
    head = (["run"] if labelled else []) + keys + [heading(runs[0], name, compared) for name in names]
    body = [
        ([line.label] if labelled else [])
        + [getattr(line.group, key) for key in keys]
        + [cell(line, name, plus_minus, compared).rstrip() for name in names]
        for line in lines
    ]
    return head, body
