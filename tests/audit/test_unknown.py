"""Unknown rounds enter no statistic: every number against loops that skip them, and against logs without them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedpbc.audit import ParticipationLog, audit, heat
from fedpbc.audit import statistics as found
from fedpbc.audit.mixing import mixing
from fedpbc.audit.spectrum import centred, period, spectra_of
from fedpbc.audit.steadiness import counts_drift, memory
from fedpbc.errors import ConfigError

UNKNOWN = [0, 7, 20, 21, 22, 23, 40, 59]


def table_of(rounds: int = 60, m: int = 9, seed: int = 0) -> np.ndarray:
    table = np.random.default_rng(seed).random((rounds, m)) < np.linspace(0, 0.9, m)
    table[:, 3] = False
    table[30, 3] = True
    return table


def by_loops(column: np.ndarray, unknown: list[int]) -> dict[str, object]:
    """What per_client says of one client: x took part, . did not, ? unknown."""
    text = "".join("?" if t in unknown else "x" if a else "." for t, a in enumerate(column))
    known = [a for t, a in enumerate(column) if t not in unknown]
    seen = sum(known)
    runs = [(key, len(list(group))) for key, group in itertools.groupby(text)]
    free, censored, longest = [], 0, 0
    for k, (key, length) in enumerate(runs):
        if key == ".":
            touches = "?" in (runs[k - 1][0] if k else "", runs[k + 1][0] if k + 1 < len(runs) else "")
            free += [] if touches else [length]
            censored += touches
            longest = max(longest, length)
    edge = f"?{text}?"
    shares = [abs(sum(known[:k]) / seen - k / len(known)) for k in range(len(known) + 1)] if seen else [0]
    return {
        "seen": seen,
        "repeats": sum(a == b == "x" for a, b in itertools.pairwise(text)),
        "ends": sum((a, b) == ("?", "x") for a, b in itertools.pairwise(edge))
        + sum((a, b) == ("x", "?") for a, b in itertools.pairwise(edge)),
        "longest": longest,
        "deviation": max(shares),
        "absences": free,
        "censored": censored,
    }


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("unknown", [[], [30], UNKNOWN, list(range(1, 59, 2))])
def test_one_pass_agrees_with_loops(monkeypatch, block, unknown):
    monkeypatch.setattr(found, "BLOCK_PAIRS", block)
    table = table_of()
    stats = found.per_client(ParticipationLog.from_matrix(table, unknown=unknown))
    loops = [by_loops(table[:, i], unknown) for i in range(table.shape[1])]
    for key in ("seen", "repeats", "ends", "longest"):
        np.testing.assert_array_equal(getattr(stats, key), [each[key] for each in loops], err_msg=key)
    np.testing.assert_allclose(stats.deviation, [each["deviation"] for each in loops], atol=1e-12)
    lengths = [k for each in loops for k in each["absences"]]
    counts = [sum(a <= k < b for k in lengths) for a, b in itertools.pairwise(stats.edges)]
    np.testing.assert_array_equal(stats.absences, counts)
    assert stats.censored == sum(each["censored"] for each in loops)


def test_pairs_with_an_unknown_round_do_not_count_for_the_memory():
    table = table_of(400)
    unknown = [0, *range(100, 120), 333]
    log = ParticipationLog.from_matrix(table, unknown=unknown)
    each = memory(log, found.per_client(log)).each
    known = [t for t in range(400) if t not in unknown]
    for i in (1, 4, 8):
        p = np.mean([table[t, i] for t in known])
        pairs = [(t, t + 1) for t in known if t + 1 in known]
        products = sum((table[s, i] - p) * (table[t, i] - p) for s, t in pairs)
        expected = products / ((len(pairs) + 1) * p * (1 - p)) + 1 / len(known)
        assert each[i] == pytest.approx(expected, abs=1e-12)


def test_an_outage_of_the_logger_is_no_memory_and_no_drift():
    """Twenty rounds of 300 without a row: as empty rounds they are remembered, as unknown ones they are nothing."""
    table = np.random.default_rng(1).random((300, 40)) < np.linspace(0.1, 0.9, 40)
    whole = audit(ParticipationLog.from_matrix(table))
    hidden = audit(ParticipationLog.from_matrix(table, unknown=range(100, 120)))
    table[100:120] = False
    empty = audit(ParticipationLog.from_matrix(table))
    significant = [f.stationarity.autocorrelation.significant for f in (whole, hidden, empty)]
    assert significant == [False, False, True]
    known = np.delete(table, range(100, 120), axis=0)
    np.testing.assert_allclose(hidden.participation.rate, known.mean(0), rtol=1e-12)
    assert hidden.participation.empty_rounds == 0
    assert hidden.participation.mean_active == pytest.approx(known.sum(1).mean())
    assert hidden.log.unknown_rounds == 20
    assert hidden.mixing.local_work_ratio == pytest.approx(280 * 40 / known.sum())
    assert max(hidden.participation.longest_absence) <= 280


def test_unknown_rounds_before_and_after_are_as_if_the_log_were_shorter():
    table = np.random.default_rng(2).random((260, 12)) < np.linspace(0.1, 0.9, 12)
    inner = audit(ParticipationLog.from_matrix(table[50:230])).to_dict()
    outer = audit(ParticipationLog.from_matrix(table, unknown=[*range(50), *range(230, 260)])).to_dict()
    for part, key in (
        ("participation", "rate"), ("participation", "rate_low"), ("participation", "longest_absence"),
        ("participation", "components"), ("bias", "realised_weight"), ("bias", "theoretical_weight"),
        ("bias", "total_variation_by_chance"), ("stationarity", "drift"), ("stationarity", "autocorrelation"),
        ("mixing", "squared_distance_left_per_round"), ("mixing", "local_work_ratio"),
    ):  # fmt: skip
        assert inner[part][key] == outer[part][key], key
    assert outer["participation"]["absence_histogram"]["censored"] > 0


def test_mixing_is_followed_within_stretches():
    """Of two groups that meet only in an unknown round nothing is known; a window never goes over an unknown round."""
    table = np.random.default_rng(0).random((40, 6)) < 0.4
    unknown = [13, 14, 30]
    whole = mixing(ParticipationLog.from_matrix(table, unknown=unknown), groups=1)
    left, rounds = [], 0
    for first, after in ((0, 13), (15, 30), (31, 40)):
        product = np.eye(6)
        for t in range(first, after):
            w = np.eye(6)
            if table[t].any():
                w[np.ix_(table[t], table[t])] = 1 / table[t].sum()
            product = product @ w
            rounds += 1
            if np.sum((product - 1 / 6) ** 2) / 5 <= 1e-6:
                raise AssertionError("the test needs stretches too short to get there")
        left.append(np.sum((product - 1 / 6) ** 2) / 5)
    assert whole.extrapolated
    assert whole.windows == 3
    assert whole.squared_left == pytest.approx(np.exp(np.sum(np.log(left)) / rounds), rel=1e-9)


def test_the_drift_of_counts_leaves_unknown_rounds_out():
    counts = np.random.default_rng(0).poisson(7, 300)
    known = np.ones(300, bool)
    known[280:] = False
    assert counts_drift(np.where(known, counts, 10**6), known) == pytest.approx(counts_drift(counts[:280]), rel=1e-12)


def test_a_cycle_keeps_its_period_across_unknown_rounds():
    table = (np.arange(400)[:, None] + np.arange(12)) % 20 < 3
    log = ParticipationLog.from_matrix(table, unknown=range(150, 187))
    assert period(log, spectra_of(log)).rounds == pytest.approx(20, rel=0.02)
    np.testing.assert_array_equal(centred(np.array([1, 9, 3]), np.array([True, False, True])), [-1, 0, 1])


def test_expected_absences_are_those_of_coin_flips_without_the_censored_ones():
    rounds, edges, unknown = 9, np.array([1, 2, 3, 5, 10]), [3, 7]
    rate = np.array([0.3, 0.8])
    expected = np.zeros(4)
    for p, flips in itertools.product(rate, itertools.product([0, 1], repeat=rounds)):
        chance = np.prod([p if flip else 1 - p for flip in flips])
        expected += chance * np.histogram(by_loops(np.array(flips), unknown)["absences"], edges)[0]
    stretches = ParticipationLog.from_matrix(np.ones((rounds, 2)), unknown=unknown).stretches()
    assert stretches.tolist() == [[0, 3], [4, 7], [8, 9]]
    np.testing.assert_allclose(found.expected_absences(edges, rate, rounds, stretches), expected, atol=1e-12)


def test_heat_cells_leave_unknown_rounds_out():
    table = np.random.default_rng(0).random((701, 5)) < 0.4
    unknown = [0, 1, 2, 300, 650]
    log = ParticipationLog.from_matrix(table, unknown=unknown)
    order, segments = heat.order_clients(table.mean(0), None)
    cells, row = heat.heat_cells(log, order, segments)
    column = np.arange(701) * cells.shape[1] // 701
    for c in range(cells.shape[1]):
        here = [t for t in range(701) if column[t] == c and t not in unknown]
        expected = table[np.ix_(here, order)].mean(0)[row] if here else np.full(5, np.nan)
        np.testing.assert_allclose(cells[:, c], expected)


def test_unknown_rounds_must_be_rounds():
    for wrong in ([-1], [60]):
        with pytest.raises(ConfigError, match="unknown must hold rounds from 0 to 59"):
            ParticipationLog.from_matrix(table_of(), unknown=wrong)
