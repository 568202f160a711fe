"""Small models of FedFade that can be solved: what weights and stale controls do; numbers of docs/fedfade.md.

NumPy alone. The methods are the package's own functions, played round by round.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedpbc.algorithms import ALGORITHMS
from fedpbc.algorithms.fedfade import aged
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
    """w_i after very many rounds: the mean gap, 1/p, over the mean number of intervals that a gap is cut into.

    That is 1 + P(gap > K) + P(gap > 2 K) + ..., P(gap > n) = (1 - memory)(1 - p)(1 - (1 - memory) p)^(n-1).
    """
    away = (1 - memory) * p
    parts, n = 1.0, cutoff
    while (tail := (1 - memory) * (1 - p) * (1 - away) ** (n - 1)) > 1e-15:
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


def cycle(
    away: int, back: int, theta: Array, steps: int, delta: float, together: bool, mean: bool = False
) -> tuple[float, float]:
    """(spectral radius of one cycle, largest |x - x*| of its periodic orbit).

    Client 2 is away for ``away`` rounds, then there for ``back``. ``together``: client 1 is always there; else it is
    there exactly when client 2 is not. w_i is what it should be, 1/p_i; ``mean``: 2/|A|, the mean over A.
    """
    share = back / (away + back)
    right = np.array([1.0 if together else 1 / (1 - share), 1 / share])
    rounds = [(True, False)] * away + [(together, True)] * back
    matrices = [
        round_matrix(active, theta, steps, delta, np.full(2, 2 / sum(active)) if mean else right) for active in rounds
    ]
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


def critical(away: int, back: int, ratio: float, delta: float, together: bool, mean: bool) -> float:
    """The least eta s h_2 ``away`` at which the spectral radius exceeds 1 (to 1 in 10^3), s = 10; inf: none below 400.

    ``ratio`` = h_2 / h_1. Looked for on a grid of steps of 5 %, then halved.
    """

    def unstable(size: float) -> bool:
        theta = np.array([size / away / ratio, size / away])
        return cycle(away, back, theta, 10, delta, together, mean)[0] > 1.001

    size = 0.5
    while not unstable(size):
        size *= 1.05
        if size > 400:
            return np.inf
    low, high = size / 1.05, size
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (low, middle) if unstable(middle) else (middle, high)
    return high


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


# ------------------------------------------------------------------------------------------- two groups, logistic


SLOPES, SHARES = np.array([[1.0], [4.0]]), np.array([[0.95], [0.5]])


def logistic_gradient(t: int, x: Array) -> Array:
    """a_i (sigma(a_i x) - q_i), a = (1, 4), q = (.95, .5).

    F_i(x) = q_i log(1 + e^(-a_i x)) + (1 - q_i) log(1 + e^(a_i x)).
    """
    return SLOPES * (0.5 * (1 + np.tanh(SLOPES * x / 2)) - SHARES)


@functools.cache
def logistic_optimum() -> float:
    """By halving: the mean gradient increases."""
    low, high = -10.0, 10.0
    for _ in range(100):
        middle = (low + high) / 2
        right = logistic_gradient(0, np.full((2, 1), middle)).sum() > 0
        low, high = (low, middle) if right else (middle, high)
    return high


def quadratic_gradient(t: int, x: Array) -> Array:
    """The second-order expansion of the above about the optimum: the same x*, gradients and curvatures there."""
    best = np.full((2, 1), logistic_optimum())
    s = 0.5 * (1 + np.tanh(SLOPES * best / 2))
    return logistic_gradient(0, best) + SLOPES**2 * s * (1 - s) * (x - best)


def swing(
    method: dict[str, Any], logistic: bool, eta_s: float, away: int, back: int, together: bool, cycles: int = 40
) -> float:
    """Largest |x - x*| in the last quarter of the cycles, s = 10, from x = 0."""
    active = absences(away, back, cycles * (away + back), together)
    gradient = logistic_gradient if logistic else quadratic_gradient
    best, last, worst = logistic_optimum(), len(active) * 3 // 4, 0.0
    with np.errstate(all="ignore"):
        for t, state in enumerate(play(method, active, gradient, np.zeros(1), eta_s / 10, 10)):
            if t >= last:
                worst = max(worst, abs(float(state.server[0]) - best))
    return worst if np.isfinite(worst) else np.inf


# ------------------------------------------------------------------------------ many clients, in NumPy: the variance,
# ------------------------------------------------------------------------------ and data that change in mid-run


def chains(prob: Array, memory: float, rounds: int, rng: np.random.Generator) -> Array:
    """Links with memory as in ``weight_bias``, bool[rounds, m]."""
    active = np.empty((rounds, len(prob)), bool)
    active[0] = rng.random(len(prob)) < prob
    for t in range(1, rounds):
        active[t] = rng.random(len(prob)) < prob + memory * (active[t - 1] - prob)
    return active


class Softmax:
    """Logistic regression, F_i the mean cross-entropy of client i's samples: full gradients of all clients at once."""

    def __init__(self, features: list[Array], labels: list[Array], classes: int) -> None:
        self.shape = features[0].shape[1], classes
        most = max(len(y) for y in labels)
        self.x = np.stack([np.pad(x, ((0, most - len(x)), (0, 0))) for x in features]).astype(float)
        sizes = np.array([len(y) for y in labels])
        self.share = (np.arange(most) < sizes[:, None]) / sizes[:, None]
        self.y = np.stack([np.eye(classes)[np.pad(y, (0, most - len(y)))] for y in labels])

    def gradient(self, t: int, models: Array) -> Array:
        """[m, d] -> [m, d]."""
        logits = self.x @ models.reshape(-1, *self.shape)
        chance = np.exp(logits - logits.max(axis=2, keepdims=True))
        chance /= chance.sum(axis=2, keepdims=True)
        found = np.swapaxes(self.x, 1, 2) @ ((chance - self.y) * self.share[:, :, None])
        return found.reshape(len(models), -1)


