"""The bounds of the paper's convergence analysis, as numbers: Lemmas 3-5, Proposition 2, Theorem 1.

The paper writes zeta in Assumption 4 and xi later: zeta here. Its c is ``p_min`` in ``mixing``. Every function that
rests on independent links and on everybody computing takes ``independent`` and ``compute`` and refuses what breaks it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Constants(NamedTuple):
    """The constants of Assumptions 1, 2 and 4, of one problem."""

    smoothness: float
    """L."""
    sigma2: float
    """sigma^2, the variance of a stochastic gradient."""
    beta: float
    zeta2: float
    """zeta^2: (1/m) sum ||grad F_i - grad F||^2 <= beta^2 ||grad F||^2 + zeta^2."""


def kappa(learning_rate: float, smoothness: float, local_steps: int) -> float:
    """kappa = ((1 + eta L)^s - 1 - s eta L) / (binom(s, 2) (eta L)^2). Lemma 3; non-decreasing in eta (Claim 1).

    The sum of non-negative terms binom(s, k) (eta L)^(k-2) / binom(s, 2), so nothing cancels. s = 1: 0, as printed.

    >>> kappa(0.1, 1.0, 2), kappa(0.1, 1.0, 1), round(kappa(0.1, 1.0, 3), 4)
    (1.0, 0.0, 1.0333)
    """
    _check(learning_rate=learning_rate, smoothness=smoothness, local_steps=local_steps)
    total, term, k = 0.0, 1.0, 2
    while k <= local_steps and term > 1e-18 * total:
        total += term
        term *= learning_rate * smoothness * (local_steps - k) / (k + 1)
        k += 1
    return total


def _drift(kappa: float, smoothness: float) -> float:
    """The theorem's C = kappa^2 L^2 + 2 L (1 + kappa^2 L^2 / 4)."""
    square = (kappa * smoothness) ** 2
    return square + 2 * smoothness * (1 + square / 4)


def average_gradient_bound(consensus_distance: float, gradient_norm2: float, constants: Constants) -> float:
    """(1/m) sum ||grad F_i(x_i)||^2 <= 3 L^2 (1/m) sum ||x_i - xbar||^2 + 3 (beta^2 + 1) ||grad F(xbar)||^2 + 3 zeta^2.

    Proposition 2. ``gradient_norm2`` is ||grad F(xbar)||^2.

    >>> average_gradient_bound(1.0, 2.0, Constants(1.0, 0.0, 0.0, 4.0))
    21.0
    """
    c = constants
    return 3 * (c.smoothness**2 * consensus_distance + (c.beta**2 + 1) * gradient_norm2 + c.zeta2)


def descent_bound(
    learning_rate: float,
    local_steps: int,
    num_clients: int,
    constants: Constants,
    consensus_distance: float,
    gradient_norm2: float,
    **assumptions: Any,
) -> float:
    """E[F(xbar^(t+1)) - F(xbar^t) | t] is at most this; a negative value promises descent. Lemma 4.

    Needs eta <= 1/(2s), raises ValueError otherwise, and when ``assumptions`` do not hold.

    >>> descent_bound(0.01, 2, 10, Constants(1.0, 0.0, 0.0, 0.0), 0.0, 1.0) < 0
    True
    """
    _check(learning_rate, local_steps=local_steps, num_clients=num_clients, **assumptions)
    if learning_rate > 1 / (2 * local_steps):
        raise ValueError(f"Lemma 4 needs learning_rate <= 1/(2 local_steps) = {1 / (2 * local_steps):g}")
    smooth, sigma2, beta, zeta2 = constants
    k = kappa(learning_rate, smooth, local_steps)
    step, drift = learning_rate * local_steps, _drift(k, smooth)
    noise = (k * smooth) ** 2 + 2 * smooth * (1 / num_clients + (k * smooth) ** 2 / 4)
    return (
        -(step / 4 - 3 * step**2 * (beta**2 + 1) * drift) * gradient_norm2
        + step**2 * (3 * zeta2 * drift + sigma2 * noise)
        + (step * smooth**2 + 3 * (step * smooth) ** 2 * drift) * consensus_distance
    )


