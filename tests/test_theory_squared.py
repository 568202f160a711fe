"""Squared or not: what is said of distances, against products W^1 ... W^t that are built and multiplied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedpbc import theory

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "theory.md").read_text(encoding="utf-8")


def built(active: np.ndarray) -> np.ndarray:
    """W of a round, entry by entry."""
    m, n = len(active), int(active.sum())
    w = np.eye(m)
    for j in range(m):
        for k in range(m):
            if active[j] and active[k]:
                w[j, k] = 1 / n
    return w


def squared_distances(
    rng: np.random.Generator, p: np.ndarray, rounds: int, runs: int, memory: float = 0.0
) -> Iterator[np.ndarray]:
    """(1/m) sum ||x_i - xbar||^2 of every run after 0, 1, ..., ``rounds`` rounds of mixing; p [rounds, m]."""
    x = rng.standard_normal((runs, p.shape[1], 3))
    active = rng.random((runs, p.shape[1])) < p[0]
    for t in range(rounds + 1):
        yield np.mean(np.sum((x - x.mean(axis=1, keepdims=True)) ** 2, axis=2), axis=1)
        if t < rounds:
            x = np.stack([built(a) for a in active]) @ x
            nxt = p[min(t + 1, rounds - 1)]
            active = rng.random(active.shape) < (1 - memory) * nxt + memory * active


def test_cooldown_rounds_speaks_of_the_squared_distance():
    """Equal p: every direction contracts by rho alike, so the expected squared distance is rho^n of the first."""
    p = np.full(6, 0.5)
    squared = np.array([d.mean() for d in squared_distances(np.random.default_rng(0), np.tile(p, (9, 1)), 9, 3000)])
    left = squared / squared[0]
    n = theory.cooldown_rounds(p, 0.1)
    assert n == 5  # rho = .597: .127 after 4 rounds, .076 after 5
    assert left[n] < 0.1 < left[n - 1]
    assert np.sqrt(left[n]) > 0.2  # the distance itself is far from a tenth then
    n = theory.cooldown_rounds(p, 0.1**2)
    assert n == 9  # the remedy of the docstring: tolerance = delta**2
    assert np.sqrt(left[n]) < 0.1 < np.sqrt(left[n - 1])
    assert theory.cooldown_rounds(np.tile(p, (9, 1)), 0.1) == 5
    np.testing.assert_allclose(left, theory.mixing_rate(p) ** np.arange(10), rtol=0.12)


def test_a_product_of_rates_is_what_is_left_of_the_squared_distance():
    p = np.repeat([[0.9], [0.3], [0.6], [0.2]], 5, axis=1)
    *_, last = squared_distances(np.random.default_rng(1), p, 4, 6000)
    first = next(squared_distances(np.random.default_rng(1), p, 0, 6000))
    assert last.mean() / first.mean() == pytest.approx(theory.mixing_product(p), rel=0.08)
    assert theory.cooldown_rounds(p, theory.mixing_product(p) * 1.001) == 4


def test_a_rate_is_attained_by_the_squared_distance_and_bounds_the_distance_by_its_root():
    """Over all subsets: E ||z W||^2 = rho ||z||^2 at the second eigenvector, E ||z W|| <= sqrt(rho) ||z|| always."""
    rng = np.random.default_rng(2)
    for _ in range(30):
        p = rng.uniform(0.05, 1, 5)
        subsets = (np.arange(32)[:, None] >> np.arange(5)) % 2 == 1
        chances = np.prod(np.where(subsets, p, 1 - p), axis=1)
        matrices = np.array([built(active) for active in subsets])
        second = np.linalg.eigh(np.einsum("a,ajk->jk", chances, matrices))[1][:, -2]
        lengths = np.linalg.norm(matrices @ second, axis=1)
        assert chances @ lengths**2 == pytest.approx(theory.mixing_rate(p), rel=1e-9)
        z = rng.standard_normal(5)
        z -= z.mean()
        z /= np.linalg.norm(z)
        lengths = np.linalg.norm(matrices @ z, axis=1)
        assert chances @ lengths**2 <= theory.mixing_rate(p) * (1 + 1e-12)
        assert chances @ lengths <= np.sqrt(theory.mixing_rate(p)) * (1 + 1e-12)


@pytest.mark.parametrize("memory", [0.0, 0.8])
def test_the_contraction_under_memory_is_of_the_squared_distance(memory):
    p, window = np.full(5, 0.5), 8
    found = theory.markov_contraction(p, memory, window, repetitions=4000)
    rounds = squared_distances(np.random.default_rng(3), np.tile(p, (window, 1)), window, 4000, memory)
    squared = np.array([d.mean() for d in rounds])
    rate = (squared[-1] / squared[0]) ** (1 / window)
    assert found.rate == pytest.approx(rate, rel=0.02)
    assert abs(found.rate - np.sqrt(rate)) > 0.05  # not the rate of the distance
    assert found.low < found.rate < found.high


def test_without_memory_the_contraction_is_at_most_rho():
    rng = np.random.default_rng(4)
    for seed in range(25):
        p = rng.uniform(0.05, 1, int(rng.integers(2, 9)))
        assert theory.markov_contraction(p, 0.0, window=4, seed=seed, confidence=0.9999).low <= theory.mixing_rate(p)


def test_the_pages_figures_of_links_with_memory():
    p = np.full(20, 0.3)
    free, sticky = (theory.markov_contraction(p, memory) for memory in (0.0, 0.9))
    assert "leaves .73 of the squared distance a round without memory and .967 at lag-1 autocorrelation .9" in PAGE
    assert free.rate == pytest.approx(0.73, abs=0.01)
    assert sticky.rate == pytest.approx(0.967, abs=0.003)


@pytest.mark.parametrize(
    "value",
    [
        theory.Contraction,
        theory.average_gradient_bound,
        theory.consensus_bound,
        theory.cooldown_rounds,
        theory.descent_bound,
        theory.markov_contraction,
        theory.mixing_product,
        theory.mixing_rate,
    ],
)
def test_whoever_speaks_of_a_distance_says_squared(value):
    assert "squared" in value.__doc__.lower()
    row = next(line for line in PAGE.splitlines() if line.startswith("|") and f"`{value.__name__}" in line)
    assert "squared" in row


def test_a_rate_is_never_outside_0_and_1():
    """Every bound refuses a negative rho, so that of p = 1 must not be a rounding error below 0."""
    for m in (1, 2, 3, 6, 50, 126, 127, 128, 400):
        assert 0 <= theory.mixing_rate(np.ones(m)) < 1e-11
        assert theory.cooldown_rounds(np.ones(m), 0.5) == 1
