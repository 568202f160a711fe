"""Tables of runs, for a terminal, Markdown and LaTeX: final values, mean and spread over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from rich.table import Table
from rich.text import Text

from fedpbc.plots.runs import models_of, run_labels, shown_metrics
from fedpbc.plots.spread import WORDS, spread, spread_of
from fedpbc.runs.run import Group, Run

COSTS = ("empty_rounds", "gradient_steps", "bytes_up", "bytes_down")
MODEL_WORDS = {"server": "server", "mean": "mean"}


class Line(NamedTuple):
    """One row: a group of one run."""

    run: Run
    label: str
    group: Group


def lines_of(runs: Sequence[Run]) -> list[Line]:
    """Every group of every run."""
    return [Line(run, label, group) for run, label in zip(runs, run_labels(runs), strict=True) for group in run.groups]


def table_columns(runs: Sequence[Run], metrics: Sequence[str] | None = None, costs: bool = True) -> list[str]:
    """Columns of a table: the shown metrics of the shown models, consensus distance, and what it cost."""
    models = ("server", "mean") if any("mean" in models_of(run) for run in runs) else ("server",)
    wanted = [f"{model}_{metric}" for metric in shown_metrics(runs, metrics) for model in models]
    wanted += ["consensus_distance"] if "mean" in models else []
    wanted += COSTS if costs else COSTS[:1]
    return [name for name in wanted if all(name in run.columns for run in runs)]


def final_table(runs: Sequence[Run], width: int = 200, metrics: Sequence[str] | None = None) -> Table:
    """One row per links, algorithm and compute; the server's and the mean model's metrics after the last round.

    ``width``: of the terminal; where it is too narrow costs go first, then the mean model, then long labels fold at
    words.
    """
    several = any(len(run.table["seeds"]) > 1 for run in runs)
    for names in _choices(runs, metrics):
        table = _final_table(runs, names, several)
        if table_width(table) <= width:
            break
    return table


def _choices(runs: Sequence[Run], metrics: Sequence[str] | None) -> list[list[str]]:
    """Columns to try, from all to the fewest."""
    full, bare = table_columns(runs, metrics), table_columns(runs, metrics, costs=False)
    server = [name for name in bare if not name.startswith("mean_") and name != "consensus_distance"]
    own = [name for name in server if name.startswith("server_")]
    return [full, bare, server, own, own[:1]]


def table_width(table: Table) -> int:
    """Columns of a terminal it needs so that nothing but labels is folded."""
    from rich.console import Console

    return int(Console(width=1000).measure(table).minimum)


def _final_table(runs: Sequence[Run], names: list[str], several: bool) -> Table:
    title = " / ".join(dict.fromkeys(run.name for run in runs))
    spread_words = f", {WORDS[spread_of(runs)]}" if several else ""
    table = Table(title=Text(f"{title}: after the last round{spread_words}"), title_justify="left")
    lines = lines_of(runs)
    labelled, computes = any(line.label for line in lines), len({line.group.compute for line in lines}) > 1
    keys = (["run"] if labelled else []) + ["links", "algorithm"] + (["compute"] if computes else [])
    for name in keys:
        table.add_column(name, overflow="fold", min_width=10 if name != "compute" else 7)
    for name in names:
        table.add_column(_heading(runs[0], name), justify="right", no_wrap=False, min_width=8)
    previous = None
    for line in lines:
        here = (line.label, line.group.links)
        if previous is not None and here != previous:
            table.add_section()
        shown = ([line.label] if labelled else []) + [
            line.group.links if here != previous else "",
            line.group.algorithm,
        ]
        shown += [line.group.compute] if computes else []
        values = [Text(cell(line, name, several), no_wrap=True) for name in names]
        table.add_row(*map(Text, shown), *values)
        previous = here
    table.caption = _caption(names)
    table.caption_justify = "left"
    return table


def _heading(run: Run, column: str) -> str:
    if column.startswith("bytes"):
        return column.replace("bytes", "MB").replace("_", " ")
    model = next((m for m in MODEL_WORDS if column.startswith(f"{m}_")), "")
    title = run.measure(column).title
    return f"{model} {title}" if model else title


def _caption(names: Sequence[str]) -> str:
    mean = any(name.startswith("mean_") for name in names)
    text = "server: the model the server holds."
    text += " mean: the mean of all client models, which no server can compute." if mean else ""
    text += "\nconsensus distance: (1/m) sum ||x_i - mean||^2, squared." if "consensus_distance" in names else ""
    text += "\nempty rounds: rounds in which no client was active." if "empty_rounds" in names else ""
    return text + ("\ngradient steps: local steps the method uses." if "gradient_steps" in names else "")


def finals(line: Line, column: str) -> np.ndarray:
    """The last value of each seed, [seeds]."""
    cells = [line.run.cells[key] for key in line.run.select(**line.group._asdict())]
    return np.array([cell.rows[column][-1] for cell in cells], np.float64)


def cell(line: Line, column: str, several: bool, plus_minus: str = " ± ") -> str:
    """Mean and spread of a group."""
    values = finals(line, column)
    if not np.all(np.isfinite(values)):
        return "not finite"
    if column in COSTS:
        mean = values.mean()
        return f"{mean / 1e6:,.3g}" if column.startswith("bytes") else f"{mean:,.0f}"
    how = spread_of([line.run])
    over = spread(values, how)
    if not several or len(values) < 2:
        return f"{over.mean:.4g}"
    if how == "range":
        return f"{over.mean:.4g} ({over.low:.3g} to {over.high:.3g})"
    return f"{over.mean:.4g}{plus_minus}{over.high - over.mean:.1g}"


def markdown(runs: Sequence[Run], metrics: Sequence[str] | None = None) -> str:
    """A Markdown table of the final values."""
    head, body = _plain(runs, metrics, " ± ")
    rows = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows) + "\n"


_LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
          "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}  # fmt: skip


def latex(runs: Sequence[Run], metrics: Sequence[str] | None = None) -> str:
    """A LaTeX table of the final values; needs the package booktabs."""
    head, body = _plain(runs, metrics, "<pm>")

    def text(cell: str) -> str:
        return "".join(_LATEX.get(c, c) for c in cell).replace("<pm>", r" $\pm$ ")

    keys = len(head) - len(table_columns(runs, metrics, costs=False))
    rule = "l" * keys + "r" * (len(head) - keys)
    lines = [rf"\begin{{tabular}}{{{rule}}}", r"\toprule", " & ".join(map(text, head)) + r" \\", r"\midrule"]
    lines += [" & ".join(map(text, row)) + r" \\" for row in body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _plain(runs: Sequence[Run], metrics: Sequence[str] | None, plus_minus: str) -> tuple[list[str], list[list[str]]]:
    names = table_columns(runs, metrics, costs=False)
    several = any(len(run.table["seeds"]) > 1 for run in runs)
    lines = lines_of(runs)
    labelled = any(line.label for line in lines)
    head = (["run"] if labelled else []) + ["links", "algorithm", "compute"] + [_heading(runs[0], n) for n in names]
    body = [
        ([line.label] if labelled else []) + list(line.group) + [cell(line, n, several, plus_minus) for n in names]
        for line in lines
    ]
    return head, body
