"""Buffers of a model in the simulator: averaged and never extrapolated, under every method."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from network_oracles import resnet_with_batch_norm

import fedpbc
from fedpbc.algorithms import ALGORITHMS
from fedpbc.core.buffers import Buffers, mean_of_all
from fedpbc.core.types import Link

M, ROUNDS, STEPS = 5, 14, 2
ACTIVE = np.random.default_rng(3).random((ROUNDS, M)) < np.linspace(0.2, 0.9, M)
ACTIVE[4], ACTIVE[7] = False, True
FEATURES = (np.random.default_rng(4).standard_normal((M, 4)) * np.array([1e-3, 0.01, 0.1, 1, 3])[:, None]).astype("f4")
"""One sample of each client, so that a minibatch is no question of chance."""
AFTER = {"fedpbc", "fedpbc_corrected", "fedawe"}
"""Methods that send the model after the round."""


def init(key, shape, num_outputs):
    weights = 0.1 * jax.random.normal(key, (*shape, num_outputs))
    return {"w": weights}, {"var": jnp.ones(()), "count": jnp.int32(3), "seen": jnp.array(False)}


def apply(params, features):
    weights, buffers = params
    return features / jnp.sqrt(buffers["var"]) @ weights["w"]


def train(params, features):
    weights, buffers = params
    var = features.var()
    after = {
        "var": 0.4 * buffers["var"] + 0.6 * var,
        "count": buffers["count"] + 1,
        "seen": jnp.array(True),
    }
    return features / jnp.sqrt(var + 1e-5) @ weights["w"], after


def trained(buffers, i):
    var, count, seen = buffers
    for _ in range(STEPS):
        var, count, seen = 0.4 * var + 0.6 * FEATURES[i].astype(np.float64).var(), count + 1, 1
    return var, count, seen


def expected(after):
    """The server's, and the mean of the clients', after the last round: (var, count, seen)."""
    server, clients = (1.0, 3, 0), [(1.0, 3, 0)] * M
    for active in ACTIVE:
        if not after:
            clients = [server if active[i] else clients[i] for i in range(M)]
        clients = [trained(clients[i], i) for i in range(M)]
        heard = [clients[i] for i in np.flatnonzero(active)]
        if heard:
            var, count, seen = np.mean(heard, axis=0)
            server = (var, int(np.rint(count)), int(seen >= 0.5))
        if after:
            clients = [server if active[i] else clients[i] for i in range(M)]
    return server, np.mean(clients, axis=0)


def problem():
    data = fedpbc.data.from_arrays(FEATURES, np.arange(M) % 2, client=np.arange(M))
    return fedpbc.problems.classification(data, model=fedpbc.models.functions(init=init, apply=apply, train=train))


def write_trace(folder):
    rows = [f"{t},{i}\n" for t, i in np.argwhere(ACTIVE)]
    (folder / "trace.csv").write_text("round,client\n" + "".join(rows))


def check(names, tmp_path, **options):
    write_trace(tmp_path)
    run = fedpbc.simulate(
        problem(), links=fedpbc.links.trace(path=tmp_path / "trace.csv", missing_rounds="empty"), algorithm=names,
        rounds=ROUNDS, local_steps=STEPS, learning_rate=2.0, progress=False, eval_every=ROUNDS, **options,
    )  # fmt: skip
    for name in names:
        (var, count, seen), everybody = expected(name in AFTER)
        found = run.model(algorithm=name)[1]
        assert found["count"].dtype == np.int32
        assert found["var"] > 0
        assert (int(found["count"]), bool(found["seen"])) == (count, bool(seen)), name
        np.testing.assert_allclose(found["var"], var, rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(run.model("mean", algorithm=name)[1]["var"], everybody[0], rtol=1e-5, err_msg=name)
    return run


def test_methods_that_send_before_and_after_the_round(tmp_path):
    run = check(["fedpbc", "mifa"], tmp_path)
    run.save(tmp_path / "run")
    again = fedpbc.read_run(tmp_path / "run")
    for model in ("server", "mean"):
        pairs = zip(*(jax.tree.leaves(r.model(model, algorithm="mifa")) for r in (run, again)), strict=True)
        assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in pairs)
    run.save_model(tmp_path / "model.npz", algorithm="mifa")
    params, buffers = fedpbc.load_model(tmp_path / "model.npz")
    logits = apply(run.model(algorithm="mifa"), FEATURES)
    np.testing.assert_array_equal(apply((params, buffers), FEATURES), logits)
    losses = np.log(np.exp(logits).sum(axis=1)) - np.asarray(logits)[np.arange(M), np.arange(M) % 2]
    assert run.final("server_train_loss", algorithm="mifa") == pytest.approx(losses.mean(), rel=1e-5)


@pytest.mark.release
def test_every_method(tmp_path):
    names = [name for name, factory in ALGORITHMS.registry.items() if not factory.from_outside]
    assert len(names) > 12
    check(names, tmp_path)


def test_the_resnet_has_a_mean_and_a_variance_for_each_norm():
    data = fedpbc.data.from_arrays(np.zeros((4, 4, 4, 1), "f4"), np.arange(4) % 2, client=np.arange(4))
    built = fedpbc.problems.classification(data, model=fedpbc.models.resnet([3, 5], norm="batch")).build(
        fedpbc.Context(0, np.dtype(np.float32), 1)
    )
    assert set(built.buffers["stem"]) == {"norm"}
    assert [set(block) for (block,) in built.buffers["stages"]] == [{"norm1", "norm2"}, {"norm1", "norm2", "norm3"}]
    for running in (built.buffers["stem"]["norm"], built.buffers["stages"][0][0]["norm2"]):
        np.testing.assert_array_equal((running["running_mean"], running["running_var"]), ([0] * 3, [1] * 3))


@pytest.mark.release
@pytest.mark.parametrize("method", ["mifa", "fedvarp", "scaffold"])
def test_the_statistics_of_the_resnet_are_averaged(method, tmp_path):
    """Every client has one image, so that with steps of almost no length all is known; long steps then leave the
    variances positive, whatever the method makes of the parameters."""
    images = np.random.default_rng(6).standard_normal((M, 2, 2, 1)).astype("f4")
    write_trace(tmp_path)
    data = fedpbc.data.from_arrays(images, np.arange(M) % 2, client=np.arange(M))
    algorithm = getattr(fedpbc.algorithms, method)()
    run = fedpbc.simulate(
        fedpbc.problems.classification(data, model=fedpbc.models.resnet([2], norm="batch")),
        links=fedpbc.links.trace(path=tmp_path / "trace.csv", missing_rounds="empty"), rounds=ROUNDS,
        algorithm=[algorithm.using(label=k, learning_rate=v) for k, v in (("still", 1e-12), ("far", 0.5))],
        local_steps=STEPS, learning_rate=1.0, batch_size=3, metrics=["server"], progress=False, eval_every=ROUNDS,
    )  # fmt: skip
    params, found = run.model(algorithm="still")
    start = jax.tree.map(lambda a: np.zeros(a.shape), found)
    for block in (start["stem"], *start["stages"][0]):
        for running in block.values():
            running["running_var"] += 1

    def trained(buffers, i):
        for _ in range(STEPS):
            _, buffers = resnet_with_batch_norm((params, buffers), np.repeat(images[i : i + 1], 3, axis=0), True)
        return buffers

    server = start
    for active in ACTIVE:
        heard = [trained(server, i) for i in np.flatnonzero(active)]
        server = jax.tree.map(lambda *a: np.mean(a, axis=0), *heard) if heard else server
    for mine, wanted in zip(*map(jax.tree.leaves, (found, server)), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=2e-4, atol=1e-5)
    moved, far = run.model(algorithm="far")
    assert not np.allclose(moved["stem"]["conv"], params["stem"]["conv"], atol=1e-2)
    for block in (far["stem"], *far["stages"][0]):
        assert all((running["running_var"] > 0).all() for running in block.values())


@pytest.mark.release
def test_they_do_not_depend_on_devices_chunks_or_interruptions(tmp_path):
    runs = [
        fedpbc.simulate(
            problem(), links=fedpbc.links.bernoulli(prob=0.5), algorithm=["fedpbc", "scaffold"], rounds=6,
            local_steps=2, learning_rate=0.1, devices=devices, chunk_size=2, progress=False,
            state_loss={"round": 3, "share": 0.4}, metrics=metrics,
        )
        for devices, metrics in ((1, ["server", "mean"]), (2, ["server", "mean"]), (1, ["server"]))
    ]  # fmt: skip
    for method in ("fedpbc", "scaffold"):
        first, *others = (jax.tree.leaves(run.model(algorithm=method)) for run in runs)
        for other in others:
            assert all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_round_of_buffers_is_that_of_numpy():
    """Downlinks of their own, and large counters, which a mean in 32 bits of floats would not keep."""
    rng = np.random.default_rng(0)
    active, down = rng.random(8) < 0.5, rng.random(8) < 0.5
    link = Link(jnp.array(active), jnp.ones(8), jnp.array(down))
    count = 2**30 + rng.integers(0, 9, 8)
    before = Buffers(jnp.int32(2**30 + 1), jnp.array(count, jnp.int32))
    for broadcast in (True, False):
        start = np.where(down, 2**30 + 1, count) if broadcast else count
        np.testing.assert_array_equal(before.before(link, broadcast), start)
        after = before.after(jnp.array(start + 5, jnp.int32), link, broadcast, jnp.array(True))
        server = np.rint((start[active] + 5).mean())
        assert int(after.server) == server
        clients = start + 5 if broadcast else np.where(active & down, server, start + 5)
        np.testing.assert_array_equal(after.clients, clients)
    still = before.after(before.clients, link, True, jnp.array(False))  # the cool-down of a method that sends before
    assert int(still.server) == 2**30 + 1
    assert int(mean_of_all(before.clients)) == np.rint(count.mean())
    lost = jnp.arange(8) < 3
    np.testing.assert_array_equal(before.forget(lost, jnp.int32(0)).clients, np.where(lost, 0, count))


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"init": lambda key, shape, k: {"w": jnp.zeros((4, k))}}, "init: gave a dict, must give .params, buffers."),
        ({"train": lambda p, x: apply(p, x)}, "train: "),
        (
            {"train": lambda p, x: (apply(p, x), {**p[1], "count": 1.5})},
            "train: makes other buffers, .*count: float32.*than init, .*count: int32",
        ),
    ],
)
def test_what_does_not_fit_is_one_clear_line(own, message):
    functions = {"init": init, "apply": apply, "train": train} | own
    data = fedpbc.data.from_arrays(FEATURES, np.arange(M) % 2, client=np.arange(M))
    model = fedpbc.models.functions(**functions)
    with pytest.raises(fedpbc.ConfigError, match=message) as caught:
        fedpbc.problems.classification(data, model=model).build(fedpbc.Context(0, np.dtype(np.float32), 1))
    assert "\n" not in str(caught.value)
