"""fedpbc theory: from p to FedAvg's weights, rho, cool-down and bounds. Needs no JAX."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from fedpbc.cli.common import width
from fedpbc.cli.theory_page import TERMS, page
from fedpbc.errors import BadOption, ConfigError, shorten

LOG_ENDINGS = (".parquet", ".jsonl", ".log")
_TERM = re.compile(r"([^x]+?)(?:x(\d+))?")
MOST_CLIENTS = 10_000_000


class Given(NamedTuple):
    """The probabilities p, and the source they come from."""

    p: np.ndarray
    """[m] or [rounds, m]."""
    clients: Sequence[str]
    source: str
    notes: tuple[str, ...] = ()


@click.command()
@click.argument("p", metavar="P")
@click.option("--log/--probabilities", "is_log", default=None, help="What a FILE holds [default: as it looks].")
@click.option("--clients", type=int, metavar="N", help="How many clients there are, if a log does not name all.")
@click.option("--tolerance", type=float, default=1e-3, show_default=True, metavar="X", help="Of the cool-down.")
@click.option("--local-steps", type=int, metavar="S", help="s: with the next two, Theorem 1's conditions.")
@click.option("--learning-rate", type=float, metavar="ETA", help="eta.")
@click.option("--smoothness", type=float, metavar="L", help="L, Assumption 1.")
@click.option("--sigma2", type=float, default=0.0, metavar="V", help="sigma^2, of stochastic gradients [default: 0].")
@click.option("--beta", type=float, default=0.0, metavar="B", help="beta of Assumption 4 [default: 0].")
@click.option("--zeta2", type=float, default=0.0, metavar="Z", help="zeta^2 of Assumption 4 [default: 0].")
@click.option("--rounds", type=int, metavar="T", help="T: with --initial-gap, Theorem 1's bound.")
@click.option("--initial-gap", type=float, metavar="G", help="F(x^0) - F*.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.csv", help="Write client,p,weight.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def theory(
    p: str, is_log: bool | None, clients: int | None, out: Path | None, as_json: bool, **options: Any
) -> None:  # fmt: skip
    """What the paper proves about clients that are heard with probabilities P.

    P is a list (0.1,0.5 or 0.1x50,0.9x50: fifty of each), a .csv or .npy FILE of probabilities (one per client, or
    rounds x clients), or a participation log, whose rates are taken for probabilities.
    """
    given = _given(p, is_log, clients)
    try:
        found = _found(given, **options)
    except ValueError as error:
        raise ConfigError(f"P = {given.source}: {error}") from None
    if out is not None:
        _write(out, found)
    if as_json:
        click.echo(json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False))
    else:
        click.echo("\n".join(page(found, min(width(), 100))))


def _given(text: str, is_log: bool | None, clients: int | None) -> Given:
    """p from what the user wrote. Raises ConfigError."""
    path = Path(text)
    looks_like_file = path.suffix.lower() in (".csv", ".npy", *LOG_ENDINGS) or "/" in text
    if not looks_like_file and not _is_file(path):
        if is_log:
            raise ConfigError(f"P = {shorten(text)}: no such file")
        _refuse_clients(clients, shorten(text))
        return _listed(text)
    if not _is_file(path):
        raise ConfigError(f"P = {text}: no such file")
    if is_log if is_log is not None else _looks_like_log(path):
        return _from_log(path, clients)
    _refuse_clients(clients, str(path))
    from fedpbc.io.arrays import read_matrix

    try:
        values = read_matrix("P", path)
    except BadOption as error:
        raise ConfigError(f"P = {path}: {error.problem}") from None
    if values.ndim == 2 and 1 in values.shape:
        values = values.ravel()
    return Given(_checked(values, str(path)), [str(i) for i in range(values.shape[-1])], str(path))


def _refuse_clients(clients: int | None, source: str) -> None:
    if clients is not None:
        raise ConfigError(f"--clients {clients}: is for participation logs; {source} holds probabilities")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a list too long for a name
        return False


def _listed(text: str) -> Given:
    values: list[float] = []
    for part in text.split(","):
        term = _TERM.fullmatch(part.strip())
        try:
            number, count = float(term[1]) if term else float("nan"), int(term[2] or 1) if term else 1
        except ValueError:
            number, count = float("nan"), 1
        if np.isnan(number):
            raise ConfigError(
                f"P = {shorten(text)}: {shorten(part.strip())} is no number; must be a file, or numbers with commas "
                "between, like 0.1,0.5 or 0.1x50,0.9x50"
            )
        if len(values) + count > MOST_CLIENTS:
            raise ConfigError(f"P = {shorten(text)}: at most {MOST_CLIENTS:,} clients are allowed")
        values += [number] * count
    if not values:
        raise ConfigError(f"P = {shorten(text)}: names no client")
    return Given(_checked(np.array(values), shorten(text)), [str(i) for i in range(len(values))], shorten(text))


def _checked(p: np.ndarray, source: str) -> np.ndarray:
    """Raise ConfigError, with the first wrong value, unless these are probabilities."""
    wrong = np.argwhere(~((p >= 0) & (p <= 1)))
    if len(wrong):
        at = tuple(wrong[0])
        where = f"client {at[-1]}" + (f" in round {at[0]}" if p.ndim == 2 else "")
        raise ConfigError(f"P = {source}: {where} has {p[at]:g}, must be in [0, 1]")
    return p


def _looks_like_log(path: Path) -> bool:
    """Logs have endings of their own, a header, or are matrices of 0 and 1 with more than one row."""
    if path.suffix.lower() in LOG_ENDINGS:
        return True
    try:
        if path.suffix.lower() == ".csv":
            with open(path, encoding="utf-8-sig", errors="replace") as file:
                first = file.readline(1000)
            return bool(re.match(r"\s*[A-Za-z\"]", first)) and not re.match(r"(?i)\s*(nan|inf)", first)
        values = np.load(path, allow_pickle=False)
        return bool(
            isinstance(values, np.ndarray) and values.ndim == 2 and len(values) > 1
            and (values.dtype == bool or np.all((values == 0) | (values == 1)))
        )  # fmt: skip
    except (OSError, ValueError):
        return False


def _from_log(path: Path, clients: int | None) -> Given:
    from fedpbc.audit import read_log

    log = read_log(path, clients=clients)
    if log.counts_only is not None:
        raise ConfigError(f"{path}: says how many took part, not who; p of each client is needed")
    counts = np.bincount(log.members, minlength=len(log.clients))
    note = (
        f"p is how often each client took part in {log.num_rounds:,} rounds: an estimate, under links independent over "
        "rounds and clients (fedpbc audit tests that)."
    )
    return Given(counts / log.num_rounds, log.clients, f"{path}, a participation log", (note, *log.notes))


def _found(
    given: Given,
    tolerance: float,
    local_steps: int | None,
    learning_rate: float | None,
    smoothness: float | None,
    sigma2: float,
    beta: float,
    zeta2: float,
    rounds: int | None,
    initial_gap: float | None,
) -> dict[str, Any]:
    """Everything as plain data; what does not exist is None."""
    from fedpbc import theory

    if not 0 < tolerance < 1:
        raise ConfigError(f"--tolerance {tolerance:g}: must be in (0, 1)")
    p = given.p
    weights, m = _weights(p), p.shape[-1]
    gaps = theory.mixing_gaps(p)  # once: it is what takes time when there are many clients
    gap = float(gaps.min())
    rates = p.mean(axis=0) if p.ndim == 2 else p
    p_min = float(p.min())
    found: dict[str, Any] = {
        "source": given.source,
        "notes": list(given.notes),
        "num_clients": m,
        "rounds_of_p": len(p) if p.ndim == 2 else None,
        "clients": list(given.clients),
        "p": rates.tolist(),
        "fedavg": {
            "weights": weights.tolist(),
            "total_variation": float(np.abs(weights - 1 / m).sum() / 2),
        },
        "fedpbc": {
            "rho": 1 - gap,
            "gap": gap,
            "rho_bound_lemma_1": theory.mixing_rate_bound(p_min, m) if p_min > 0 else None,
            "tolerance": tolerance,
            "cooldown_rounds_squared_distance": _cooldown(gaps, tolerance, p.ndim == 1),
            "cooldown_rounds_distance": _cooldown(gaps, tolerance**2, p.ndim == 1),
        },
        "theorem_1": None,
    }
    asked = {"--local-steps": local_steps, "--learning-rate": learning_rate, "--smoothness": smoothness}
    missing = [name for name, value in asked.items() if value is None]
    bound_asked = {"--rounds": rounds, "--initial-gap": initial_gap}
    lacking = [name for name, value in bound_asked.items() if value is None]
    if 0 < len(missing) < 3 or (missing and len(lacking) < 2) or len(lacking) == 1:
        needed = ", ".join([*missing, *(lacking if len(lacking) == 1 else [])])
        raise ConfigError(f"Theorem 1 needs {needed} too")
    for name, value in {**asked, **bound_asked}.items():
        if value is not None and not (0 < value < np.inf):
            raise ConfigError(f"{name} {value:g}: must be above 0 and finite")
    for name, value in {"--sigma2": sigma2, "--beta": beta, "--zeta2": zeta2}.items():
        if not 0 <= value < np.inf:
            raise ConfigError(f"{name} {value:g}: must be at least 0 and finite")
    if not missing and 1 - gap < 1:
        constants = theory.Constants(float(smoothness or 0), sigma2, beta, zeta2)
        setting = (float(learning_rate or 0), int(local_steps or 0))
        conditions = theory.step_size_conditions(*setting, 1 - gap, constants)
        bound = None
        if not lacking:
            terms = theory.convergence_bound(*setting, int(rounds or 0), m, 1 - gap, constants, float(initial_gap or 0))
            bound = {name: getattr(terms, name) for name in TERMS}
        found["theorem_1"] = {
            "learning_rate": learning_rate,
            "local_steps": local_steps,
            **vars(constants),
            "rounds": rounds,
            "initial_gap": initial_gap,
            "conditions": [
                {"name": c.name, "limit": c.limit if np.isfinite(c.limit) else None, "holds": bool(c.holds)}
                for c in conditions
            ],
            "bound": bound,
        }
    elif not missing:
        found["notes"].append("rho is 1, a client is never heard or never with others: Theorem 1 says nothing.")
    return found


def _weights(p: np.ndarray) -> np.ndarray:
    """Of Proposition 1; for p [rounds, m] the mean of those of each round."""
    from fedpbc import theory

    if p.ndim == 1:
        return theory.fedavg_weights(p)
    rows, counts = np.unique(p, axis=0, return_counts=True)
    return np.average([theory.fedavg_weights(row) for row in rows], axis=0, weights=counts)


def _cooldown(gaps: np.ndarray, tolerance: float, constant: bool) -> int | None:
    """As ``fedpbc.theory.cooldown_rounds``, from the gaps; None: never, or not within the rounds of p."""
    with np.errstate(divide="ignore"):
        logs = np.log1p(-gaps)
    if constant:
        return None if logs[0] == 0 else max(1, math.ceil(math.log(tolerance) / logs[0] - 1e-12))
    enough = np.flatnonzero(np.cumsum(logs) <= math.log(tolerance))
    return int(enough[0]) + 1 if len(enough) else None


def _write(out: Path, found: dict[str, Any]) -> None:
    import csv
    import io

    from fedpbc.io.whole import write_text

    if out.suffix != ".csv":
        raise ConfigError(f"--out {out}: must end in .csv")
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["client", "p", "weight"])
    rows.writerows(zip(found["clients"], found["p"], found["fedavg"]["weights"], strict=True))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, text.getvalue())
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror}") from None
