"""Small models of FedFade that can be solved: what weights and stale controls do; numbers of docs/fedfade.md.

NumPy alone. The methods are the package's own functions, played round by round.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedpbc.algorithms import ALGORITHMS
from fedpbc.core.schema import Context
from fedpbc.core.types import Link, Round

Array = np.ndarray

# ------------------------------------------------------------------------------------------------------------ weights


def weight_bias(p: float, memory: float, cutoff: int, rounds: int) -> Array:
    """E[1_(i in A^t) w_i^t] for t = 0..rounds-1, exactly; 1 would be unbiased.

    A client is a two-state Markov chain, P(on | on) = memory + (1 - memory) p, P(on | off) = (1 - memory) p, stationary
    at the start. w_i is FedAU's: the intervals that are over add up to the rounds before the present one, so
    w_i = (t - S) / M with S the rounds of the present interval and M the number of those over (M = 0: 1). The law of
    (on, S, M) is followed from round to round. ``cutoff`` 0: none.
    """
    longest = cutoff or rounds
    law = np.zeros((2, longest, rounds + 1))
    law[:, 0, 0] = 1 - p, p
    waiting, count = np.arange(longest)[:, None], np.arange(rounds + 1)
    found = np.zeros(rounds)
    back, stay = (1 - memory) * p, memory + (1 - memory) * p
    for t in range(rounds):
        s, m = min(t + 1, longest), t + 1
        now = law[:, :s, :m]
        off, on = now[0] * (1 - back) + now[1] * (1 - stay), now[0] * back + now[1] * stay
        weight = np.where(count[:m] > 0, (t - waiting[:s]) / np.maximum(count[:m], 1), 1.0)
        found[t] = (on * weight).sum()
        law = np.zeros_like(law)
        law[0, 1 : s + 1, :m] = off[: longest - 1]
        if s == longest:
            law[0, 0, 1 : m + 1] += off[-1]
        law[1, 0, 1 : m + 1] = on.sum(axis=0)
    return found


def limit_weight(p: float, memory: float, cutoff: int) -> float:
    """w_i after very many rounds: the mean gap, 1/p, over the mean number of intervals that a gap is cut into."""
    away = (1 - memory) * p
    gap_longer_than = np.array([1.0 if n == 0 else (1 - memory) * (1 - p) * (1 - away) ** (n - 1) for n in range(cutoff)])
    parts, n = 1.0, cutoff
    while n < 10**6 and (tail := gap_longer_than[1] * (1 - away) ** (n - 1)) > 1e-15:
        parts, n = parts + tail, n + cutoff
    return 1 / p / parts


def noise(p: float, memory: float) -> float:
    """Long-run variance of 1_A / p over that of independent rounds at p = 1/2: (1-p)/p (1+memory)/(1-memory)."""
    return (1 - p) / p * (1 + memory) / (1 - memory)


def step_variance(prob: Array, deviations: Array) -> float:
    """E |(1/m) sum_A d_i / p_i - (1/m) sum d_i|^2 by going through all 2^m sets; prob [m], deviations d_i [m, d]."""
    m, mean, total = len(prob), deviations.mean(axis=0), 0.0
    for active in itertools.product([False, True], repeat=m):
        here = np.array(active)
        step = (deviations[here] / prob[here, None]).sum(axis=0) / m
        total += np.prod(np.where(here, prob, 1 - prob)) * ((step - mean) ** 2).sum()
    return float(total)


# ------------------------------------------------------------------------------------------- two groups, a quadratic


def round_matrix(active: tuple[bool, bool], theta: Array, steps: int, delta: float, weights: Array) -> Array:
    """One round of two clients on F_i(x) = h_i x^2 / 2 + b_i x, b = (1, -1): (x, u_1, u_2, 1) -> the same, [4, 4].

    theta_i = eta s h_i, and eta s = 1: the local step is q_i = 1 - theta_i / s. With v = c - u_i, s steps along
    h_i y + b_i + v give y = q^s x - (1 - q^s) / h_i (b_i + v), and g_i = x - y - v. x -= c + 1/2 sum_A w_i (g_i - u_i).
    """
    x, u, one = np.eye(4)[0], np.eye(4)[1:3], np.eye(4)[3]
    c = u.mean(axis=0)
    after, new = x - c, u.copy()
    for i, b in enumerate((1.0, -1.0)):
        if active[i]:
            q = (1 - theta[i] / steps) ** steps
            reach = (1 - q) / theta[i] if theta[i] else 1.0
            v = c - u[i]
            own = x - (q * x - reach * (b * one + v)) - v
            after = after - weights[i] * (own - u[i]) / 2
            new[i] = own
    return np.stack([after, *(delta * new), one])


def cycle(away: int, back: int, theta: Array, steps: int, delta: float, together: bool) -> tuple[float, float]:
    """(spectral radius of one cycle, largest |x - x*| of its periodic orbit) with the weights that are right.

    Client 2 is away for ``away`` rounds, then there for ``back``. ``together``: client 1 is always there; else it is
    there exactly when client 2 is not.
    """
    share = back / (away + back)
    weights = np.array([1.0 if together else 1 / (1 - share), 1 / share])
    rounds = [((True, False))] * away + [((together, True))] * back
    matrices = [round_matrix(active, theta, steps, delta, weights) for active in rounds]
    whole = np.eye(4)
    for matrix in matrices:
        whole = matrix @ whole
    radius = float(np.abs(np.linalg.eigvals(whole[:3, :3])).max())
    if radius >= 1:
        return radius, np.inf
    state = np.append(np.linalg.solve(np.eye(3) - whole[:3, :3], whole[:3, 3]), 1.0)
    worst = 0.0
    for matrix in matrices:
        state = matrix @ state
        worst = max(worst, abs(state[0]))  # x* = 0: b_1 + b_2 = 0
    return radius, worst


def overshoot(away: int, theta: Array) -> float:
    """What an absence makes of a deviation, to first order: a - (1 - a) h_2/h_1, a = exp(-theta_1 away / 2).

    The present go down (F_1 + c_2 x) / 2, whose slope where all is right is 0, and c_2 = h_2 e is that of a deviation
    e: e <- a e - (1 - a) (h_2 / h_1) e; as h_1 -> 0, (1 - theta_2 away / 2) e.
    """
    if theta[0] == 0:
        return float(1 - theta[1] * away / 2)
    a = np.exp(-theta[0] * away / 2)
    return float(a - (1 - a) * theta[1] / theta[0])


# ------------------------------------------------------------------------------ any method on any problem, in NumPy


def play(
    method: dict[str, Any],
    active: Array,
    gradient: Callable[[int, Array], Array],
    x0: Array,
    eta: float,
    steps: int,
    lost: dict[int, Array] | None = None,
) -> Iterator[Any]:
    """The states after each round; active bool[T, m], gradient(t, models[m, d]) -> [m, d]; lost: round -> bool[m]."""
    rounds, m = active.shape
    options = {key: value for key, value in method.items() if key != "name"}
    algorithm = ALGORITHMS.registry[method["name"]].function(Context(0, np.dtype(float), rounds), **options)
    state, everybody = algorithm.init(algorithm.params, x0, m), np.ones(m, bool)
    for t in range(rounds):
        if lost and t in lost:
            state = algorithm.forget(algorithm.params, state, lost[t], x0, np.int32(t))

        def train(models: Array, shift: Any = None, proximal: Any = None, t: int = t) -> Array:
            added = 0 if shift is None else shift
            for _ in range(steps):
                models = models - eta * (gradient(t, models) + added)
            return models

        link = Link(active[t], np.full(m, 0.5))
        given = Round(np.int32(t), link, np.float64(eta), np.int32(steps), everybody, train)
        state = algorithm.round(algorithm.params, state, given)
        yield state


def absences(away: int, back: int, rounds: int, together: bool) -> Array:
    """Two clients, bool[rounds, 2]; as in ``cycle``."""
    there = np.arange(rounds) % (away + back) >= away
    return np.stack([np.ones(rounds, bool) if together else ~there, there], axis=1)
