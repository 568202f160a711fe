"""The bounds of the paper's convergence analysis, as numbers: Lemmas 3-5, Proposition 2, Theorem 1.

The paper writes zeta in Assumption 4 and xi later: zeta here. Its c is ``p_min`` in ``mixing``. Every function that
rests on independent links and on everybody computing takes ``independent`` and ``compute`` and refuses what breaks it.
A bound of a lemma refuses a learning rate outside the lemma's conditions; that of Theorem 1 says whether they hold.
Every ``consensus_distance`` is the SQUARED one, (1/m) sum ||x_i - xbar||^2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple

from fedpbc.errors import shorten
from fedpbc.theory.checks import count, flag, number


@dataclass(frozen=True)
class Constants:
    """The constants of Assumptions 1, 2 and 4, of one problem. Raises ValueError for what no problem has.

    >>> Constants(smoothness=1.0, sigma2=0.0, beta=0.0, zeta2=4.0).zeta2
    4.0
    """

    smoothness: float
    """L > 0."""
    sigma2: float
    """sigma^2 >= 0, the variance of a stochastic gradient."""
    beta: float
    """beta >= 0."""
    zeta2: float
    """zeta^2 >= 0: (1/m) sum ||grad F_i - grad F||^2 <= beta^2 ||grad F||^2 + zeta^2."""

    def __post_init__(self) -> None:
        for field in fields(self):
            interval = "(0, inf)" if field.name == "smoothness" else "[0, inf)"
            object.__setattr__(self, field.name, number(field.name, getattr(self, field.name), interval))


def kappa(learning_rate: float, smoothness: float, local_steps: int) -> float:
    """kappa = ((1 + eta L)^s - 1 - s eta L) / (binom(s, 2) (eta L)^2). Lemma 3; non-decreasing in eta (Claim 1).

    The sum of non-negative terms binom(s, k) (eta L)^(k-2) / binom(s, 2), so nothing cancels. s = 1: 0, as printed.
    Raises ValueError when it is beyond 1e150, where no bound says anything.

    >>> kappa(0.1, 1.0, 2), kappa(0.1, 1.0, 1), round(kappa(0.1, 1.0, 3), 4)
    (1.0, 0.0, 1.0333)
    """
    learning_rate, smoothness = _learning_rate(learning_rate), number("smoothness", smoothness, "(0, inf)")
    local_steps = count("local_steps", local_steps)
    total, term, k = 0.0, 1.0, 2
    while k <= local_steps and term > 1e-18 * total:
        total += term
        term *= learning_rate * smoothness * (local_steps - k) / (k + 1)
        k += 1
    if total > 1e150:
        raise ValueError(f"learning_rate = {learning_rate:g}: too large for {local_steps} local steps, kappa overflows")
    return total


def _drift(kappa: float, smoothness: float) -> float:
    """The theorem's C = kappa^2 L^2 + 2 L (1 + kappa^2 L^2 / 4)."""
    square = (kappa * smoothness) ** 2
    return square + 2 * smoothness * (1 + square / 4)


def _root_gap(rho: float) -> float:
    """1 - sqrt(rho), which does not vanish when rho is next to 1."""
    return (1 - rho) / (1 + math.sqrt(rho))


def average_gradient_bound(consensus_distance: float, gradient_norm2: float, constants: Constants) -> float:
    """(1/m) sum ||grad F_i(x_i)||^2 <= 3 L^2 (1/m) sum ||x_i - xbar||^2 + 3 (beta^2 + 1) ||grad F(xbar)||^2 + 3 zeta^2.

    Proposition 2. Both are squared: ``consensus_distance`` is (1/m) sum ||x_i - xbar||^2, ``gradient_norm2`` is
    ||grad F(xbar)||^2.

    >>> average_gradient_bound(1.0, 2.0, Constants(1.0, 0.0, 0.0, 4.0))
    21.0
    """
    _check_constants(constants)
    consensus_distance = _not_negative("consensus_distance", consensus_distance)
    gradient_norm2, c = _not_negative("gradient_norm2", gradient_norm2), constants
    return 3 * (c.smoothness**2 * consensus_distance + (c.beta**2 + 1) * gradient_norm2 + c.zeta2)


