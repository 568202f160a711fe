"""Three small logs, written as files, whose findings stand in golden/."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedpbc.audit import ParticipationLog, read_log


def table_with_everything(folder: Path) -> ParticipationLog:
    """Missing rounds, sizes, groups, blank lines, a column that is not used, a client that never came."""
    table = np.random.default_rng(0).random((80, 8)) < np.linspace(0.15, 0.9, 8)
    rows = [
        f"{t + 3},node-{i},{int(table[t, i])},{i * t}\n" for t in range(80) for i in range(8) if t not in (20, 21, 50)
    ]
    (folder / "log.csv").write_text("round,client,active,when\n" + "\n".join(rows[:2]) + "".join(rows[2:-1]))
    (folder / "sizes.csv").write_text("client,size\nnode-9,4\n" + "".join(f"node-{i},{i + 1}\n" for i in range(8)))
    (folder / "groups.csv").write_text(
        "client,group\nnode-9,city\n" + "".join(f"node-{i},{'city' if i > 4 else 'rural'}\n" for i in range(8))
    )
    return read_log(
        folder / "log.csv", sizes=folder / "sizes.csv", groups=folder / "groups.csv", missing_rounds="unknown"
    )


def groups_that_never_meet(folder: Path) -> ParticipationLog:
    """Two groups of clients that take turns, with a period."""
    table = np.random.default_rng(1).random((90, 6)) < 0.7
    table[::2, :3] = table[1::2, 3:] = False
    lines = [json.dumps({"round": t, "clients": np.flatnonzero(row).tolist()}) for t, row in enumerate(table)]
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")
    return read_log(folder / "log.jsonl", clients=7)


def console(folder: Path) -> ParticipationLog:
    """Counts only."""
    counts = np.random.default_rng(2).integers(0, 9, 40)
    lines = []
    for t, count in enumerate(counts, start=1):
        lines += [f"INFO : [ROUND {t}]", f"INFO : aggregate_train: Received {count} results and {9 - count} failures"]
    (folder / "server.log").write_text("\n".join(lines))
    return read_log(folder / "server.log")


LOGS = {"everything": table_with_everything, "never-meet": groups_that_never_meet, "console": console}
