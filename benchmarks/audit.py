"""How long ``fedpbc audit`` takes on ten million rows, and on sparse logs of ten million rounds."""

from __future__ import annotations

from pathlib import Path

ROUNDS, CLIENTS = 10_000, 1_000
LONG = 10_000_000
SPARSE = ("--round-seconds", "1", "--missing-rounds", "empty")


def write_logs(folder: Path) -> dict[str, tuple[Path, tuple[str, ...]]]:
    """What is in a log -> its file and options."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    active = rng.random((ROUNDS, CLIENTS)) < rng.beta(2, 3, CLIENTS)
    t, i = np.divmod(np.arange(ROUNDS * CLIENTS), CLIENTS)
    dense = pa.table({"round": t, "client": i, "active": active.ravel().astype(np.int8)})
    pa.csv.write_csv(dense, folder / "dense.csv")
    pa.parquet.write_table(dense, folder / "dense.parquet")
    pa.csv.write_csv(dense.take(pa.array(rng.permutation(len(t)))), folder / "shuffled.csv")
    bursts = (rng.integers(0, LONG - 200, 500)[:, None] + rng.integers(0, 200, (500, 200))).ravel()
    for name, rounds in (("sparse", rng.integers(0, LONG, 100_000)), ("bursts", bursts)):
        rounds[:2] = 0, LONG - 1
        t, i = np.divmod(np.unique(rounds * CLIENTS + rng.integers(0, CLIENTS, len(rounds))), CLIENTS)
        pa.csv.write_csv(pa.table({"round": t, "client": i}), folder / f"{name}.csv")
    rows = f"{ROUNDS * CLIENTS:,} rows"
    return {
        f"CSV, {rows}": (folder / "dense.csv", ()),
        f"Parquet, {rows}": (folder / "dense.parquet", ()),
        f"CSV in any order, {rows}": (folder / "shuffled.csv", ()),
        f"{LONG:,} rounds, 100,000 participations": (folder / "sparse.csv", SPARSE),
        f"{LONG:,} rounds, 500 bursts of 200": (folder / "bursts.csv", SPARSE),
    }