def descent_bound(
    learning_rate: float,
    local_steps: int,
    num_clients: int,
    constants: Constants,
    consensus_distance: float,
    gradient_norm2: float,
    *,
    independent: bool = True,
    compute: str = "all",
) -> float:
    """E[F(xbar^(t+1)) - F(xbar^t) | t] is at most this; a negative value promises descent. Lemma 4.

    Both are squared: ``consensus_distance`` is (1/m) sum ||x_i - xbar||^2 before the round, ``gradient_norm2`` is
    ||grad F(xbar)||^2. Negative at distance 0, without noise (sigma2 = zeta2 = 0), where ``step_size_conditions`` all
    hold. Needs eta <= 1/(2s), independent links and everybody computing: raises ValueError otherwise.

    >>> descent_bound(0.01, 2, 10, Constants(1.0, 0.0, 0.0, 0.0), 0.0, 1.0) < 0
    True
    """
    _check_assumptions(constants, independent, compute)
    learning_rate, local_steps = _learning_rate(learning_rate), count("local_steps", local_steps)
    num_clients = count("num_clients", num_clients)
    consensus_distance = _not_negative("consensus_distance", consensus_distance)
    gradient_norm2 = _not_negative("gradient_norm2", gradient_norm2)
    _require("Lemma 4", _conditions(learning_rate, local_steps, 0.0, constants), {"half step"}, learning_rate)
    smooth, sigma2, beta, zeta2 = constants.smoothness, constants.sigma2, constants.beta, constants.zeta2
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
    *,
    independent: bool = True,
    compute: str = "all",
) -> float:
    """(1/T) sum_t E (1/m) sum_i ||x_i^t - xbar^t||^2 is at most this: the mean squared consensus distance. Lemma 5.

    6 s^2 eta^2 sigma^2 [2 rho/(1-sqrt rho)^2 + rho/(1-rho)] + 72 eta^2 s^4 rho/(1-sqrt rho)^2 [zeta^2 + (beta^2+1)
    ``mean_gradient_norm2``], the latter being (1/T) sum_t E ||grad F(xbar^t)||^2. In the paper's statement the square
    stands inside the norm by mistake. Needs 0 <= rho < 1, eta <= 1/(2s), sqrt(2)/(kappa s L) and
    (1 - sqrt rho)/(6 sqrt(2 rho) L s^2), independent links and everybody computing: raises ValueError otherwise. And
    all clients start from one model, which nothing here can check.

    >>> consensus_bound(0.01, 2, 0.0, Constants(1.0, 1.0, 0.0, 1.0), 1.0)
    0.0
    """
    _check_assumptions(constants, independent, compute)
    learning_rate, local_steps, rho = _learning_rate(learning_rate), count("local_steps", local_steps), _rho(rho)
    mean_gradient_norm2 = _not_negative("mean_gradient_norm2", mean_gradient_norm2)
    conditions = _conditions(learning_rate, local_steps, rho, constants)
    _require("Lemma 5", conditions, {"half step", "perturbation", "consensus"}, learning_rate)
    root = _root_gap(rho) ** 2
    noise = 6 * (local_steps * learning_rate) ** 2 * constants.sigma2 * (2 * rho / root + rho / (1 - rho))
    drift = constants.zeta2 + (constants.beta**2 + 1) * mean_gradient_norm2
    return noise + 72 * learning_rate**2 * local_steps**4 * rho / root * drift


class Condition(NamedTuple):
    """One of Theorem 1's conditions on the learning rate."""

    name: str
    limit: float
    """eta must not be above it; inf when it does not bind at all. kappa in it is taken at this eta."""
    holds: bool


def step_size_conditions(
    learning_rate: float,
    local_steps: int,
    rho: float,
    constants: Constants,
    *,
    independent: bool = True,
    compute: str = "all",
) -> list[Condition]:
    """Every condition of Theorem 1 on eta, the binding one (smallest limit) first.

    "descent as printed" lacks a factor s and so does not give the step of the proof that it is there for. "descent" is
    what that step needs, the printed limit divided by s, with C = kappa^2 L^2 + 2 L (1 + kappa^2 L^2/4):

        eta <= 1 / (24 s (beta^2+1) C [1 + 144 s^2 r/kappa^2] + 1152 s (beta^2+1) L s^2 r/kappa), r = rho/(1-sqrt rho)^2

    docs/theory.md shows where s is lost. kappa is taken at ``learning_rate``: ask again at the rate you choose. At
    s = 1 kappa is 0 and the paper divides by it: "descent" is then solved from the inequality of the proof before its
    step (a), "descent as printed" is left out, and "perturbation" does not bind. Never set eta from these: at the
    paper's own counterexample they ask for eta <= 7.9e-12, and the experiment uses 3e-4. Needs 0 <= rho < 1,
    independent links and everybody computing: raises ValueError otherwise.

    >>> conditions = step_size_conditions(3e-4, 30, 0.90178, Constants(1.0, 0.0, 0.0, 0.0))
    >>> [(c.name, float(f"{c.limit:.2g}")) for c in conditions][:3]
    [('descent', 7.9e-12), ('descent as printed', 2.4e-10), ('consensus', 6.9e-06)]
    """
    _check_assumptions(constants, independent, compute)
    learning_rate, local_steps = _learning_rate(learning_rate), count("local_steps", local_steps)
    return list(_conditions(learning_rate, local_steps, _rho(rho), constants))


