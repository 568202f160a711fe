"""Statistics of a log against enumeration, closed forms and simulated logs."""

from __future__ import annotations

import itertools

import autocorrelated
import numpy as np
import pytest
import simulated
from scipy import stats as scipy_stats

from fedpbc.audit import ParticipationLog, audit, read_log
from fedpbc.audit import statistics as found
from fedpbc.audit.mixing import mixing
from fedpbc.audit.spectrum import period, spectra_of
from fedpbc.audit.steadiness import bridge_tail, counts_drift, drift, holm, long_run, memory, runs_test


def random_table(rounds: int = 60, m: int = 9, seed: int = 0) -> np.ndarray:
    table = np.random.default_rng(seed).random((rounds, m)) < np.linspace(0, 0.9, m)
    table[7] = False
    return table


def by_loops(column: np.ndarray) -> dict[str, object]:
    """What per_client says of one client, by loops over rounds."""
    text = "".join("x" if a else "." for a in column)
    absences = [len(run) for run in text.split("x") if run]
    seen = int(sum(column))
    shares = [abs(sum(column[:k]) / seen - k / len(column)) for k in range(len(column) + 1)] if seen else [0]
    return {
        "seen": seen,
        "repeats": sum(a and b for a, b in itertools.pairwise(column)),
        "longest": max(absences, default=0),
        "deviation": max(shares),
        "absences": absences,
    }


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_one_pass_agrees_with_loops(monkeypatch, block):
    monkeypatch.setattr(found, "BLOCK_PAIRS", block)
    table = random_table()
    stats = found.per_client(ParticipationLog.from_matrix(table))
    loops = [by_loops(table[:, i]) for i in range(table.shape[1])]
    for key in ("seen", "repeats", "longest"):
        np.testing.assert_array_equal(getattr(stats, key), [each[key] for each in loops], err_msg=key)
    np.testing.assert_allclose(stats.deviation, [each["deviation"] for each in loops], atol=1e-12)
    np.testing.assert_array_equal(stats.overlap, np.sum(table[1:] & table[:-1], axis=1))
    np.testing.assert_array_equal(stats.ends, table[0].astype(int) + table[-1])
    lengths = [k for each in loops for k in each["absences"]]
    expected = [sum(a <= k < b for k in lengths) for a, b in itertools.pairwise(stats.edges)]
    np.testing.assert_array_equal(stats.absences, expected)
    assert sum(expected) == len(lengths)


def test_realised_weights_by_loops():
    table = random_table()
    rounds = [row for row in table if row.any()]
    expected = sum(row / row.sum() for row in rounds) / len(rounds)
    np.testing.assert_allclose(found.realised_weights(ParticipationLog.from_matrix(table)), expected, rtol=1e-13)


def test_realised_weights_predict_fedavg_through_the_exact_identity():
    """Mean over rounds of x^(t+1) = sum wbar_i u_i - a/(1-a) (x^T - x^0)/n; FedAvg written out on a quadratic."""
    rng = np.random.default_rng(3)
    table = rng.random((400, 12)) < np.linspace(0.05, 0.7, 12)
    centers, x0, eta, s = rng.standard_normal((12, 5)), rng.standard_normal(5), 0.05, 4
    a, x, after = (1 - eta) ** s, x0, []
    for row in table:
        if row.any():
            x = np.mean([centers[i] + a * (x - centers[i]) for i in np.flatnonzero(row)], axis=0)
            after.append(x)
    weights = found.realised_weights(ParticipationLog.from_matrix(table))
    predicted = weights @ centers - a / (1 - a) * (x - x0) / len(after)
    np.testing.assert_allclose(np.mean(after, axis=0), predicted, atol=1e-13)


