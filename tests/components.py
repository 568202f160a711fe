"""One setting of every registered component, and of every option that takes another path through its code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS, CLIENTS = 6, 5
TRACE = np.random.default_rng(0).random((ROUNDS, CLIENTS)) < 0.5
TRACE[2] = False
PHONES = {i: {"active": [5 * i], "inactive": [5 * i + 30], "finish_time": 70} for i in range(CLIENTS + 1)}

LINK_SETTINGS: dict[str, dict[str, Any]] = {
    "bernoulli": {"name": "bernoulli", "prob": 0.4, "varying": {"name": "sine", "amplitude": 0.5, "period": 4}},
    "markov": {"name": "markov", "prob": 0.4, "memory": 0.5, "varying": {"name": "staircase", "half_period": 2}},
    "gilbert_elliott": {"name": "gilbert_elliott", "good_to_bad": 0.3, "bad_to_good": 0.4, "good": 0.9, "bad": 0.1},
    "cyclic": {"name": "cyclic", "prob": 0.4, "period": 3, "reset": True},
    "outages": {"name": "outages", "prob": 0.7, "groups": 2, "outage": 0.3, "memory": 0.5},
    "fading": {"name": "fading", "model": "rician", "doppler": 0.1},
    "deadline": {"name": "deadline"},
    "leo": {"name": "leo", "satellites": 4, "round_seconds": 300},
    "trace": {"name": "trace", "path": "trace.npy"},
    "fedscale": {"name": "fedscale", "path": "phones.json", "round_seconds": 10},
    "two_way": {
        "name": "two_way",
        "up": {"name": "markov", "prob": 0.5, "memory": 0.5},
        "down": {"name": "bernoulli", "prob": 0.8},
    },
}
DATA = {"name": "npz", "path": "data.npz", "partition": {"name": "dirichlet", "num_clients": CLIENTS, "alpha": 0.5}}
PROBLEM_SETTINGS: dict[str, dict[str, Any]] = {
    "quadratic": {"name": "quadratic", "num_clients": CLIENTS, "dim": 3},
    "synthetic": {"name": "synthetic", "num_clients": CLIENTS},
    "classification": {
        "name": "classification",
        "data": {**DATA, "test_share": 0.2},
        "model": {"name": "mlp", "hidden": [4], "activation": "tanh"},
    },
    "regression": {"name": "regression", "data": DATA, "grad_norm": True},
    "loss": {"name": "loss", "data": DATA, "loss": "own.py:loss", "init": "own.py:init", "weights": "samples"},
}
OWN = """
import jax.numpy as jnp

def init(key):
    return {"w": jnp.zeros(4), "b": jnp.zeros(())}

def loss(params, batch):
    features, labels = batch
    return jnp.logaddexp(0, -(2.0 * (labels > 1) - 1) * (features @ params["w"] + params["b"]))
"""
VARIANTS: list[dict[str, Any]] = [
    {"name": "fedavg"},
    {"name": "fedavg", "server": {"name": "sgd", "learning_rate": 0.5}},
    {"name": "fedavg", "server": {"name": "momentum"}},
    {"name": "fedavg_all", "server": {"name": "adam"}},
    {"name": "fedau", "server": {"name": "yogi"}},
    {"name": "fedavg_all"},
    {"name": "fedavg_known"},
    {"name": "fedau", "cutoff": 3},
    {"name": "f3ast"},
    {"name": "f3ast", "slots": 2},
    {"name": "fedprox"},
    {"name": "amplified_fedavg", "window": 3},
    {"name": "mifa"},
    {"name": "mifa", "wait": True},
    {"name": "mifa", "memory": "client"},
    {"name": "fedvarp"},
    {"name": "fedvarp", "memory": "client"},
    {"name": "debiased_fedavg"},
    {"name": "fedstale"},
    {"name": "focus", "server_learning_rate": 0.1},
    {"name": "area"},
    {"name": "area", "memory": "server"},
    {"name": "scaffold"},
    {"name": "scaffold", "epoch_reset": True},
    {"name": "scaffold", "controls": "server", "apply": "around"},
    {"name": "fedfade"},
    {"name": "fedfade", "weights": "mean", "fading": 0.5, "epoch_reset": True},
    {"name": "fedfade", "controls": "server", "apply": "around", "fading": "none"},
    {"name": "fedawe"},
    {"name": "fedawe", "clip": 2},
    {"name": "fedawe", "norm_limit": 0.5},
    {"name": "fedpbc"},
    {"name": "fedpbc", "max_catchup": 2},
    {"name": "fedpbc_corrected"},
    {"name": "fedpbc_corrected", "correction": "light"},
    {"name": "fedpbc_corrected", "correction": "light", "apply": "around"},
]


def label(variant: dict[str, Any]) -> str:
    """A short name of a setting."""
    return "-".join(str(v["name"] if isinstance(v, dict) else v) for v in variant.values())


def write_inputs(folder: Path) -> None:
    """The files the settings read."""
    np.save(folder / "trace.npy", TRACE)
    (folder / "phones.json").write_text(json.dumps(PHONES))
    (folder / "own.py").write_text(OWN)
    rng = np.random.default_rng(0)
    features = rng.standard_normal((60, 4))
    labels = (features[:, 0] > 0).astype(np.int64) + (features[:, 1] > 0)
    np.savez(folder / "data.npz", **{"train.0": features, "train.1": labels})


def own(kind: Any) -> set[str]:
    """The package's own components of a kind; other tests of this process may have registered some."""
    return {name for name, factory in kind.registry.items() if not factory.from_outside}