def _conditions(learning_rate: float, local_steps: int, rho: float, constants: Constants) -> tuple[Condition, ...]:
    s, smooth = local_steps, constants.smoothness
    k = kappa(learning_rate, smooth, s)
    limits = {
        "half step": 1 / (2 * s),
        "perturbation": math.sqrt(2) / (k * s * smooth) if k else math.inf,
        "cubic": 1 / (rho * s**3) if rho else math.inf,
        "consensus": _root_gap(rho) / (6 * math.sqrt(2 * rho) * smooth * s**2) if rho else math.inf,
    }
    if k:
        printed = _descent_limit_printed(s, rho, k, constants)
        limits |= {"descent": printed / s, "descent as printed": printed}
    else:
        limits |= {"descent": _descent_limit_one_step(rho, constants)}
    conditions = [Condition(name, limit, learning_rate <= limit) for name, limit in limits.items()]
    return tuple(sorted(conditions, key=lambda condition: condition.limit))


def _descent_limit_printed(local_steps: int, rho: float, k: float, constants: Constants) -> float:
    smooth, beta, root = constants.smoothness, constants.beta, _root_gap(rho) ** 2
    mixing = local_steps**2 * rho / root
    first = 24 * (beta**2 + 1) * _drift(k, smooth) * (1 + 144 * mixing / k**2)
    return 1 / (first + 1152 * (beta**2 + 1) * smooth * mixing / k)


def _descent_limit_one_step(rho: float, constants: Constants) -> float:
    """The largest eta with 1/4 - 6 eta L (b^2+1) [1 + 72 eta^2 L^2 r] - 72 (b^2+1) L^2 eta^2 r >= 1/8 at s = 1."""
    smooth, beta, r = constants.smoothness, constants.beta, rho / _root_gap(rho) ** 2

    def spent(eta: float) -> float:
        square = 72 * (eta * smooth) ** 2 * r
        return (beta**2 + 1) * (6 * eta * smooth * (1 + square) + square)

    low, high = 0.0, 1 / smooth
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) <= 1 / 8 else (low, middle)
    return low


@dataclass(frozen=True)
class ConvergenceBound:
    """Theorem 1 term by term, under the theorem's names, with the conditions it rests on.

    Outside its conditions the total is a number like any other, but no bound: look at ``conditions_hold`` first.
    """

    initial_gap: float
    stochastic_gradient_noise: float
    client_drift_error: float
    intermittent_participation_error: float
    conditions: tuple[Condition, ...]
    """``step_size_conditions`` at this learning rate."""

    @property
    def total(self) -> float:
        """The bound on (1/T) sum_t E ||grad F(xbar^t)||^2, if ``conditions_hold``."""
        noise = self.stochastic_gradient_noise + self.intermittent_participation_error
        return self.initial_gap + self.client_drift_error + noise

    @property
    def failing(self) -> tuple[Condition, ...]:
        """The conditions that do not hold, the strictest first."""
        return tuple(condition for condition in self.conditions if not condition.holds)

    @property
    def conditions_hold(self) -> bool:
        """Whether Theorem 1 says anything at this learning rate."""
        return not self.failing


