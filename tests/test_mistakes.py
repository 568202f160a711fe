"""Mistakes in a stranger's component that only compiling would show: one line that names it, before anything runs."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tomli_w

import fedpbc
from fedpbc import algorithms, data, links, problems
from fedpbc.core import contract
from fedpbc.core.types import Algorithm, Cost, Link, LinkProcess, Models, Problem, ServerOptimizer, TimeFunction
from fedpbc.errors import ConfigError

M, D = 4, 3
X = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
CLIENT = np.arange(60) % M
DATA = data.from_arrays(X, Y, client=CLIENT)


def simulate(problem: Any = None, **changes: Any) -> fedpbc.Run:
    options = {
        "links": links.bernoulli(prob=0.5), "algorithm": algorithms.fedpbc(), "rounds": 4, "local_steps": 2,
        "learning_rate": 0.05, "progress": False, **changes,
    }  # fmt: skip
    return fedpbc.simulate(problem or problems.quadratic(num_clients=M, dim=D), **options)


def on(active: Any = None, prob: Any = None, downlink: Any = None) -> Link:
    return Link(jnp.ones(M, bool) if active is None else active, jnp.ones(M) if prob is None else prob, downlink)


def process(step: Any = lambda p, k, s, t: (s, on()), init: Any = lambda p, k: (), params: Any = ()) -> LinkProcess:
    return LinkProcess(params, init, step)


CHANGING = process(lambda p, k, s, t: (0.5 * s, on()), lambda p, k: jnp.zeros(M, int))
LINKS = {
    "a state of integers becomes floats": (CHANGING, r"step changes the shape or type of state: int32\[4\] becomes f"),
    "a constant of NumPy of another type": (
        process(lambda p, k, s, t: (np.ones(M), on()), lambda p, k: jnp.zeros(M, bool)),
        r"step changes the shape or type of state: bool\[4\] becomes float32\[4\]",
    ),
    "a state that grows": (
        process(lambda p, k, s, t: (jnp.concatenate([s, s]), on()), lambda p, k: jnp.zeros(M)),
        r"step changes the shape or type of state: float32\[4\] becomes float32\[8\]",
    ),
    "a state of another structure": (
        process(lambda p, k, s, t: ((s, s), on()), lambda p, k: jnp.zeros(M)),
        r"step changes the structure of the state: float32\[4\] becomes \(float32\[4\], float32\[4\]\)",
    ),
    "a Python if": (process(lambda p, k, s, t: (s, on() if t > 2 else on(t < jnp.ones(M)))), "step fails: .*jnp.where"),
    "a shape that depends on t": (process(lambda p, k, s, t: (jnp.zeros(t), on())), "step fails: TypeError: Shapes"),
    "lists": (process(lambda p, k, s, t: (s, Link([True] * M, [1.0] * M))), "active is a list, must be bool"),
    "no mask": (process(lambda p, k, s, t: (s, Link(None, jnp.ones(M)))), "active is None, must be bool"),
    "the link alone": (process(lambda p, k, s, t: on()), r"step must give \(state, Link\), gave Link alone"),
    "a downlink of numbers": (
        process(lambda p, k, s, t: (s, on(downlink=jnp.ones(M)))), r"downlink is float32\[4\], must be bool\[4\]",
    ),
    "a probability that is no number": (
        process(lambda p, k, s, t: (s, on(prob=jnp.array([0.5, jnp.nan, 1, 1])))),
        "prob of client 1 is nan in round 0, must be in",
    ),
    "a word in params": (process(params={"mode": "x"}), r"""params\['mode'\] is "x", must be an array of numbers"""),
    "a word as state": (process(init=lambda p, k: "up"), "init fails: TypeError"),
    "a process inside another": (
        links.two_way(up=CHANGING, down=links.bernoulli(prob=0.5)),
        r"step changes the shape or type of state\[0\]: int32\[4\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LINKS)
def test_links(name):
    mistake, message = LINKS[name]
    with pytest.raises(ConfigError, match=rf"^links\[0\]: {message}"):
        simulate(links=mistake)


class State(NamedTuple):
    server: Any
    clients: Any
    extra: Any = ()


def method(**changes: Any) -> Algorithm:
    functions = {
        "init": lambda p, x0, m: State(x0, jnp.tile(x0, (m, 1)), jnp.zeros(m, int)),
        "round": lambda p, s, r: s,
        "models": lambda s: Models(s.server, s.clients),
        "forget": lambda p, s, lost, x0, t: s,
        "cost": Cost(),
        **changes,
    }
    return Algorithm((), **functions)


def training(*arguments: Any) -> Algorithm:
    return method(round=lambda p, s, r: s._replace(clients=r.train(s.clients, *arguments)))


LOSS = {"round": 1, "share": 0.5}
METHODS = {
    "a count becomes floats": (
        method(round=lambda p, s, r: s._replace(extra=s.extra + r.link.prob)),
        r"round changes the shape or type of state.extra: int32\[4\] becomes float32\[4\]",
    ),
    "a mask as an index": (
        method(round=lambda p, s, r: s._replace(server=s.clients[r.link.active].mean(0))),
        "round fails: NonConcreteBooleanIndexError: .*use jnp.where",
    ),
    "the server is trained": (
        method(round=lambda p, s, r: s._replace(clients=r.train(s.server))),
        r"round trains models float32\[3\], must be float32\[4, 3\]",
    ),
    "half of the clients are trained": (
        method(round=lambda p, s, r: s._replace(clients=jnp.tile(r.train(s.clients[:2]), (2, 1)))),
        r"round trains models float32\[2, 3\], must be float32\[4, 3\]",
    ),
    "one shift for all": (training(jnp.ones(D)), r"round trains with shift float32\[3\], must be float32\[4, 3\]"),
    "a proximal term for each": (training(None, jnp.ones(M)), r"round trains with proximal float32\[4\], must be one"),
    "whole numbers as a model": (
        method(models=lambda s: Models(s.server.astype(int), s.clients)),
        r"models gives server int32\[3\], must be float32\[3\]",
    ),
    "no cost": (method(cost=None), "cost is None, must be a Cost"),
    "what forgets forgets the rest": (
        method(forget=lambda p, s, lost, x0, t: s.server),
        r"forget changes the structure of the state: .* becomes float32\[3\]",
    ),
    "a server optimiser inside": (
        algorithms.fedavg(server=ServerOptimizer((), lambda p, x0: (), lambda p, m, u: (m, u[:2]))),
        "round fails: TypeError: add got incompatible shapes",
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods(name):
    mistake, message = METHODS[name]
    with pytest.raises(ConfigError, match=rf"^algorithms\[0\]: {message}"):
        simulate(algorithm=mistake, state_loss=LOSS)


def problem(**changes: Any) -> Problem:
    fields = {
        "params": (jnp.zeros(D),), "num_clients": M, "init": np.zeros(D, np.float32), "num_blocks": 1, "work": 1.0,
        "sample": lambda p, c, k, n: (), "gradient": lambda b, x: x, "block_sums": lambda p, x, b: (x**2).sum(1),
        "metrics": lambda p, x, s: {"train_loss": s}, **changes,
    }  # fmt: skip
    return Problem(**fields)


PROBLEMS = {
    "init": ({"init": [0.0] * D}, r"init is a list, must be a vector \[d\] of float32"),
    "num_clients": ({"num_clients": 4.0}, "num_clients is 4.0, must be an integer"),
    "num_blocks": ({"num_blocks": 0}, "num_blocks is 0, must be an integer, at least 1"),
    "work": ({"work": None}, "work is None, must be a number"),
    "params": ({"params": {"a": "x"}}, r"""params\['a'\] is "x", must be an array of numbers"""),
    "sample": ({"sample": lambda p, c, k, n: c if c > 0 else ()}, "sample fails: TracerBoolConversionError"),
    "gradient": ({"gradient": lambda b, x: x[:2]}, r"gradient gives float32\[2\], must give float32\[3\]"),
    "gradient of another type": ({"gradient": lambda b, x: x.astype(int)}, r"gradient gives int32\[3\], must give f"),
    "block_sums": ({"block_sums": lambda p, x, b: x.sum(1) if b > 0 else x.min(1)}, "block_sums fails: Tracer"),
    "one for both": ({"metrics": lambda p, x, s: {"a": s.mean()}}, r"metric a is float32\[\] for two models"),
    "a list": ({"metrics": lambda p, x, s: [s]}, "metrics gives a list, must give a table"),
    "measures": ({"measures": ["loss"]}, "measures is a list, must be a table"),
    "client_traits": ({"client_traits": {"age": np.ones(2)}}, r"client_traits.age has shape \(2,\), must be one entry"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems(name):
    changes, message = PROBLEMS[name]
    with pytest.raises(ConfigError, match=rf"^problem: {message}"):
        simulate(problem(**changes))


SQUARE = lambda p, b: (b[0] @ p - b[1]) ** 2  # noqa: E731
LOSSES = {
    "for a batch of two": ({"loss": lambda p, b: SQUARE(p, b) + jnp.zeros(2)}, "loss: fails on a batch of 3 samples"),
    "a mean over pairs": (
        {"loss": lambda p, b: SQUARE(p, b).reshape(-1, 3).mean()}, "loss: fails on a batch of one sample",
    ),
    "complex": (
        {"loss": SQUARE, "metrics": {"a": lambda p, b: 1j * b[1]}}, "metrics.a: gave complex64, must be real numbers",
    ),
    "keys": (
        {"loss": SQUARE, "metrics": {"a": lambda p, b: jax.random.split(jax.random.key(0), len(b[1]))}},
        "metrics.a: gave key<.*>, must be real numbers",
    ),
    "one for each of four features": (
        {"loss": SQUARE, "metrics": {"a": lambda p, b: p}}, r"metrics.a: gave shape \(4,\) for a batch of 3 samples",
    ),
    "one for each of three features": (
        {"loss": SQUARE, "metrics": {"a": lambda p, b: p}}, r"metrics.a: gave shape \(3,\) for a batch of 5 samples",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_metrics(name):
    functions, message = LOSSES[name]
    d = 3 if "three" in name else 4
    with pytest.raises(ConfigError, match=f"^{message}"):
        simulate(problems.loss(data.from_arrays(X[:, :d], Y, client=CLIENT), init=lambda k: jnp.zeros(d), **functions))


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_a_transposed_model(classes):
    wrong = fedpbc.models.functions(init=lambda k, s, n: jnp.zeros((*s, n)), apply=lambda p, x: (x @ p).T)
    labels = np.arange(60) % classes
    with pytest.raises(ConfigError, match=rf"^model: gave outputs of shape \({classes}, .*must be \[n, outputs\] = "):
        simulate(problems.classification(data.from_arrays(X, labels, client=CLIENT), model=wrong))


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (lambda p, t: 0.1 if t < 2 else 0.01, "at fails: TracerBoolConversionError"),
        (lambda p, t: jnp.ones(2), r"at gives float32\[2\], must give one number"),
    ],
)
def test_schedules(at, message):
    rate = TimeFunction((), at)
    own = algorithms.fedavg()
    with pytest.raises(ConfigError, match=f"^learning_rate: {message}"):
        simulate(learning_rate=rate)
    with pytest.raises(ConfigError, match=rf"^algorithms\[0\].learning_rate: {message}"):
        simulate(algorithm=own.using(learning_rate=rate))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones(3), r"has shape \(3,\), must have one probability per client, \(4,\)"),
        (np.array([1, np.nan, 1, 1]), "is nan for client 1, must be in"),
        (np.array([1, 0.5, 1, -2]), "is -2 for client 3, must be in"),
        (["a"] * M, "must be numbers, one per client"),
    ],
)
def test_base_probabilities(given, message):
    how = fedpbc.component(lambda context: given)
    with pytest.raises(ConfigError, match=rf"^links\[0\].prob = .*: {message}"):
        simulate(links=links.bernoulli(prob=how()))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (((X, Y), CLIENT.astype(float), M), r"client must be integers, one per row of train, \[60\]"),
        (((X, Y), CLIENT, 3), "client goes from 0 to 3, must be from 0 to 2"),
        (((X, Y[:5]), CLIENT, M), "train has arrays of 5 and 60 rows"),
        (((X, Y), CLIENT, 4.0), "num_clients = 4.0: must be an integer"),
        (((X, Y), CLIENT, M, (X[:, :2], Y)), "test has samples of other shapes than train"),
        (([[1.0]], CLIENT, M), "train must be arrays of numbers"),
    ],
)
def test_data(made, message):
    with pytest.raises(ConfigError, match=f"^data: {message}"):
        simulate(problems.classification(lambda context: data.Dataset(*made)))


def test_a_constant_of_numpy_is_a_link():
    constant = process(lambda p, k, s, t: (s, Link(np.arange(M) < 2, np.ones(M))))
    assert simulate(links=constant).final("num_active") == 2


def test_what_the_checks_do_not_see_is_one_line_too(monkeypatch):
    """Of components from outside: with our own alone it is a bug of ours, and the traceback stays."""

    def sometimes(context: fedpbc.Context) -> LinkProcess:
        return CHANGING if context.seed else process()

    with pytest.raises(ConfigError, match=r"^links\[0\] \(sometimes\): cannot be compiled: TypeError"):
        simulate(links=sometimes, seeds=[0, 1])
    monkeypatch.setattr("fedpbc.runs.runner.Simulation", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        simulate()


def test_our_own_components_are_not_traced_twice(monkeypatch):
    for name in ("check_links", "check_algorithm", "check_problem", "check_schedule"):
        monkeypatch.setattr(contract, name, lambda *_, **__: pytest.fail("checked"))
    simulate(problems.classification(DATA), algorithm=[algorithms.fedavg(), algorithms.fedpbc()], rounds=1)


@pytest.mark.parametrize("command", ["run", "links"])
def test_at_the_command_line(fedpbc, tmp_path, command):
    (tmp_path / "mine.py").write_text(
        "import jax.numpy as jnp\nfrom fedpbc.core.types import Link, LinkProcess\n"
        "def mine(context):\n    m = context.problem.num_clients\n"
        "    return LinkProcess((), lambda p, k: jnp.zeros(m, int), lambda p, k, s, t: (s / 2, Link(s < 1, s + 1.0)))\n"
    )
    table = {
        "name": "e", "rounds": 2, "local_steps": 1, "learning_rate": 0.1, "seeds": [0],
        "problem": {"name": "quadratic", "num_clients": M}, "links": [{"name": "mine.py:mine"}],
        "algorithms": [{"name": "fedavg"}],
    }  # fmt: skip
    (tmp_path / "e.toml").write_text(tomli_w.dumps(table))
    status, _, err = fedpbc(command, "e.toml", "--out", "out" if command == "run" else "out.csv")
    assert status == 2
    assert err == "error: links[0]: step changes the shape or type of state: int32[4] becomes float32[4]\n"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["e.toml", "mine.py"]
