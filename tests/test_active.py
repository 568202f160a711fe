"""Who is not needed is not computed, and nobody can tell from the results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from tests.components import own

from fedpbc.algorithms import ALGORITHMS
from fedpbc.core.local import DEVICES, map_clients, map_some
from fedpbc.core.programs import Programs
from fedpbc.experiment.grid import Experiment
from fedpbc.runs.runner import run


def train_one(row, client):
    return jnp.sin(row * 3.7) @ jnp.cos(jnp.outer(row, row)) + client


def some(rows, needed, size, num_devices):
    def here(rows, needed):
        return map_some(train_one, (rows,), needed, size, num_devices)

    if num_devices > 1:
        mesh, everywhere = Mesh(np.array(jax.devices()[:num_devices]), (DEVICES,)), PartitionSpec()
        here = jax.shard_map(here, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
    return np.asarray(jax.jit(here)(rows, needed))


@pytest.mark.every(3)
@pytest.mark.parametrize("num_devices", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 4, 11, 40])
def test_those_needed_get_what_they_get_when_all_are_computed(size, num_devices):
    m, rng = 11, np.random.default_rng(size)
    rows = rng.standard_normal((m, 6)).astype(np.float32)
    every = np.asarray(jax.jit(lambda rows: map_clients(train_one, (rows,), size, 1))(rows))
    for count in (0, 1, 3, 4, 5, m - 1, m):
        needed = np.zeros(m, bool)
        needed[rng.permutation(m)[:count]] = True
        np.testing.assert_array_equal(some(rows, needed, size, num_devices), np.where(needed[:, None], every, rows))


@pytest.mark.parametrize(
    ("clients", "computed"), [([1, 5, 6, 11], [1, 5, 6, 11, 11, 11]), ([1, 5, 6], [1, 5, 6]), ([], [])]
)
def test_no_more_chunks_run_than_are_needed(clients, computed):
    """Of four of three clients; counted by a callback from inside the compiled program."""
    ran = []

    def told(row, client):
        jax.debug.callback(lambda i: ran.append(int(i)), client)
        return row

    rows = np.zeros((12, 2), np.float32)
    needed = np.isin(np.arange(12), clients)
    jax.block_until_ready(jax.jit(lambda r, n: map_some(told, (r,), n, 3, 1))(rows, needed))
    jax.effects_barrier()
    assert sorted(ran) == computed


def experiment(algorithm, links, **changes) -> Experiment:
    return Experiment.from_table(
        {
            "name": "active",
            "rounds": 12,
            "local_steps": 3,
            "learning_rate": 0.05,
            "seeds": [3],
            "cooldown_rounds": 2,
            "chunk_size": 3,
            "problem": {"name": "quadratic", "num_clients": 8, "dim": 3},
            "links": [links],
            "algorithms": [algorithm],
        }
        | changes
    )


@pytest.mark.first(2)
@pytest.mark.parametrize("name", sorted(own(ALGORITHMS)))
def test_the_servers_model_does_not_depend_on_whether_the_mean_is_measured(name):
    """Under "all", clients that are not heard are left out where the method would not use them: the same bits."""
    e = experiment({"name": name}, {"name": "markov", "prob": 0.4, "memory": 0.6})
    both, server = run(e), run(e.replace(metrics=["server"]))
    for a, b in zip(both.cells.values(), server.cells.values(), strict=True):
        np.testing.assert_array_equal(a.models["server"], b.models["server"])
        np.testing.assert_array_equal(a.rows["gradient_steps"], b.rows["gradient_steps"])


def test_with_a_downlink_of_their_own_everybody_goes_on_computing():
    links = {"name": "two_way", "up": {"name": "bernoulli", "prob": 0.5}, "down": {"name": "bernoulli", "prob": 0.5}}
    e = experiment({"name": "fedavg"}, links, cooldown_rounds=0)
    both, server = run(e), run(e.replace(metrics=["server"]))
    for a, b in zip(both.cells.values(), server.cells.values(), strict=True):
        np.testing.assert_array_equal(a.models["server"], b.models["server"])


def test_active_clients_alone_have_the_same_bits_on_several_devices():
    e = experiment({"name": "fedpbc"}, {"name": "bernoulli", "prob": 0.3}, compute=["active"])
    results = [run(e, programs=Programs(jax.devices()[:n]), devices=n, side_by_side=False) for n in (1, 2, 3)]
    tables = [{n: a.tobytes() for n, a in next(iter(r.cells.values())).rows.items()} for r in results]
    assert tables[0] == tables[1] == tables[2]