def test_realised_weights_predict_the_simulators_fedavg_on_the_same_trace(tmp_path):
    """The same identity from round T/2 on: the run reports the mean server model of its second half."""
    import fedpbc
    from fedpbc.experiment.grid import Experiment

    m, rounds, s, eta = 10, 60, 3, 0.05
    rng = np.random.default_rng(5)
    table = rng.random((rounds, m)) < np.linspace(0.05, 0.8, m)
    table[~table.any(1), 0] = True
    centers = rng.standard_normal((m, 4))
    np.save(tmp_path / "trace.npy", table)
    np.save(tmp_path / "centers.npy", centers)

    def models(length: int) -> dict[str, np.ndarray]:
        experiment = Experiment.from_table({
            "name": "x", "rounds": length, "local_steps": s, "learning_rate": eta, "seeds": [0], "precision": "float64",
            "problem": {"name": "quadratic", "centers": str(tmp_path / "centers.npy")},
            "links": [{"name": "trace", "path": str(tmp_path / "trace.npy")}], "algorithms": [{"name": "fedavg"}],
        })  # fmt: skip
        (cell,) = fedpbc.run(experiment).cells.values()
        return cell.models

    whole, half, a = models(rounds), models(rounds // 2), (1 - eta) ** s
    np.save(tmp_path / "second.npy", table[rounds // 2 :])
    weights = found.realised_weights(read_log(tmp_path / "second.npy"))
    predicted = weights @ centers - a / (1 - a) * (whole["server"] - half["server"]) / (rounds // 2)
    np.testing.assert_allclose(whole["server_average"], predicted, atol=1e-12)


def test_components_by_breadth_first_search(monkeypatch):
    monkeypatch.setattr(found, "BLOCK_PAIRS", 5)
    rng = np.random.default_rng(1)
    for _ in range(30):
        table = rng.random((8, 12)) < 0.12
        table[0, :2] = True
        meets = (table.T.astype(int) @ table) > 0
        reach = np.linalg.matrix_power(meets + np.eye(12), 12) > 0
        label = found.components(ParticipationLog.from_matrix(table))
        seen = table.any(0)
        np.testing.assert_array_equal(label == -1, ~seen)
        np.testing.assert_array_equal((label[:, None] == label)[seen][:, seen], reach[seen][:, seen])


def test_gini_by_all_pairs():
    x = np.random.default_rng(0).random(30)
    assert found.gini(x) == pytest.approx(np.abs(x[:, None] - x).mean() / 2 / x.mean(), rel=1e-12)
    assert found.gini(np.ones(5)) == 0
    assert found.gini(np.array([0, 0, 0, 1.0])) == pytest.approx(0.75)


def test_intervals_are_scipys_exact_ones():
    k = np.array([0, 1, 17, 49, 50])
    low, high = found.intervals(k / 50, np.full(5, 50.0))
    for i, count in enumerate(k):
        exact = scipy_stats.binomtest(int(count), 50).proportion_ci(0.95, method="exact")
        assert (low[i], high[i]) == pytest.approx((exact.low, exact.high), abs=1e-12)


def test_chance_gives_the_variation_that_is_stated():
    """Equal clients exceed the stated total variation rarely, and come close to it."""
    rng = np.random.default_rng(0)
    excess = []
    for _ in range(200):
        table = rng.random((80, 40)) < 0.2
        log = ParticipationLog.from_matrix(table)
        variation = np.abs(found.realised_weights(log) - 1 / 40).sum() / 2
        excess.append(variation / found.total_variation_by_chance(log.active_counts(), 40, 1.0))
    assert np.mean(np.array(excess) > 1) < 0.08
    assert np.mean(excess) > 0.7


def test_chance_gives_more_where_there_is_memory():
    """The same of equal chains with autocorrelation .8; without the allowance all of them exceed it."""
    rng, excess, plain = np.random.default_rng(0), [], []
    for _ in range(60):
        log = ParticipationLog.from_matrix(simulated.markov(rng, 400, np.full(40, 0.2), 0.8))
        variation = np.abs(found.realised_weights(log) - 1 / 40).sum() / 2
        excess.append(variation / found.total_variation_by_chance(log.active_counts(), 40, 9.0))
        plain.append(variation / found.total_variation_by_chance(log.active_counts(), 40, 1.0))
    assert np.mean(np.array(excess) > 1) < 0.1
    assert np.mean(excess) > 0.65
    assert min(plain) > 1


def test_runs_test_by_enumeration():
    total = 9
    for seen in (2, 4, 8):
        places = list(itertools.combinations(range(total), seen))
        runs = np.array([1 + sum(b - a > 1 for a, b in itertools.pairwise(place)) for place in places])
        for k in np.unique(runs):
            exact = min(1, 2 * min(np.mean(runs <= k), np.mean(runs >= k)))
            assert runs_test(np.array([seen]), np.array([seen - k]), total)[0] == pytest.approx(exact, abs=1e-12)


def test_holm_on_a_worked_example():
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])


def test_autocorrelation_by_its_definition():
    table = random_table(400, 9)
    log = ParticipationLog.from_matrix(table)
    each = memory(log, found.per_client(log)).each
    centred = table - table.mean(0)
    with np.errstate(invalid="ignore"):
        expected = np.sum(centred[1:] * centred[:-1], 0) / np.sum(centred**2, 0) + 1 / 400
    np.testing.assert_allclose(each, expected, atol=1e-12)


def test_memory_is_measured_as_simulated():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.6, 60)
    log = ParticipationLog.from_matrix(simulated.markov(rng, 2000, p, 0.6))
    result = memory(log, found.per_client(log))
    assert result.p_value < 1e-6
    assert result.pooled == pytest.approx(0.6, abs=4 * np.sqrt((1 - 0.6**2) / (2000 * 60)) + 0.01)
    assert np.all(result.used > 0.4)


@pytest.mark.first(2)
@pytest.mark.parametrize("name", ["independent", "memory .5", "memory .8", "ten of all", "shared outage"])
def test_rates_are_covered_and_steady_logs_raise_no_alarm(name):
    """Over 60 logs of 60 clients: coverage >= .95 less three standard errors, alarms <= their level plus three."""
    result = simulated.study(name, logs=60, rounds=400, m=60)
    assert result.coverage >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / (60 * 60)) - (0.005 if "memory" in name else 0)
    assert result.coverage < 0.985
    assert result.drift_alarms <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 60)
    assert result.period_alarms <= 0.01 + 3 * np.sqrt(0.02 * 0.98 / 60)
    if "memory" not in name:
        assert result.memory_alarms <= 0.01 + 3 * np.sqrt(0.02 * 0.98 / 60)
    else:
        assert result.memory_alarms == 1