def variance_ratio(
    prob: Array, active: Array, gradient: Callable[[int, Array], Array], dim: int, eta: float
) -> tuple[float, float, float]:
    """(V of FedFade / V of FedAU, 1 - r^2, mean delta of a round), over the second half of a run, s = 10.

    V = sum (1/p_i - 1) |g_i - u_i|^2, FedAU's with u_i = 0: m^2 / (eta s)^2 times the variance of a step with the right
    weights and independent rounds, g_i at the server's model. r: the correlation of g and u in that inner product.
    """
    weight, m = 1 / prob - 1, len(prob)
    fade, own, cross, square, logs = 0.0, 0.0, 0.0, 0.0, []
    for t, state in enumerate(play({"name": "fedfade"}, active, gradient, np.zeros(dim), eta, 10)):
        logs.append(float(state.log))
        if 2 * t >= len(active) and t % 5 == 0:
            g, u = gradient(t, np.tile(state.server, (m, 1))), aged(state.controls, state.log, state.since)
            fade += weight @ ((g - u) ** 2).sum(axis=1)
            own += weight @ (g**2).sum(axis=1)
            cross += weight @ (g * u).sum(axis=1)
            square += weight @ (u**2).sum(axis=1)
    half = len(logs) // 2
    return fade / own, 1 - cross**2 / own / square, float(np.exp((logs[-1] - logs[half]) / (len(logs) - 1 - half)))


def quadratics(seed: int, m: int = 50, dim: int = 20, condition: float = 10.0) -> tuple[Array, Array]:
    """(curvatures, centers), both [m, d]: u_i about i, curvatures log-uniform in [1/condition, 1]."""
    rng = np.random.default_rng(seed)
    return condition ** -rng.random((m, dim)), np.arange(1, m + 1)[:, None] + 0.1 * rng.standard_normal((m, dim))


def after_a_change(method: dict[str, Any], memory: float, seed: int, looks: tuple[int, ...]) -> list[float]:
    """Distance to the new minimiser so many rounds after every fifth client's center moved by 20; eta .05, s 10.

    The change is after 1000 rounds, p = .1 for the half with the smaller centers and .9.
    """
    curvature, center = quadratics(seed)
    m, dim = center.shape
    moved = center + 20 * (np.arange(m) % 5 == 0)[:, None]
    best = (curvature * moved).sum(axis=0) / curvature.sum(axis=0)
    rng = np.random.default_rng([seed, 1])
    active = chains(np.where(np.arange(m) < m // 2, 0.1, 0.9), memory, 1000 + max(looks), rng)

    def gradient(t: int, models: Array) -> Array:
        return curvature * (models - (moved if t >= 1000 else center))

    states = play(method, active, gradient, np.zeros(dim), 0.05, 10)
    at = {1000 + look - 1 for look in looks}
    return [float(np.linalg.norm(state.server - best)) for t, state in enumerate(states) if t in at]
