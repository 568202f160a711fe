"""Weight decay, clipping and momentum of local steps, crops and mirror images: against NumPy, and off by default."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import fedpbc
from fedpbc.core.descent import Descent
from fedpbc.core.schema import Context
from fedpbc.problems.augment import Augment

M, D, STEPS, ETA, ROUNDS = 4, 3, 4, 0.1, 3
U = np.random.default_rng(0).normal(2, 3, (M, D))
DECAY, CLIP, BETA = 0.3, 2.5, 0.6


def steps(x, gradient, beta, *, shift=0.0, proximal=0.0):
    """s steps of one client; ``gradient`` is its own, already clipped."""
    start, v = x, np.zeros_like(x)
    for _ in range(STEPS):
        v = beta * v + gradient(x) + DECAY * x + shift + proximal * (x - start)
        x = x - ETA * v
    return x


def own(i):
    """min(1, C / |x - u_i|) (x - u_i)."""

    def gradient(x):
        g = x - U[i]
        return g * min(1.0, CLIP / np.linalg.norm(g))

    return gradient


def worth(beta):
    """(S, M) by taking steps along a constant 1, and along a 1 in step j alone."""
    v, behind, far = 0.0, 0.0, []
    for _ in range(STEPS):
        far.append(behind)
        v = beta * v + 1
        behind += v
    each = []
    for j in range(STEPS):
        v, x = 0.0, 0.0
        for k in range(STEPS):
            v = beta * v + (k == j)
            x += v
        each.append(x)
    return behind, float(np.dot(each, far) / np.sum(each))


def fedavg(beta, proximal=0.0):
    x = np.zeros(D)
    for _ in range(ROUNDS):
        x = np.mean([steps(x, own(i), beta, proximal=proximal) for i in range(M)], axis=0)
    return x


def scaffold(beta, around):
    x, c, ci = np.zeros(D), np.zeros(D), np.zeros((M, D))
    length, before = worth(beta)
    for _ in range(ROUNDS):
        ends = []
        for i in range(M):
            z = c - ci[i]
            if around:
                end = steps(x - ETA * before * z, own(i), beta) - ETA * (length - before) * z
            else:
                end = steps(x, own(i), beta, shift=z)
            ends.append(end)
        new = np.array([ci[i] - c - (ends[i] - x) / (ETA * length) for i in range(M)])
        x, c, ci = np.mean(ends, axis=0), c + (new - ci).mean(axis=0), new
    return x


METHODS = {
    "fedavg": ({}, lambda beta: fedavg(beta)),
    "fedprox": ({"mu": 0.8}, lambda beta: fedavg(beta, 0.8)),
    "scaffold": ({}, lambda beta: scaffold(beta, False)),
    "scaffold around": ({"apply": "around"}, lambda beta: scaffold(beta, True)),
}


@pytest.mark.parametrize(("beta", "names"), [(0.0, ["scaffold"]), (BETA, list(METHODS))])
def test_rounds_are_those_of_numpy(beta, names, tmp_path):
    np.save(tmp_path / "centers.npy", U)
    methods = [getattr(fedpbc.algorithms, name.split()[0])(**METHODS[name][0]).using(label=name) for name in names]
    run = fedpbc.simulate(
        fedpbc.problems.quadratic(centers=tmp_path / "centers.npy"), links=fedpbc.links.bernoulli(prob=1.0),
        algorithm=methods, rounds=ROUNDS, local_steps=STEPS, learning_rate=ETA, weight_decay=DECAY, clip_norm=CLIP,
        momentum=beta, precision="float64", metrics=["server"], progress=False,
    )  # fmt: skip
    for name in names:
        np.testing.assert_allclose(run.model(algorithm=name), METHODS[name][1](beta), rtol=1e-11, err_msg=name)


def test_without_momentum_a_step_is_worth_a_step():
    assert Descent().way(7) == (7, 3)
    assert Descent(momentum=BETA).way(STEPS) == pytest.approx(worth(BETA))


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [("weight_decay", -0.1, ">= 0"), ("clip_norm", 0, "> 0"), ("momentum", 1.0, r"in \[0, 0.999\]")],
)
def test_what_is_out_of_range_is_refused(key, value, allowed):
    with pytest.raises(fedpbc.ConfigError, match=rf"{key} = {value:g}.*: must be a finite number {allowed}"):
        fedpbc.simulate(
            "quadratic", links=fedpbc.links.bernoulli(prob=1.0), algorithm="fedavg", rounds=1, local_steps=1,
            learning_rate=0.1, **{key: value},
        )  # fmt: skip


IMAGES = np.arange(1, 31, dtype=np.uint8).reshape(5, 3, 2)[:1].repeat(3000, axis=0)


def windows(image, crop):
    """Every window of the image with ``crop`` zeros around, by its place."""
    padded = np.pad(image, crop)
    height, width = image.shape
    rows = range(2 * crop + 1)
    return {(i, j): padded[i : i + height, j : j + width] for i in rows for j in rows}


def test_crops_and_mirror_images_are_all_alike_likely():
    """3000 images in 18 cases: a count is within five standard errors, 62, of its mean of 167."""
    made = np.asarray(Augment(crop=1, flip=True).of(jax.random.key(0), IMAGES))
    assert made.dtype == np.uint8
    cases = [place[:, ::side] for place in windows(IMAGES[0], 1).values() for side in (1, -1)]
    counts = [int((made == case).all(axis=(1, 2)).sum()) for case in cases]
    assert sum(counts) == 3000
    assert max(abs(count - 3000 / 18) for count in counts) < 62


def test_what_is_drawn_depends_on_the_key_and_nothing_else():
    def sample(client, seed, n=6, **options):
        data = fedpbc.data.from_arrays(np.arange(240.0).reshape(10, 4, 6), np.arange(10) % 2, client=np.arange(10) % 2)
        built = fedpbc.problems.classification(data, **options).build(Context(0, np.dtype(np.float32), 1))
        (features, labels), _ = built.sample(built.params, client, jax.random.key(seed), n)
        return np.asarray(features), np.asarray(labels)

    plain, labels = sample(0, 1)
    mirrored, same = sample(0, 1, flip=True)
    np.testing.assert_array_equal(labels, same)  # which rows are drawn is as without
    assert all(np.array_equal(a, b) or np.array_equal(a, b[:, ::-1]) for a, b in zip(mirrored, plain, strict=True))
    np.testing.assert_array_equal(sample(0, 1, flip=True, crop=2)[0], sample(0, 1, flip=True, crop=2)[0])
    same, other = (np.asarray(Augment(crop=1).of(jax.random.key(seed), IMAGES[:50])) for seed in (1, 2))
    assert not np.array_equal(same, other)


@pytest.mark.parametrize(("options", "key"), [({"crop": 2}, "crop = 2"), ({"flip": True}, "flip = true")])
def test_augmentation_needs_images(options, key):
    data = fedpbc.data.from_arrays(np.zeros((8, 5)), np.arange(8) % 2).iid(num_clients=2)
    with pytest.raises(fedpbc.ConfigError, match=rf"{key}: needs images"):
        fedpbc.problems.classification(data, **options).build(Context(0, np.dtype(np.float32), 1))


def test_a_crop_larger_than_the_images_is_refused():
    data = fedpbc.data.from_arrays(np.ones((4, 2, 3)), np.arange(4) % 2).iid(num_clients=2)
    with pytest.raises(fedpbc.ConfigError, match=r"crop = 3: must be at most the size of the images, 2 pixels"):
        fedpbc.problems.classification(data, crop=3).build(Context(0, np.dtype(np.float32), 1))


def test_what_is_evaluated_is_not_augmented():
    """The mean of the outputs of an image that no crop leaves as it is."""
    data = fedpbc.data.from_arrays(np.ones((4, 2, 2), np.float32), np.arange(4) % 2, client=np.arange(4) % 2)
    built = [
        fedpbc.problems.classification(data, crop=crop).build(Context(0, np.dtype(np.float32), 1)) for crop in (0, 2)
    ]
    x = np.linspace(-1, 1, len(built[0].init), dtype=np.float32)[None]
    sums = [np.asarray(p.block_sums(p.params, x, 0)["train_loss_pooled"]) for p in built]
    np.testing.assert_array_equal(*sums)
