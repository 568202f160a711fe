"""The conformance kit refuses what it says it refuses: one broken component for each of its checks, and sound ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpbc.core.types import Algorithm, Cost, Link, LinkProcess, Problem
from fedpbc.testing import ConformanceError, check_algorithm, check_links, check_problem


class State(NamedTuple):
    server: Any
    clients: Any


def init(params: Any, x0: Any, m: int) -> State:
    return State(x0, jnp.tile(x0, (m, 1)))


def models(state: State) -> State:
    return state


def forget(params: Any, state: State, lost: Any, x0: Any, t: Any) -> State:
    return state._replace(clients=jnp.where(lost[:, None], x0, state.clients))


def trained(state: State, round: Any) -> tuple[Any, Any]:
    start = jnp.where(round.link.receives[:, None], state.server, state.clients)
    end = round.train(start)
    return end, end - start


def heard(update: Any, active: Any) -> Any:
    return jnp.where(active[:, None], update, 0)


def sound(params: Any, state: State, round: Any) -> State:
    end, update = trained(state, round)
    count = jnp.maximum(round.link.active.sum(), 1)
    return State(state.server + heard(update, round.link.active).sum(axis=0) / count, end)


def multiplies(params: Any, state: State, round: Any) -> State:
    end, update = trained(state, round)
    active = round.link.active
    return State(state.server + (update * active[:, None]).sum(axis=0) / jnp.maximum(active.sum(), 1), end)


def prefers_client_0(params: Any, state: State, round: Any) -> State:
    end, update = trained(state, round)
    weights = 1.0 / (1 + jnp.arange(len(end)))
    return State(state.server + weights.astype(end.dtype) @ heard(update, round.link.active), end)


def reads_p(params: Any, state: State, round: Any) -> State:
    end, update = trained(state, round)
    known = heard(update / round.link.prob[:, None], round.link.active)
    return State(state.server + known.sum(axis=0) / len(end), end)


def decays_alone(params: Any, state: State, round: Any) -> State:
    after = sound(params, state, round)
    return after._replace(server=jnp.where(round.link.active.any(), after.server, 0.5 * after.server))


def forgets_nothing(params: Any, state: State, lost: Any, x0: Any, t: Any) -> State:
    return state


def forgets_everybody(params: Any, state: State, lost: Any, x0: Any, t: Any) -> State:
    return state._replace(clients=jnp.where(lost.any(), x0, state.clients))


def the_server_knows(params: Any, state: State, lost: Any, x0: Any, t: Any) -> State:
    return forget(params, state, lost, x0, t)._replace(server=jnp.where(lost.any(), x0, state.server))


ALGORITHM = Algorithm((), init, sound, models, forget, Cost(client=1))
WRONG_ALGORITHMS = [
    ({"round": multiplies}, "a NaN of a client that is not active reaches the server"),
    ({"round": prefers_client_0}, "another order of the clients gives another result"),
    ({"round": reads_p}, "reads link.prob"),
    ({"round": decays_alone}, "rounds in which nobody was ever active move the server"),
    ({"forget": forgets_nothing}, "a client that lost all it keeps must go on from x"),
    ({"forget": forgets_everybody}, "forget: changes clients that lost nothing"),
    ({"forget": the_server_knows}, "forget: changes the server"),
]


@pytest.fixture
def quick(monkeypatch):
    """Without the runs, which compile: what is wrong here shows when the method is stepped."""
    monkeypatch.setattr("fedpbc.testing.algorithms._check_runs", lambda component: None)
    monkeypatch.setattr("fedpbc.testing.algorithms.check_devices", lambda experiment: None)


@pytest.mark.parametrize(("change", "message"), WRONG_ALGORITHMS, ids=lambda v: v if isinstance(v, str) else "")
@pytest.mark.usefixtures("quick")
def test_a_wrong_algorithm_does_not(change, message):
    with pytest.raises(ConformanceError, match=message):
        check_algorithm(lambda context: dataclasses.replace(ALGORITHM, **change))


@pytest.mark.usefixtures("quick")
def test_a_sound_algorithm_passes_and_an_oracle_may_read_p():
    check_algorithm(lambda context: ALGORITHM)
    check_algorithm(lambda context: dataclasses.replace(ALGORITHM, round=reads_p), oracle=True)


def no_state(params: Any, key: Any) -> tuple[()]:
    return ()


def bits(key: Any, prob: Any) -> Any:
    return jax.random.bits(key, prob.shape, jnp.uint16) < (prob * 65536).astype(jnp.int32)


def as_it_says(prob: Any, key: Any, state: Any, t: Any) -> Any:
    return state, Link(bits(key, prob), prob)


def less_than_it_says(prob: Any, key: Any, state: Any, t: Any) -> Any:
    return state, Link(bits(key, prob), prob + jnp.asarray(0.2, prob.dtype))


def given_the_past(prob: Any, key: Any, state: Any, t: Any) -> Any:
    """Half leave, nobody comes back: right given A^(t-1), which is not what is asked for."""
    now = state & bits(key, prob)
    return now, Link(now, prob)


def everybody_on(prob: Any, key: Any) -> Any:
    return jnp.ones(prob.shape, bool)


def in_its_precision(prob: Any, key: Any, state: Any, t: Any) -> Any:
    return state, Link(jax.random.uniform(key, prob.shape, prob.dtype) < prob, prob)


def of_no_seed(prob: Any, key: Any, state: Any, t: Any) -> Any:
    return state, Link((jnp.arange(len(prob)) + t) % 2 == 0, prob)


def beyond_1(prob: Any, key: Any, state: Any, t: Any) -> Any:
    return state, Link(bits(key, prob), 3 * prob)


def links_of(step: Callable[..., Any], first: Callable[..., Any] = no_state) -> Any:
    """A process whose clients have probability 1/2."""

    def links(context: Any) -> LinkProcess:
        return LinkProcess(np.full(context.problem.num_clients, 0.5, context.dtype), first, step)

    return links


def made_anew(context: Any) -> LinkProcess:
    """Another function for every seed."""
    return links_of(lambda *given: as_it_says(*given))(context)


def differs_every_time(context: Any) -> LinkProcess:
    share = np.random.default_rng().uniform(0.2, 0.8, context.problem.num_clients)
    return LinkProcess(share.astype(context.dtype), no_state, as_it_says)


@pytest.mark.release
def test_sound_links_pass():
    check_links(links_of(as_it_says))


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("links", "message"),
    [
        (links_of(less_than_it_says), "more often than prob says"),
        (links_of(given_the_past, everybody_on), "more often than prob says"),
        (links_of(in_its_precision), "float32 and float64 runs see other links"),
        (links_of(of_no_seed), "every seed gives the same links"),
        (links_of(beyond_1), r"prob lies outside \[0, 1\]"),
        (differs_every_time, "the same seed gives other links"),
        (made_anew, "programs were compiled where 1 suffice"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_wrong_links_do_not(links, message):
    with pytest.raises(ConformanceError, match=message):
        check_links(links, marginal=links is not made_anew)  # which would compile a program for each of 300 seeds


CENTERS = np.arange(12.0).reshape(4, 3)


def sample(centers: Any, client: Any, key: Any, batch_size: int) -> Any:
    return centers[client]


def gradient(center: Any, x: Any) -> Any:
    return x - center


def sums(centers: Any, models: Any, block: Any) -> Any:
    return 0.5 * jnp.mean(jnp.sum((models[:, None] - centers) ** 2, axis=2), axis=1)


def loss_of(centers: Any, models: Any, loss: Any) -> Any:
    return {"train_loss": loss}


def above_the_best(centers: Any, models: Any, loss: Any) -> Any:
    return {"train_loss": loss, "regret": loss - loss.min()}


def not_a_number(centers: Any, models: Any, loss: Any) -> Any:
    return {"train_loss": loss, "rate": jnp.log(models[:, 0] - 1e3)}


def of_the_first_alone(centers: Any, models: Any, loss: Any) -> Any:
    return {"train_loss": loss[0]}


def twice(center: Any, x: Any) -> Any:
    return 2 * gradient(center, x)


def one_client_alone(centers: Any, client: Any, key: Any, batch_size: int) -> Any:
    return centers[0]


def problem_of(**changes: Any) -> Any:
    def problem(context: Any) -> Problem:
        centers = CENTERS.astype(context.dtype)
        given = {"sample": sample, "gradient": gradient, "metrics": loss_of, "block_sums": sums, **changes}
        return Problem(params=centers, num_clients=4, init=np.zeros(3, context.dtype), num_blocks=1, work=9.0, **given)

    return problem


def test_a_sound_problem_passes():
    check_problem(problem_of())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gradient": twice}, "the gradient is not that of train_loss"),
        ({"sample": one_client_alone}, "the gradient is not that of train_loss"),
        ({"metrics": above_the_best}, "metric regret of a model depends on what else is evaluated"),
        ({"metrics": not_a_number}, "metric rate is not finite"),
        ({"metrics": of_the_first_alone}, r"metric train_loss has shape \(\) for two models"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_wrong_problem_does_not(changes, message):
    with pytest.raises(ConformanceError, match=message):
        check_problem(problem_of(**changes))
