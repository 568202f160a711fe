"""What a stranger writes: a method, a network and a data set of his own, as a package and as one plain file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fedpbc

COMPONENTS = '''
"""A stranger's method, network, problem and data."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedpbc
from fedpbc import Algorithm, Context, LinkProcess, Problem
from fedpbc.core.aggregation import masked_mean
from fedpbc.core.types import Cost, Link, Models
from fedpbc.data import Dataset, from_arrays

class State(NamedTuple):
    server: Any
    clients: Any


def _init(damping, x0, m):
    return State(x0, jnp.broadcast_to(x0, (m, len(x0))))


def _round(damping, state, round):
    trained = round.train(state.clients)
    mean = masked_mean(trained, round.link.active, otherwise=state.server)
    server = (1 - damping) * mean + damping * state.server
    reached = round.link.active & round.link.receives
    return State(server, jnp.where(reached[:, None], server, trained))


def _models(state):
    return Models(state.server, state.clients)


def _forget(damping, state, lost, x0, t):
    return state._replace(clients=jnp.where(lost[:, None], x0, state.clients))


{decorate}
def damped(context: Context, *, damping: float = 0.1) -> Algorithm:
    """FedPBC whose server goes only a part of the way."""
    return Algorithm(context.number("damping", damping), _init, _round, _models, _forget, Cost(broadcast=False))


def _start(params, key):
    return jnp.zeros((), jnp.int32)


def _step(params, key, state, t):
    m = params.shape[0]
    active = (jnp.arange(m) + state) % 3 != 0
    return state + 1, Link(active, params)


{decorate}
def every_third(context: Context) -> LinkProcess:
    """Client i is away in every third round, in turn."""
    m = context.problem.num_clients
    return LinkProcess(np.full(m, 2 / 3, context.dtype), _start, _step)


{decorate}
def blobs(context: Context, *, num_samples: int = 60, num_clients: int = 5) -> Dataset:
    """Two clouds of points."""
    rng = context.rng("blobs")
    labels = rng.integers(0, 2, num_samples)
    features = rng.standard_normal((num_samples, 3)) + 2 * labels[:, None]
    client = np.arange(num_samples) % num_clients
    return Dataset((features, labels), client, num_clients, (features[:9], labels[:9]))


def init(key):
    return {{"w": 0.1 * jax.random.normal(key, (3,)), "b": jnp.zeros(())}}


def loss(params, batch):
    features, labels = batch
    return jnp.logaddexp(0.0, -(2.0 * labels - 1) * (features @ params["w"] + params["b"]))


def my_score(params, batch):
    features, labels = batch
    return ((features @ params["w"] + params["b"] > 0) == (labels > 0)).astype(params["w"].dtype)
'''

MODEL = '''

@fedpbc.register
def tiny(context: Context, *, width: int = 4) -> "fedpbc.models.Model":
    """A network of my own."""
    return fedpbc.models.functions(init=net_init, apply=net_apply).build(context)


def net_init(key, shape, num_outputs):
    return [0.3 * jax.random.normal(key, (shape[0], 4)), jnp.zeros((4, num_outputs))]


def net_apply(params, features):
    return jnp.tanh(features @ params[0]) @ params[1]
'''

ENTRY_POINTS = """[fedpbc.components]
damped = strangers:damped
every_third = strangers:every_third
blobs = strangers:blobs
tiny = strangers:tiny
broken = strangers:no_such_thing
missing = no_such_package:thing
"""


def plain_file(path: Path, register: bool) -> Path:
    """One file with everything; ``register``: it registers its components when it is imported."""
    decorate = "@fedpbc.register" if register else "@fedpbc.component"
    text = COMPONENTS.format(decorate=decorate)
    path.write_text(text + (MODEL if register else MODEL.replace("@fedpbc.register", "@fedpbc.component")))
    return path


def package(folder: Path) -> Path:
    """A package with its installed metadata, in a folder that may stand in sys.path."""
    home = folder / "strangers"
    home.mkdir(parents=True)
    text = COMPONENTS.format(decorate="@fedpbc.component")
    (home / "__init__.py").write_text(
        "from strangers.parts import blobs, damped, every_third, init, loss, my_score, tiny\n"
    )
    (home / "parts.py").write_text(text + MODEL.replace("@fedpbc.register", "@fedpbc.component"))
    info = folder / "strangers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


def call(
    *arguments: str | Path, cwd: Path, path: Path | None = None, code: str = ""
) -> subprocess.CompletedProcess[str]:
    """``python -m fedpbc ...`` in another process, or ``code``, with ``path`` first in sys.path."""
    source = str(Path(fedpbc.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*([str(path)] if path else []), source])}
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "fedpbc", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False)