def convergence_bound(
    learning_rate: float,
    local_steps: int,
    rounds: int,
    num_clients: int,
    rho: float,
    constants: Constants,
    initial_gap: float,
    *,
    independent: bool = True,
    compute: str = "all",
) -> ConvergenceBound:
    """(1/T) sum_t E ||grad F(xbar^t)||^2 <= the total: the proof's form, explicit in eta. Theorem 1.

    ``initial_gap`` is F(xbar^0) - F*. Holds where ``step_size_conditions`` all hold, which the result says
    (``conditions_hold``, ``failing``). At s = 1, where the paper divides by kappa = 0, the participation term is taken
    from the line before that step. Raises ValueError for ``independent=False`` and ``compute="active"``: Lemmas 2 and 5
    rest on independent links and on everybody computing.

    >>> bound = convergence_bound(1e-3, 2, 100, 10, 0.5, Constants(1.0, 0.0, 0.0, 0.0), 1.0)
    >>> round(bound.total, 9), bound.conditions_hold, [condition.name for condition in bound.failing]
    (40.0, False, ['descent', 'descent as printed'])
    """
    _check_assumptions(constants, independent, compute)
    learning_rate, local_steps, rho = _learning_rate(learning_rate), count("local_steps", local_steps), _rho(rho)
    rounds, num_clients = count("rounds", rounds), count("num_clients", num_clients)
    initial_gap = _not_negative("initial_gap", initial_gap)
    smooth, sigma2, zeta2 = constants.smoothness, constants.sigma2, constants.zeta2
    k = kappa(learning_rate, smooth, local_steps)
    step, drift, root = learning_rate * local_steps, _drift(k, smooth), _root_gap(rho) ** 2
    perturbed = 3 * math.sqrt(2) * smooth * drift / k if k else 3 * step * smooth**2 * drift
    noise = 8 * step * (k * smooth) ** 2 * (1 + smooth / 2) + 16 * step * smooth / num_clients
    heterogeneity = 24 * step * (drift + 24 * smooth**2 / root) + 1728 * (step * smooth) ** 2 * drift / root
    return ConvergenceBound(
        initial_gap=8 * initial_gap / (step * rounds),
        stochastic_gradient_noise=noise * sigma2,
        client_drift_error=heterogeneity * zeta2,
        intermittent_participation_error=144 * rho * step**2 / root * (smooth**2 + perturbed) * sigma2,
        conditions=_conditions(learning_rate, local_steps, rho, constants),
    )


def convergence_bound_printed(
    local_steps: int,
    rounds: int,
    num_clients: int,
    rho: float,
    constants: Constants,
    initial_gap: float,
    *,
    independent: bool = True,
    compute: str = "all",
) -> ConvergenceBound:
    """Theorem 1 as printed: the explicit form at eta = sqrt(m / (s T)), without the O( ) around every term.

    At the paper's own T this eta violates eta <= 1/(2s): look at ``conditions_hold`` first.

    >>> convergence_bound_printed(2, 20, 10, 0.5, Constants(1.0, 0.0, 0.0, 0.0), 1.0).initial_gap
    0.4
    """
    local_steps, rounds = count("local_steps", local_steps), count("rounds", rounds)
    num_clients = count("num_clients", num_clients)
    learning_rate = math.sqrt(num_clients / (local_steps * rounds))
    return convergence_bound(
        learning_rate,
        local_steps,
        rounds,
        num_clients,
        rho,
        constants,
        initial_gap,
        independent=independent,
        compute=compute,
    )


def _check_constants(constants: Constants) -> None:
    if not isinstance(constants, Constants):
        raise ValueError(f"constants = {shorten(constants)}: must be Constants(smoothness, sigma2, beta, zeta2)")


def _check_assumptions(constants: Constants, independent: bool, compute: str) -> None:
    """Raise ValueError for what Lemmas 2 and 5 do not cover."""
    _check_constants(constants)
    if not flag("independent", independent):
        raise ValueError("independent = false: this bound rests on links that are independent over rounds (Lemma 2)")
    if compute != "all":
        raise ValueError(f'compute = {shorten(compute)}: must be "all", this bound rests on everybody computing')


def _require(lemma: str, conditions: Iterable[Condition], names: set[str], learning_rate: float) -> None:
    """Raise ValueError when one of the named conditions fails."""
    for condition in conditions:
        if condition.name in names and not condition.holds:
            limit = f"{condition.limit:.6g} ({condition.name})"
            raise ValueError(f"learning_rate = {learning_rate:g}: {lemma} needs at most {limit}")


def _learning_rate(value: float) -> float:
    return number("learning_rate", value, "(0, inf)")


def _rho(value: float) -> float:
    """rho < 1: with rho = 1 the clients never come to a consensus."""
    return number("rho", value, "[0, 1)")


def _not_negative(name: str, value: float) -> float:
    return number(name, value, "[0, inf)")