def test_the_intervals_of_an_audit_allow_for_memory():
    """They cover the probabilities of chains; the exact intervals of as many independent rounds do not."""
    p = np.linspace(0.1, 0.6, 300)
    log = ParticipationLog.from_matrix(simulated.markov(np.random.default_rng(0), 400, p, 0.8))
    given = audit(log).participation
    assert given.intervals_widened
    covered = np.mean((given.rate_low <= p) & (p <= given.rate_high))
    assert 0.95 - 3 * np.sqrt(0.95 * 0.05 / 300) - 0.005 <= covered < 0.985
    low, high = found.intervals(given.rate, np.full(300, 400.0))
    assert np.mean((low <= p) & (p <= high)) < 0.6


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["independent", "memory .5"])
def test_unknown_rounds_raise_no_alarm(name):
    """The same limits with an outage of the logger and scattered unknown rounds."""
    result = simulated.study(name, logs=60, rounds=400, m=60, hide=True)
    assert 0.95 - 3 * np.sqrt(0.95 * 0.05 / (60 * 60)) - 0.005 <= result.coverage < 0.985
    assert result.drift_alarms <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 60)
    assert result.period_alarms <= 0.01 + 3 * np.sqrt(0.02 * 0.98 / 60)
    assert result.memory_alarms == (1 if "memory" in name else pytest.approx(0.0, abs=0.01 + 3 * np.sqrt(0.02 / 60)))


