"""Every registered link process: what it reports is what it draws, in both precisions; files of links replay runs."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from components import CLIENTS, LINK_SETTINGS, PHONES, TRACE
from link_helpers import SIGMAS, context, run_links

from fedpbc.core.engine import draw_links, has_downlink
from fedpbc.core.schema import bind_component
from fedpbc.errors import ConfigError
from fedpbc.experiment.grid import Experiment
from fedpbc.links import LINKS
from fedpbc.runs import draws
from fedpbc.runs.runner import run

SEEDS = 500


def build(tmp_path, name: str, ctx):
    np.save(tmp_path / "trace.npy", np.tile(TRACE, (1, ctx.problem.num_clients // CLIENTS)))
    copies = ctx.problem.num_clients // CLIENTS
    phones = {str(i): PHONES[i // copies] for i in range(ctx.problem.num_clients)}
    (tmp_path / "phones.json").write_text(json.dumps(phones))
    return bind_component(LINKS, LINK_SETTINGS[name], "links[0]", tmp_path).build(ctx)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", LINKS.registry)
def test_participation_is_the_mean_reported_probability(tmp_path, name):
    """Over seeds, which are independent; what is reported may itself be random (places of clients)."""
    shares, probs = [], []
    process = build(tmp_path, name, context(CLIENTS, 6))
    for seed in range(SEEDS if name not in ("trace", "fedscale") else 1):
        if name in ("leo", "cyclic"):
            process = build(tmp_path, name, context(CLIENTS, 6, seed))
        active, prob = (np.asarray(x) for x in run_seed(process, seed))
        shares.append(active.mean())
        probs.append(prob.mean())
    difference = np.array(shares) - np.array(probs)
    error = SIGMAS * difference.std() / np.sqrt(len(shares))
    assert abs(difference.mean()) <= max(error, 1e-6)
    assert 0.05 < np.mean(probs) < 0.95


@jax.jit
def run_seed(process, seed):
    key = jax.random.key(seed)

    def step(state, t):
        state, link = process.step(process.params, jax.random.fold_in(key, t), state, t)
        return state, link

    _, links = jax.lax.scan(step, process.init(process.params, key), np.arange(6, dtype=np.int32))
    return links.active, links.prob


@pytest.mark.every(2)
@pytest.mark.parametrize("name", LINKS.registry)
def test_links_are_the_same_in_both_precisions(tmp_path, name):
    m = 10 * CLIENTS
    rounds = 6 if name in ("trace", "fedscale") else 300
    single, prob = run_links(build(tmp_path, name, context(m, rounds)), rounds)
    assert prob.dtype == np.float32
    with jax.enable_x64(True):
        double, prob64 = run_links(build(tmp_path, name, context(m, rounds, dtype=np.float64)), rounds)
    assert prob64.dtype == np.float64
    np.testing.assert_array_equal(single, double)
    np.testing.assert_allclose(prob, prob64, rtol=1e-4)
    assert 0 < single.mean() < 1


@pytest.mark.every(2)
@pytest.mark.parametrize("name", LINKS.registry)
def test_blocks_of_any_length_give_the_same_links(tmp_path, name):
    process = build(tmp_path, name, context(CLIENTS, 6))
    whole = np.concatenate(list(draw_links(process, 3, 6, CLIENTS, 6)))
    cut = np.concatenate(list(draw_links(process, 3, 6, CLIENTS, 4)))
    np.testing.assert_array_equal(whole, cut)
    assert whole.shape == (6, CLIENTS)
    assert has_downlink(process) == (name == "two_way")


def experiment(links, **changes) -> Experiment:
    table = {
        "name": "links", "rounds": 40, "local_steps": 2, "learning_rate": 0.1, "seeds": [7, 8],
        "problem": {"name": "quadratic", "num_clients": CLIENTS, "dim": 3},
        "links": links, "algorithms": [{"name": "fedpbc"}], **changes,
    }  # fmt: skip
    return Experiment.from_table(table)


@pytest.mark.every(4)
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("ending", ["npy", "csv"])
@pytest.mark.parametrize("name", ["markov", "fading", "cyclic"])
def test_a_run_with_the_written_links_is_the_run_itself(tmp_path, monkeypatch, name, ending, precision):
    monkeypatch.setattr(draws, "BLOCK_CELLS", 11 * CLIENTS)
    itself = experiment([LINK_SETTINGS[name]], precision=precision)
    path = tmp_path / f"trace.{ending}"
    drawn = draws.write_links(itself, itself.links[0], 8, path)
    replayed = itself.replace(links=[{"name": "trace", "path": str(path)}], seeds=[8])
    (theirs,) = run(replayed).cells.values()
    ours = next(cell for key, cell in run(itself).cells.items() if key.seed == 8)
    for metric, values in ours.rows.items():
        np.testing.assert_array_equal(values, theirs.rows[metric], err_msg=metric)
    assert drawn.participation == pytest.approx(ours.rows["num_active"][1:].mean() / CLIENTS)
    assert (drawn.rounds, drawn.clients, drawn.downlink) == (40, CLIENTS, False)
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_link_setting_is_chosen_by_label_or_position():
    two = experiment([{"name": "bernoulli", "prob": p, "label": label} for p, label in ((0.2, "1"), (0.8, "b"))])
    assert draws.choose(two, "b") is two.links[1]
    assert draws.choose(two, "1") is two.links[0]
    assert draws.choose(two, "0") is two.links[0]
    assert draws.choose(experiment([LINK_SETTINGS["leo"]]), None).name == "leo"
    with pytest.raises(ConfigError, match=r"--links: must choose one of 2 settings .*; 0: 1; 1: b"):
        draws.choose(two, None)
    with pytest.raises(ConfigError, match=r'--links "2": must be a label or a position; 0: 1; 1: b'):
        draws.choose(two, "2")


def test_the_two_directions_are_independent_and_each_is_its_process():
    half = {"name": "bernoulli", "prob": 0.5}
    table = {"name": "two_way", "up": half, "down": {**half, "prob": 0.8}}
    process = bind_component(LINKS, table, "links[0]", None).build(context(400))
    links = [process.step(process.params, jax.random.key(t), ((), ()), t)[1] for t in range(50)]
    up, down = (np.array([getattr(link, way) for link in links]) for way in ("active", "downlink"))
    n = up.size
    assert abs(up.mean() - 0.5) < SIGMAS * 0.5 / np.sqrt(n)
    assert abs(down.mean() - 0.8) < SIGMAS * 0.4 / np.sqrt(n)
    assert abs(np.corrcoef(up.ravel(), down.ravel())[0, 1]) < SIGMAS / np.sqrt(n)
    assert np.all(links[0].prob == 0.5)
    np.testing.assert_array_equal(links[0].receives, down[0])


def test_offsets_of_the_two_directions_differ():
    way = {"name": "cyclic", "prob": 0.5, "period": 100}
    process = bind_component(LINKS, {"name": "two_way", "up": way, "down": way}, "links[0]", None).build(context(50))
    up, down = process.init(process.params, jax.random.key(0))
    assert not np.array_equal(up, down)


def test_two_way_does_not_nest(tmp_path):
    with pytest.raises(ConfigError, match=r'links\[0\].up.name = "two_way": unknown link process'):
        bind_component(LINKS, {"name": "two_way", "up": {"name": "two_way"}}, "links[0]", tmp_path)
    with pytest.raises(ConfigError, match=r"missing key links\[0\].down"):
        bind_component(LINKS, {"name": "two_way", "up": {"name": "leo"}}, "links[0]", tmp_path)
