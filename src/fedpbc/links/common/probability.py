"""Base probabilities p_i: plain NumPy arrays, [m], or [T, m] where they are drawn anew each round.

``variation.py`` lets them vary in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from fedpbc.core.memory import require_memory, total_memory
from fedpbc.core.schema import Component, Context, Fraction, Kind, PositiveInt, Range, component
from fedpbc.errors import BadOption
from fedpbc.io.arrays import read_vector


@component
def constant(context: Context, *, value: Fraction) -> np.ndarray:
    """The same probability for every client."""
    return np.full(context.problem.num_clients, value)


@component
def vector(context: Context, *, values: list[Fraction]) -> np.ndarray:
    """A list with one probability per client."""
    return _one_per_client(context, "values", values, np.array(values))


@component
def file(context: Context, *, path: Path) -> np.ndarray:
    """A file with one probability per client (.csv without header, or .npy)."""
    values = read_vector("path", path)
    if not np.all((values >= 0) & (values <= 1)):
        bad = int(np.flatnonzero(~((values >= 0) & (values <= 1)))[0])
        raise BadOption("path", path, f"value {bad} is {values[bad]:g}, must be in [0, 1]")
    return _one_per_client(context, "path", path, values)


@component
def two_groups(context: Context, *, p0: Fraction, p1: Fraction) -> np.ndarray:
    """The first half of the clients with p0, the rest with p1 (the paper's counterexample)."""
    m = context.problem.num_clients
    return np.where(np.arange(m) < m // 2, p0, p1)


@component
def zipf(
    context: Context,
    *,
    exponent: Annotated[float, Range(above=1)] = 3.0,
    draws: PositiveInt = 20_000,
    minimum: Fraction = 0.1,
) -> np.ndarray:
    """Zipf counts as in the paper, drawn anew each round and clipped from below.

    In round t, P_i = how many of ``draws`` independent Zipf(``exponent``) variables equal i (rank = client
    index, from 1; draws beyond m are dropped) and p_i^t = max(P_i / sum_k P_k, minimum), not renormalised.
    Paper, Section V. With the paper's values this is nearly static: p_1 = .83, p_2 = .10 and everybody
    else sits at the minimum. Returns [T, m].
    """
    m = context.problem.num_clients
    per_round = 16 * m
    fits = f"{total_memory() // per_round:,} rounds of {m:,} clients"
    require_memory(
        "draws", draws, per_round * context.num_rounds, "one Zipf probability per round and client", would_fit=fits
    )
    weights = np.arange(1, m + 1, dtype=np.float64) ** -exponent
    beyond = _zeta(exponent) - weights.sum()
    pmf = np.append(weights, max(beyond, 0.0))
    pmf /= pmf.sum()
    rng, table = context.rng("zipf"), np.empty((context.num_rounds, m))
    block = max(1, 2**20 // m)
    for first in range(0, context.num_rounds, block):  # the counts of all rounds are never held at once
        prob = table[first : first + block]
        counts = rng.multinomial(draws, pmf, size=len(prob))[:, :m]
        np.divide(counts, np.maximum(counts.sum(axis=1, keepdims=True), 1), out=prob)
        np.maximum(prob, minimum, out=prob)
    return table


def _zeta(a: float) -> float:
    """The Riemann zeta function for a > 1: a partial sum and the Euler-Maclaurin remainder."""
    n = 1000.0
    head = float(np.sum(np.arange(1, n) ** -a))
    return head + n ** (1 - a) / (a - 1) + 0.5 * n**-a + a * n ** (-a - 1) / 12


@component
def by_trait(
    context: Context,
    *,
    low: Fraction = 0.1,
    high: Fraction = 0.9,
    trait: str = "mean_label",
    shape: Literal["halves", "linear"] = "halves",
) -> np.ndarray:
    """Links that depend on the data: the half of the clients with the smaller trait has ``low``, the rest ``high``.

    ``trait`` is a fact the problem knows of its clients: of data, num_samples, num_labels, mean_label, label_entropy,
    "share:LABEL", "feature:J", "column:NAME". ``shape``: "halves", or "linear" from ``low`` at the smallest trait to
    ``high`` at the largest. Not in the paper: it makes the bias of FedAvg visible, because who is heard depends on what
    is learnt.
    """
    values = _trait(context.problem.client_traits, trait)
    if shape == "linear":
        span = np.ptp(values)
        return low + (high - low) * (values - values.min()) / (span if span > 0 else 1.0)
    order = np.argsort(values, kind="stable")
    prob = np.full(len(order), high)
    prob[order[: len(order) // 2]] = low
    return prob


@component
def spread(context: Context, *, low: Fraction, high: Fraction, trait: str | None = None) -> np.ndarray:
    """Evenly spaced from ``low`` to ``high``, in the order of ``trait``, or else in one drawn from the seed."""
    m = context.problem.num_clients
    if trait is None:
        order = context.rng(f"spread from {low} to {high}").permutation(m)
    else:
        order = np.argsort(_trait(context.problem.client_traits, trait), kind="stable")
    prob = np.empty(m)
    prob[order] = np.linspace(low, high, m)
    return prob


def _trait(traits: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """One number per client, [m]. Raises BadOption."""
    values = traits.get(name)
    if values is None or np.ndim(values) != 1:
        wrong = "unknown trait" if values is None else "is no number per client"
        known = getattr(traits, "known", None) or ", ".join(n for n, v in traits.items() if np.ndim(v) == 1)
        raise BadOption("trait", name, f"{wrong}; allowed: {known or 'none for this problem'}")
    return values


@component
def by_label(
    context: Context,
    *,
    weights: Literal["lognormal", "uniform", "dirichlet"] = "lognormal",
    sigma: Annotated[float, Range(0, 1000)] = 10.0,
    high: Fraction = 1.0,
    low: Fraction = 0.5,
    concentration: Annotated[float, Range(above=0, high=1e6)] = 1.0,
    minimum: Fraction = 0.02,
) -> np.ndarray:
    """Links that depend on the labels: p_i = max(minimum, <label distribution of client i, class weights>).

    Class weights are drawn from the seed. "lognormal": LogNormal(0, ``sigma``), normalised to sum 1; "uniform":
    uniform on [0, ``high``] for the first half of the classes and on [0, ``low``] for the rest, as they are;
    "dirichlet": symmetric Dirichlet(``concentration``). Not in the paper. Raises BadOption when the problem's
    samples have no labels.
    """
    labels = context.problem.client_traits.get("label_distribution")
    if labels is None:
        raise BadOption("name", "by_label", "needs samples with labels, which this problem has not")
    classes = labels.shape[1]
    rng = context.rng("by_label class weights")
    if weights == "lognormal":
        exponent = sigma * rng.standard_normal(classes)
        drawn = np.exp(exponent - exponent.max())
        drawn /= drawn.sum()
    elif weights == "uniform":
        drawn = rng.random(classes) * np.where(np.arange(classes) < classes // 2, high, low)
    else:
        drawn = rng.dirichlet(np.full(classes, concentration))
    return np.clip(labels @ drawn, minimum, 1)


def _one_per_client(context: Context, option: str, given: Any, values: np.ndarray) -> np.ndarray:
    m = context.problem.num_clients
    if len(values) != m:
        raise BadOption(option, given, f"has {len(values)} values, must have one per client, {m}")
    return values


def _shorthand(value: Any) -> dict[str, Any] | None:
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in (int, float):
        return {"name": "constant", "value": value}
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1):
        return {"name": "vector", "values": value}
    if isinstance(value, str | Path):
        return {"name": "file", "path": value}
    return None


PROBABILITIES = Kind(
    "base probability",
    {
        "constant": constant,
        "vector": vector,
        "file": file,
        "two_groups": two_groups,
        "zipf": zipf,
        "spread": spread,
        "by_trait": by_trait,
        "by_label": by_label,
    },
    shorthand=_shorthand,
    allowed="a number in [0, 1], a list with one per client, the path of a file, or a table with a name",
)

Prob = Annotated[float | Sequence[float] | str | Path | np.ndarray | Component[np.ndarray], PROBABILITIES]
"""Base probabilities of a process: [m], or [T, m] where they are drawn anew each round."""