def consensus_bound(
    learning_rate: float,
    local_steps: int,
    rho: float,
    constants: Constants,
    mean_gradient_norm2: float,
    **assumptions: Any,
) -> float:
    """(1/(m T)) sum_t E ||X^t (I - J)||_F^2 is at most this, under Lemma 5's conditions on eta (not checked here).

    6 s^2 eta^2 sigma^2 [2 rho/(1-sqrt rho)^2 + rho/(1-rho)] + 72 eta^2 s^4 rho/(1-sqrt rho)^2 [zeta^2 + (beta^2+1)
    ``mean_gradient_norm2``], the latter being (1/T) sum_t E ||grad F(xbar^t)||^2. In the paper (I - J) stands inside
    the square by mistake. Raises ValueError unless 0 <= rho < 1, and when ``assumptions`` do not hold.

    >>> consensus_bound(0.01, 2, 0.0, Constants(1.0, 1.0, 0.0, 1.0), 1.0)
    0.0
    """
    _check(learning_rate, local_steps=local_steps, rho=rho, **assumptions)
    root = (1 - math.sqrt(rho)) ** 2
    noise = 6 * (local_steps * learning_rate) ** 2 * constants.sigma2 * (2 * rho / root + rho / (1 - rho))
    drift = constants.zeta2 + (constants.beta**2 + 1) * mean_gradient_norm2
    return noise + 72 * learning_rate**2 * local_steps**4 * rho / root * drift


class Condition(NamedTuple):
    """One of Theorem 1's conditions on the learning rate."""

    name: str
    limit: float
    """eta must not be above it; inf when it does not bind at all."""
    holds: bool


def step_size_conditions(
    learning_rate: float, local_steps: int, rho: float, constants: Constants, **assumptions: Any
) -> list[Condition]:
    """Every condition of Theorem 1 on eta, the binding one (smallest limit) first.

    kappa is taken at ``learning_rate``. At s = 1 kappa is 0 and the paper divides by it: "descent" is then solved from
    the inequality of the proof before its step (a), and "perturbation" does not bind. Never set eta from these: at
    the paper's own counterexample they ask for eta <= 2.4e-10, and the experiment uses 3e-4. Raises ValueError when
    the ``assumptions`` do not hold.

    >>> [c.name for c in step_size_conditions(3e-4, 30, 0.90178, Constants(1.0, 0.0, 0.0, 0.0))][:2]
    ['descent', 'consensus']
    """
    _check(learning_rate, local_steps=local_steps, rho=rho, **assumptions)
    s, smooth = local_steps, constants.smoothness
    k = kappa(learning_rate, smooth, s)
    limits = {
        "descent": _descent_limit(s, rho, k, constants) if k else _descent_limit_one_step(rho, constants),
        "half step": 1 / (2 * s),
        "perturbation": math.sqrt(2) / (k * s * smooth) if k else math.inf,
        "cubic": 1 / (rho * s**3) if rho else math.inf,
        "consensus": (1 - math.sqrt(rho)) / (6 * math.sqrt(2 * rho) * smooth * s**2) if rho else math.inf,
    }
    conditions = [Condition(name, limit, learning_rate <= limit) for name, limit in limits.items()]
    return sorted(conditions, key=lambda condition: condition.limit)


def _descent_limit(local_steps: int, rho: float, k: float, constants: Constants) -> float:
    smooth, beta, root = constants.smoothness, constants.beta, (1 - math.sqrt(rho)) ** 2
    mixing = local_steps**2 * rho / root
    first = 24 * (beta**2 + 1) * _drift(k, smooth) * (1 + 144 * mixing / k**2)
    return 1 / (first + 1152 * (beta**2 + 1) * smooth * mixing / k)


def _descent_limit_one_step(rho: float, constants: Constants) -> float:
    """The largest eta with 1/4 - 6 eta L (b^2+1) [1 + 72 eta^2 L^2 r] - 72 (b^2+1) L^2 eta^2 r >= 1/8 at s = 1."""
    smooth, beta, r = constants.smoothness, constants.beta, rho / (1 - math.sqrt(rho)) ** 2

    def spent(eta: float) -> float:
        square = 72 * (eta * smooth) ** 2 * r
        return (beta**2 + 1) * (6 * eta * smooth * (1 + square) + square)

    low, high = 0.0, 1 / smooth
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) <= 1 / 8 else (low, middle)
    return low


