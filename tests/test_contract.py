"""What would give a wrong number in silence is refused: shapes from outside, data that change, labels."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import fedpbc
from fedpbc import algorithms, data, links, problems
from fedpbc.core.contract import check_links
from fedpbc.core.types import Algorithm, Cost, Link, LinkProcess, Models
from fedpbc.errors import ConfigError
from fedpbc.runs import inputs

X = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
CLIENT = np.arange(60) % 4


def simulate(problem: Any = None, **changes: Any) -> fedpbc.Run:
    options = {
        "links": links.bernoulli(prob=0.5), "algorithm": algorithms.fedpbc(), "rounds": 4, "local_steps": 2,
        "learning_rate": 0.05, "progress": False, **changes,
    }  # fmt: skip
    return fedpbc.simulate(problem or problems.quadratic(num_clients=4, dim=3), **options)


def process(active: Any, prob: Any, downlink: Any = None) -> LinkProcess:
    return LinkProcess((), lambda params, key: (), lambda params, key, state, t: (state, Link(active, prob, downlink)))


@pytest.mark.parametrize(
    ("active", "prob", "message"),
    [
        (jnp.ones(1, bool), jnp.ones(4), r"active is bool\[1\], must be bool\[4\]"),
        (jnp.arange(4), jnp.ones(4), r"active is int32\[4\], must be bool\[4\]"),
        (jnp.ones(4, bool), jnp.ones(3), r"prob is float32\[3\], must be floating-point\[4\]"),
        (jnp.ones(4, bool), jnp.array([1, 0, 1.5, 2]), r"prob of client 2 is 1\.5 in round 0, must be in \[0, 1\]"),
        (jnp.ones(4, bool), jnp.array([1, -0.5, 0, 0]), r"prob of client 1 is -0\.5 in round 0, must be in \[0, 1\]"),
    ],
)
def test_links_of_other_shapes_are_refused(active, prob, message):
    with pytest.raises(ConfigError, match=rf"links\[0\]: {message}"):
        simulate(links=process(active, prob))


@pytest.mark.parametrize(("given", "shown"), [(np.ones(3, bool), r"bool\[3\]"), (np.ones(4), r"float32\[4\]")])
def test_a_downlink_is_a_mask_too(given, shown):
    with pytest.raises(ConfigError, match=rf"mine: downlink is {shown}, must be bool\[4\]"):
        check_links("mine", process(np.ones(4, bool), np.ones(4, np.float32), given), 4)


class State(NamedTuple):
    server: Any
    clients: Any


def method(models: Any = None, round_: Any = None) -> Algorithm:
    return Algorithm(
        (),
        lambda params, x0, m: State(x0, jnp.tile(x0, (m, 1))),
        round_ or (lambda params, state, round: state),
        models or (lambda state: Models(state.server, state.clients)),
        lambda params, state, lost, x0, t: state,
        Cost(),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": lambda s: Models(s.server, s.clients[:2])}, r"models gives clients float32\[2, 3\], must be f"),
        ({"models": lambda s: Models(s.clients, s.clients)}, r"models gives server float32\[4, 3\], must be f"),
        ({"round_": lambda p, s, r: None}, "round changes the structure"),
        (
            {"round_": lambda p, s, r: State(s.server, s.clients[:2])},
            "round changes the shape or type of state.clients",
        ),
        (
            {"round_": lambda p, s, r: State(s.server, s.clients.astype(jnp.float16))},
            r"round changes the shape or type of state.clients: float32\[4, 3\] becomes float16\[4, 3\]",
        ),
        ({"round_": lambda p, s, r: 1 / 0}, "round fails: ZeroDivisionError"),
    ],
)
def test_algorithms_of_other_shapes_are_refused(changes, message):
    with pytest.raises(ConfigError, match=rf"algorithms\[0\]: {message}"):
        simulate(algorithm=method(**changes))


def test_a_function_of_a_context_may_call_it_as_it_likes():
    run = simulate(links=lambda ctx: process(jnp.ones(4, bool), jnp.ones(4)), algorithm=lambda c: method())
    assert run.final("num_active") == 4


def test_what_the_caller_does_to_his_arrays_changes_no_data_set():
    mine = X.copy()
    before = data.from_arrays(mine, Y, client=CLIENT)
    mine *= 3
    after = data.from_arrays(mine, Y, client=CLIENT)
    same = data.from_arrays(X, Y, client=CLIENT)
    finals = [simulate(problems.classification(d)).final("server_train_loss") for d in (before, same, after)]
    assert finals[0] == finals[1] != finals[2]


def test_a_run_is_not_saved_with_other_data_than_it_used(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **{"train.0": X, "train.1": Y, "client": CLIENT})
    run = simulate(problems.classification(data.npz(path)))
    np.savez(path, **{"train.0": 3 * X, "train.1": Y, "client": CLIENT})
    with pytest.raises(ConfigError, match=r"what the run read has been written to since: problem\.data\.path \("):
        run.save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_is_not_saved_without_the_data_it_used(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **{"train.0": X, "train.1": Y, "client": CLIENT})
    run = simulate(problems.classification(data.npz(path)))
    path.unlink()
    with pytest.raises(ConfigError, match=r"written to since: problem\.data\.path \("):
        run.save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_in_memory_hashes_nothing_and_one_that_is_written_does(tmp_path, monkeypatch):
    path = tmp_path / "mine.npz"
    np.savez(path, **{"train.0": X, "train.1": Y, "client": CLIENT})
    read = []
    digest = inputs._digest
    monkeypatch.setattr(inputs, "_digest", lambda file: read.append(file) or digest(file))
    run = simulate(problems.classification(data.npz(path)))
    assert read == []
    run.save(tmp_path / "out")
    assert (tmp_path / "out" / "manifest.json").is_file()
    simulate(problems.classification(data.npz(path)), out=tmp_path / "out", resume=True)
    assert path.resolve() in read


def test_data_that_change_between_two_seeds_are_refused(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **{"train.0": X, "train.1": Y, "client": CLIENT})

    class Change(fedpbc.Callback):
        def on_cell_end(self, cell, result):
            np.savez(path, **{"train.0": 3 * X, "train.1": Y, "client": CLIENT})

    with pytest.raises(ConfigError, match=r"written to while the run went on: problem\.data\.path \("):
        simulate(problems.classification(data.npz(path)), seeds=[0, 1], callbacks=[Change()])


def test_words_are_labels_and_no_targets():
    words = np.array([f"{v:.2f}" for v in X[:, 0]])
    with pytest.raises(ConfigError, match="targets are words, must be numbers"):
        simulate(problems.regression(data.from_arrays(X, words, client=CLIENT)))


@pytest.mark.release
def test_labels_may_have_any_integer_type():
    kinds = [np.uint64, np.int8, bool]
    runs = [simulate(problems.classification(data.from_arrays(X, Y.astype(kind), client=CLIENT))) for kind in kinds]
    assert len({run.final("server_train_loss") for run in runs}) == 1


def test_whole_numbers_are_no_outputs():
    whole = fedpbc.models.functions(
        init=lambda key, shape, n: jnp.zeros((*shape, n)), apply=lambda p, f: (f @ p).astype(int)
    )
    with pytest.raises(ConfigError, match="outputs are int32, must be floating-point"):
        simulate(problems.classification(data.from_arrays(X, Y, client=CLIENT), model=whole))


@pytest.mark.parametrize("name", ["loss", "score_pooled", "score_by_client"])
def test_metrics_do_not_take_the_names_of_others(name):
    with pytest.raises(ConfigError, match=f"metrics: '{name}' must be a plain name"):
        simulate(
            problems.loss(
                data.from_arrays(X, Y, client=CLIENT), init=lambda key: jnp.zeros(4),
                loss=lambda p, b: (b[0] @ p - b[1]) ** 2, metrics={name: lambda p, b: b[1]},
            )
        )  # fmt: skip


@pytest.mark.parametrize("label", ["a\nb", "   ", "\x00", 3])
def test_labels_given_in_python_are_those_a_file_may_have(label, tmp_path):
    with pytest.raises(ConfigError, match=r"algorithms\[0\]\.label = .*must be a non-empty string"):
        simulate(algorithm=algorithms.fedpbc().using(label=label), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_numbers_of_numpy_are_numbers():
    rates = list(np.logspace(-3, -1, 3))
    run = simulate(algorithm=algorithms.fedavg().using(learning_rate=rates), learning_rate=np.float32(0.5))
    assert len(run.groups) == 3
    assert run.table["learning_rate"] == 0.5


def test_resuming_needs_a_place():
    with pytest.raises(ConfigError, match="resume = true: needs out"):
        simulate(resume=True)


def test_a_kill_before_the_figure_is_made_up_for(tmp_path):
    simulate(out=tmp_path / "out")
    (tmp_path / "out" / "figure.svg").unlink()
    (tmp_path / "out" / ".cells.done").mkdir()
    simulate(out=tmp_path / "out", resume=True)
    assert (tmp_path / "out" / "figure.svg").is_file()
    assert not (tmp_path / "out" / ".cells.done").exists()


def test_rows_out_of_order_are_noticed(tmp_path):
    simulate(out=tmp_path / "out")
    header, *rows = (tmp_path / "out" / "metrics.csv").read_text().splitlines(keepends=True)
    (tmp_path / "out" / "metrics.csv").write_text("".join([header, *reversed(rows)]))
    with pytest.raises(ConfigError, match="not in the order of rounds"):
        fedpbc.read_run(tmp_path / "out")


def test_a_file_that_names_itself_is_one_line(tmp_path, monkeypatch, fedpbc):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("from fedpbc import load_experiment\nload_experiment('e.toml')\n")
    (tmp_path / "e.toml").write_text(
        'name = "e"\nrounds = 2\nlocal_steps = 1\nlearning_rate = 0.1\nseeds = [0]\nimports = ["own.py"]\n'
        '[problem]\nname = "quadratic"\n[[links]]\nname = "bernoulli"\nprob = 0.5\n[[algorithms]]\nname = "fedavg"\n'
    )
    status, _, err = fedpbc("run", "e.toml")
    assert status == 2
    assert "imports itself" in err
    assert err.count("\n") == 1