def test_drift_is_found_and_its_clients_named():
    result = simulated.study("step of .3", logs=10, rounds=500, m=60)
    assert result.drift_alarms == 1
    assert result.named > 0.9
    assert result.falsely_named < 0.01


@pytest.mark.parametrize("name", ["daily", "daily, time zones"])
@pytest.mark.parametrize("hide", [False, True])
def test_a_daily_cycle_is_found(name, hide):
    result = simulated.study(name, logs=10, rounds=500, m=60, hide=hide)
    assert result.period_alarms == 1
    half_a_bin = 24**2 / 500 / 2
    np.testing.assert_allclose(result.periods, 24, atol=half_a_bin)


def cycle_of(table):
    log = ParticipationLog.from_matrix(table)
    return period(log, spectra_of(log))


def test_a_cycle_has_its_own_period_not_a_harmonic():
    offset = np.arange(12)
    table = (np.arange(400)[:, None] + offset) % 20 < 3
    assert cycle_of(table).rounds == pytest.approx(20, rel=0.01)


def test_a_day_with_two_peaks_is_one_cycle():
    """The second harmonic is the strongest; the days differ from half-days by a little."""
    turn = 2 * np.pi * np.arange(600) / 30
    rates = 0.3 + 0.25 * np.cos(2 * turn) + 0.08 * np.cos(turn)
    table = np.random.default_rng(0).random((600, 60)) < rates[:, None]
    assert cycle_of(table).rounds == pytest.approx(30, rel=0.01)


def test_counts_that_drift_are_found():
    rng = np.random.default_rng(0)
    assert counts_drift(rng.poisson(np.linspace(5, 9, 300))) < 0.01
    assert counts_drift(np.full(50, 7)) == 1
    levels = [counts_drift(rng.poisson(7, 300)) for _ in range(300)]
    assert np.mean(np.array(levels) < 0.05) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)


def test_short_logs_are_not_tested():
    log = ParticipationLog.from_matrix(random_table(12))
    stats = found.per_client(log)
    assert drift(log, stats, long_run(log, stats, None), None).p_value is None
    assert memory(log, stats).p_value == 1
    assert period(log, spectra_of(log)).rounds is None


def product(table: np.ndarray) -> np.ndarray:
    """W^(0) ... W^(T-1), built."""
    m = table.shape[1]
    total = np.eye(m)
    for row in table:
        w = np.eye(m)
        if row.any():
            w[np.ix_(row, row)] = 1 / row.sum()
        total = total @ w
    return total


def test_contraction_is_that_of_the_built_product():
    table = np.random.default_rng(0).random((25, 8)) < 0.3
    assert table.any(0).all()
    result = mixing(ParticipationLog.from_matrix(table), groups=1)
    left = np.sum((product(table) - 1 / 8) ** 2) / 7
    assert (result.windows, result.clients_seen) == (1, 8)
    assert result.squared_left == pytest.approx(left ** (1 / 25), rel=1e-9)
    assert (result.extrapolated, result.left_for_good) == (True, 0.0)
    assert result.squared_left ** (result.half_life / 2) == pytest.approx(0.5)
    assert result.squared_left ** (result.cooldown / 2) == pytest.approx(1e-3)


