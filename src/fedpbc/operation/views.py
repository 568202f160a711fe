"""What an operator looks at: a table in the terminal, and the same as one HTML file that loads itself again."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedpbc.operation.standing import Client, Standing, duration

COLUMNS = ("client", "state", "heard", "last round", "missed", "to replay", "late by", "why")
COLORS = {"heard": "green", "catching up": "yellow", "at work": "yellow", "refused": "red", "failed": "red"}
SHOWN = 200
"""Clients in a table: those that were missed for longest."""
STYLE = """
body{font:1rem/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;width:100%;font-size:.9rem}td,th{text-align:left;padding:.25rem .6rem;
border-bottom:1px solid #ddd;overflow-wrap:anywhere}.n{text-align:right;font-variant-numeric:tabular-nums}
.red{color:#b00020}.yellow{color:#8a5a00}.green{color:#1b6e2c}
.alert{background:#fdecea;padding:.4rem .8rem;margin:.3rem 0}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}td,th{border-color:#444}.red{color:#ff8a80}
.yellow{color:#ffcc66}.green{color:#8bd49c}.alert{background:#4a2020}}
"""


def headline(standing: Standing) -> str:
    """Rounds, clients, speed and time left in one line."""
    if not standing.rounds:
        return "no round is closed yet"
    of = f" of {standing.target:,}" if standing.target else ""
    speed, line = standing.rounds_a_day(), standing.last
    parts = [
        f"round {standing.rounds:,}{of}",
        f"{line.get('active', 0)} of {line.get('known', 0)} clients heard",
        f"{line.get('seconds', 0):.1f} s a round",
        "speed not known" if speed is None else f"{speed:,.0f} rounds a day",
    ]
    left = standing.remaining()
    if left is not None:
        parts.append("done" if left == 0 else f"{duration(left)} left")
    return ", ".join(parts)


def cells(standing: Standing, client: Client) -> list[str]:
    """A row of the table."""
    return [
        client.name, client.state, f"{client.heard:,}", "never" if client.last is None else f"{client.last + 1:,}",
        f"{standing.missed(client):,}", f"{client.behind:,}" if client.behind else "",
        "" if client.late is None else f"{client.late:.1f} s", client.reason,
    ]  # fmt: skip


def terminal(standing: Standing, alerts: Iterable[str]) -> Group:
    """For rich."""
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in COLUMNS[2:7] else "left", no_wrap=name != "why")
    for client in standing.ordered()[:SHOWN]:
        row = [Text(cell) for cell in cells(standing, client)]
        row[1].stylize(COLORS.get(client.state, ""))
        table.add_row(*row)
    raised = [Text(line, style="bold red") for line in alerts]
    return Group(Text(headline(standing), style="bold"), *raised, table)


def page(standing: Standing, alerts: Iterable[str], title: str, every: float, now: float) -> str:
    """One HTML file without scripts, which a browser loads again by itself."""
    esc = html.escape
    head = "".join(f'<th class="{"n" if 2 <= i < 7 else ""}">{name}' for i, name in enumerate(COLUMNS))
    rows = []
    for client in standing.ordered()[:SHOWN]:
        kinds = ["", COLORS.get(client.state, ""), *["n"] * 5, ""]
        parts = zip(kinds, cells(standing, client), strict=True)
        rows.append("<tr>" + "".join(f'<td class="{kind}">{esc(cell)}' for kind, cell in parts))
    more = len(standing.clients) - SHOWN
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta http-equiv="refresh" content="{max(1, every):.0f}">'
        f'<meta name="viewport" content="width=device-width"><title>{esc(title)}</title><style>{STYLE}</style>'
        f"<h1>{esc(title)}</h1><p><strong>{esc(headline(standing))}</strong>"
        + "".join(f'<p class="alert">{esc(line)}' for line in alerts)
        + f"<table><thead><tr>{head}<tbody>{''.join(rows)}</table>"
        + (f"<p>{more:,} more clients, missed for less long" if more > 0 else "")
        + f"<p>written {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(now))}</html>\n"
    )