class ConvergenceBound(NamedTuple):
    """Theorem 1 term by term, under the theorem's names."""

    initial_gap: float
    stochastic_gradient_noise: float
    client_drift_error: float
    intermittent_participation_error: float

    @property
    def total(self) -> float:
        """The bound on (1/T) sum_t E ||grad F(xbar^t)||^2."""
        return sum(self)


def convergence_bound(
    learning_rate: float,
    local_steps: int,
    rounds: int,
    num_clients: int,
    rho: float,
    constants: Constants,
    initial_gap: float,
    **assumptions: Any,
) -> ConvergenceBound:
    """(1/T) sum_t E ||grad F(xbar^t)||^2 <= the total: the proof's form, explicit in eta. Theorem 1.

    ``initial_gap`` is F(xbar^0) - F*. Holds where ``step_size_conditions`` all hold. At s = 1, where the paper divides
    by kappa = 0, the participation term is taken from the line before that step. Raises ValueError when
    ``assumptions`` (``independent=True, compute="all"``) do not hold: Lemmas 2 and 5 rest on them.

    >>> bound = convergence_bound(1e-3, 2, 100, 10, 0.5, Constants(1.0, 0.0, 0.0, 0.0), 1.0)
    >>> round(bound.total, 9)
    40.0
    """
    _check(learning_rate, local_steps=local_steps, rho=rho, rounds=rounds, num_clients=num_clients, **assumptions)
    smooth, sigma2, _, zeta2 = constants
    k = kappa(learning_rate, smooth, local_steps)
    step, drift, root = learning_rate * local_steps, _drift(k, smooth), (1 - math.sqrt(rho)) ** 2
    perturbed = 3 * math.sqrt(2) * smooth * drift / k if k else 3 * step * smooth**2 * drift
    noise = 8 * step * (k * smooth) ** 2 * (1 + smooth / 2) + 16 * step * smooth / num_clients
    heterogeneity = 24 * step * (drift + 24 * smooth**2 / root) + 1728 * (step * smooth) ** 2 * drift / root
    return ConvergenceBound(
        initial_gap=8 * initial_gap / (step * rounds),
        stochastic_gradient_noise=noise * sigma2,
        client_drift_error=heterogeneity * zeta2,
        intermittent_participation_error=144 * rho * step**2 / root * (smooth**2 + perturbed) * sigma2,
    )


def convergence_bound_printed(
    local_steps: int,
    rounds: int,
    num_clients: int,
    rho: float,
    constants: Constants,
    initial_gap: float,
    **assumptions: Any,
) -> ConvergenceBound:
    """Theorem 1 as printed: the explicit form at eta = sqrt(m / (s T)), without the O( ) around every term.

    At the paper's own T this eta violates eta <= 1/(2s): look at ``step_size_conditions`` first.

    >>> convergence_bound_printed(2, 20, 10, 0.5, Constants(1.0, 0.0, 0.0, 0.0), 1.0).initial_gap
    0.4
    """
    learning_rate = math.sqrt(num_clients / (local_steps * rounds))
    return convergence_bound(
        learning_rate, local_steps, rounds, num_clients, rho, constants, initial_gap, **assumptions
    )


def _check(
    learning_rate: float = 1.0,
    *,
    smoothness: float = 1.0,
    rho: float = 0.0,
    independent: bool = True,
    compute: str = "all",
    **counts: int,
) -> None:
    """Raise ValueError for what the statements do not cover."""
    if not (0 < learning_rate < math.inf and 0 < smoothness < math.inf):
        raise ValueError("learning_rate and smoothness must be positive and finite")
    if not 0 <= rho < 1:
        raise ValueError(f"rho must be in [0, 1), is {rho}: with rho = 1 the clients never come to a consensus")
    for name, value in counts.items():
        if value < 1 or value != int(value):
            raise ValueError(f"{name} must be an integer of at least 1, is {value}")
    if not independent:
        raise ValueError("this bound rests on links that are independent over rounds (Lemma 2)")
    if compute != "all":
        raise ValueError(f"this bound rests on everybody computing, not compute = {compute!r}")