def test_equal_probabilities_contract_at_the_exact_rate():
    """E ||W^(0) ... W^(T-1) - J||^2 / (m-1) = lambda_2^T, lambda_2 = 1 - (mp - 1 + (1-p)^m)/(m-1), at equal p."""
    m, p, rounds = 30, 0.2, 6
    rng = np.random.default_rng(0)
    logs = [rng.random((rounds, m)) < p for _ in range(300)]
    left = []
    for table in logs:
        alone = np.eye(m, dtype=bool)  # rounds of one client: everybody is seen, and the product stays the same
        whole = ParticipationLog.from_matrix(np.vstack([table, alone]))
        left.append(mixing(whole, groups=1).squared_left ** (rounds + m))
    exact = (1 - (m * p - 1 + (1 - p) ** m) / (m - 1)) ** rounds
    assert np.mean(left) == pytest.approx(exact, abs=4 * np.std(left) / np.sqrt(len(left)))
    assert np.std(left) / np.sqrt(len(left)) < 0.02 * exact


def test_probes_agree_with_the_exact_product(monkeypatch):
    log = ParticipationLog.from_matrix(np.random.default_rng(0).random((1500, 150)) < 0.15)
    exact = mixing(log, groups=1)
    monkeypatch.setattr("fedpbc.audit.mixing.EXACT_UP_TO", 10)
    probed = mixing(log, groups=1)
    assert probed.squared_left == pytest.approx(exact.squared_left, rel=0.02)
    assert probed.cooldown == pytest.approx(exact.cooldown, rel=0.15)


def test_groups_that_never_meet_keep_their_distance():
    table = np.random.default_rng(0).random((400, 10)) < 0.5
    table[::2, :5] = False
    table[1::2, 5:] = False
    result = mixing(ParticipationLog.from_matrix(table), groups=2)
    left = np.sum((product(table) - 1 / 10) ** 2) / 9
    assert result.left_for_good == pytest.approx(left, rel=1e-9)
    assert (result.squared_left, result.half_life, result.cooldown) == (None, None, None)


def test_clients_that_take_turns_every_round_have_no_period_and_no_nan():
    """All variation is at the frequency 1/2, which for an even number of rounds is no ordinate of the test."""
    for table in (
        np.eye(4)[[0, 1] * 40],
        np.eye(2)[[0, 1] * 40],
        np.repeat(np.array([[1, 1], [0, 1]] * 40), 2, axis=1),
    ):
        found = cycle_of(table)
        assert (found.rounds, found.strength) == (None, 0.0)
        assert found.p_value == 1


def test_sharp_pulses_have_the_period_of_their_fundamental():
    """All harmonics of a pulse are alike: any of them may stand out most."""
    for every in (17, 24, 53):
        rng = np.random.default_rng(every)
        table = rng.random((1000, 12)) < 0.3
        table[::every] = True
        assert cycle_of(table).rounds == pytest.approx(every, rel=0.01)


@pytest.mark.parametrize("kind", ["memory .97", "modulated .97", "shared .97"])
def test_slow_rates_that_come_back_are_neither_drift_nor_cycle(kind):
    """The table of docs/audit.md has the rates of several hundred logs; before, nearly all of these raised an alarm."""
    found = autocorrelated.study(autocorrelated.STEADY[kind], 12, 1500, 30)
    assert found[0] <= 3 / 12
    assert found[3] <= 2 / 12


def test_the_bridge_with_an_estimated_variance_has_its_tail_and_kolmogorovs_in_the_limit():
    rng = np.random.default_rng(0)
    steps = rng.standard_normal((4000, 1600)) / 40
    walks = np.cumsum(steps, axis=1)
    largest = np.abs(walks - np.arange(1, 1601) / 1600 * walks[:, -1:]).max(axis=1) + 0.58 / 40  # between the steps
    for freedom in (4, 12):
        estimated = largest / np.sqrt(rng.chisquare(freedom, 4000) / freedom)
        for x in (1.0, 1.6, 2.4):
            tail = bridge_tail(np.array([x]), np.array([float(freedom)]))[0]
            assert np.mean(estimated > x) == pytest.approx(tail, abs=0.03)
    x = np.array([0.6, 1.0, 1.36, 2.0])
    np.testing.assert_allclose(bridge_tail(x, np.full(4, 1e9)), scipy_stats.kstwobign.sf(x), atol=1e-6)
