"""FedStale: between FedAvg and FedVARP, by how much stale updates count (Rodio & Neglia, arXiv 2405.04171)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from fedpbc.algorithms.common.broadcast import at_start, broadcast_and_train, forget, heard, models, nothing_known
from fedpbc.algorithms.common.weighting import no_memory
from fedpbc.algorithms.differences import mean_with
from fedpbc.algorithms.fedau import weighting as intervals
from fedpbc.algorithms.fedavg import WEIGHTING as MEAN
from fedpbc.algorithms.fedavg_known import weights as known_weights
from fedpbc.core.aggregation import select, weighted_sum
from fedpbc.core.schema import Context, Fraction, NonNegativeInt, Positive, component
from fedpbc.core.types import Algorithm, Array, Cost, Round, Weighting


class State(NamedTuple):
    """Models, the table of latest updates and its mean, and what the weights remember."""

    server: Array
    clients: Array
    table: Array
    """h_i, the latest Delta_i, [m, d]; 0 until i is heard."""
    mean: Array
    """(1/m) sum_i h_i, [d], kept up incrementally."""
    weighting: Any


@component
def fedstale(
    context: Context,
    *,
    beta: Fraction = 0.5,
    weights: Literal["intervals", "known", "mean"] = "intervals",
    cutoff: NonNegativeInt = 50,
    server_learning_rate: Positive = 1.0,
) -> Algorithm:
    """x += eta_g (beta mean of all latest updates h + sum over A of w_i (update - beta h_i)) (arXiv 2405.04171).

    ``beta``: how much stale updates count: (1 - beta) of FedAvg and beta of FedVARP, with the same w_i. ``weights``:
    1/(m p_i^t), an oracle, as in the paper ("known"); FedAU's mean intervals over m, with which the paper's program
    estimates them ("intervals"; ``cutoff`` is K of FedAU, there none); or 1/|A| (ours, "mean"): FedAvg and FedVARP as
    they are here. beta = 0 is then fedavg_known, fedau or fedavg. The server keeps the h_i (m models).
    """
    weighting = {
        "intervals": intervals(cutoff),
        "known": Weighting((), no_memory, known_weights),
        "mean": MEAN,
    }[weights]
    params = {
        "weighting": weighting,
        "beta": np.asarray(beta, context.dtype),
        "rate": context.number("server_learning_rate", server_learning_rate),
        "goes_on": np.asarray(weights != "mean"),
    }
    needs = "p_i^t of every client and round" if weights == "known" else ""
    return Algorithm(params, _init, _round, models, forget, Cost(server=2, server_per_client=1, needs=needs))


def _init(params: dict[str, Any], x0: Array, num_clients: int) -> State:
    weighting = params["weighting"]
    memory = weighting.init(weighting.params, num_clients, x0.dtype)
    return State(x0, at_start(x0, num_clients), nothing_known(x0, num_clients), x0 * 0, memory)


def direction(
    beta: Array, table: Array, mean: Array, update: Array, weights: Array, reported: Array
) -> tuple[Array, Array, Array]:
    """(beta hbar + sum over A of w_i (Delta_i - beta h_i), the new table, the new mean).

    The step uses h_i and hbar from before the round, then both are updated.

    >>> update, half, first = np.array([[4.0], [9.0]]), np.array([0.5, 0.5]), np.array([True, False])
    >>> step, table, mean = direction(0.5, np.array([[2.0], [6.0]]), np.array([4.0]), update, half, first)
    >>> step.tolist(), table.tolist(), mean.tolist()
    ([3.5], [[4.0], [6.0]], [5.0])
    """
    step = beta * mean + weighted_sum(update - beta * table, weights, reported)
    return step, select(reported, update, table), mean_with(mean, update - table, reported)


def _round(params: dict[str, Any], state: State, round: Round) -> State:
    """x^(t+1) = x^t + eta_g direction; then h_i = Delta_i for i in A^t. The weights see every round.

    Empty A^t: x^t under "mean", whose w_i are not defined then; else x^t + eta_g beta hbar, as the rule says (a round
    left out would weigh the absent less). Cool-down: model and table stay.

    Source: the authors' program (arodio/FedStale: the weights 1/p_i in client_sampler.py, h_i times 1/m - w_i in A and
    1/m outside it in history_tracker.py, beta in HistorySGD; it leaves a round without clients out). Of the paper only
    abstract and introduction were to be had.
    """
    weighting, xp = params["weighting"], state.table.__array_namespace__()
    trained = broadcast_and_train(state.server, state.clients, round)
    memory, weights = weighting.step(weighting.params, state.weighting, round.link, round.index)
    reported = heard(round)
    step, table, mean = direction(params["beta"], state.table, state.mean, trained.update, weights, reported)
    moves = (round.num_steps > 0) & (params["goes_on"] | reported.any())
    server = xp.where(moves, state.server + params["rate"] * step, state.server)
    return State(server, trained.end, table, mean, memory)
