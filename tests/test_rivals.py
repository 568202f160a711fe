"""Every method of the simulator against ``rivals.py``, an independent implementation, round by round.

The same traces for everything: a downlink of its own, lost clients, a cool-down and a decaying rate, one setting at
a time and all at once. The oracle with one deliberate mistake must not agree: these tests can fail.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import oracle
import pytest
import rivals
from components import own
from stepwise import Simulated, deviation, random_trace, simulate
from test_oracle import CLASSES, SYNTHETIC_M, client_data, sampler, synthetic_experiment

import fedpbc

M, D, STEPS, ETA, ROUNDS = 6, 4, 3, 0.1, 24
CENTERS = np.random.default_rng(5).normal(3, 2, (M, D))
PROB = np.array([0.1, 0.3, 0.5, 0.5, 0.7, 0.9])


class Case(NamedTuple):
    """A setting of the simulator and the same method of the oracle."""

    options: dict[str, Any]
    method: rivals.Method


CASES = {
    "fedavg": Case({"name": "fedavg"}, rivals.FedAvg()),
    "fedavg sgd": Case({"name": "fedavg", "server": 0.7}, rivals.FedAvg(rivals.Sgd(0.7))),
    "fedavg momentum": Case({"name": "fedavg", "server": {"name": "momentum"}}, rivals.FedAvg(rivals.Momentum())),
    "fedavg adam": Case(
        {"name": "fedavg", "server": {"name": "adam", "learning_rate": 0.1}}, rivals.FedAvg(rivals.Adam(0.1))
    ),
    "fedau yogi": Case(
        {"name": "fedau", "server": {"name": "yogi", "learning_rate": 0.1, "tau": 0.1}},
        rivals.FedAU(50, rivals.Yogi(0.1, tau=0.1)),
    ),
    "fedavg_all": Case({"name": "fedavg_all"}, rivals.FedAvgAll()),
    "fedavg_known": Case({"name": "fedavg_known"}, rivals.FedAvgKnown()),
    "fedau": Case({"name": "fedau", "cutoff": 4}, rivals.FedAU(4)),
    "fedau without cutoff": Case({"name": "fedau", "cutoff": 0}, rivals.FedAU(0)),
    "f3ast": Case({"name": "f3ast", "slots": 2, "beta": 0.2}, rivals.F3AST(2, 0.2)),
    "fedprox": Case({"name": "fedprox", "mu": 0.8}, rivals.FedProx(0.8)),
    "amplified": Case({"name": "amplified_fedavg", "window": 5, "gamma": 1.7}, rivals.AmplifiedFedAvg(5, 1.7)),
    "mifa": Case({"name": "mifa"}, rivals.MIFA()),
    "mifa waiting": Case({"name": "mifa", "wait": True}, rivals.MIFA(True)),
    "fedvarp": Case({"name": "fedvarp", "server_learning_rate": 0.6}, rivals.FedVARP(0.6)),
    "mifa on clients": Case({"name": "mifa", "memory": "client"}, rivals.MIFADifferences()),
    "mifa on clients, waiting": Case({"name": "mifa", "memory": "client", "wait": True}, rivals.MIFADifferences(True)),
    "fedvarp on clients": Case(
        {"name": "fedvarp", "memory": "client", "server_learning_rate": 0.6}, rivals.FedVARPDifferences(0.6)
    ),
    "scaffold": Case({"name": "scaffold", "server_learning_rate": 0.8}, rivals.Scaffold(0.8)),
    "scaffold by server": Case({"name": "scaffold", "controls": "server"}, rivals.Scaffold(held_by_server=True)),
    "scaffold around": Case({"name": "scaffold", "apply": "around"}, rivals.Scaffold(around=True)),
    "scaffold with epochs": Case({"name": "scaffold", "epoch_reset": True}, rivals.Scaffold(epochs=True)),
    "debiased": Case({"name": "debiased_fedavg"}, rivals.DebiasedFedAvg()),
    "fedstale": Case({"name": "fedstale", "cutoff": 4}, rivals.FedStale(0.5, rivals.FedAU(4))),
    "focus": Case({"name": "focus", "server_learning_rate": 0.3}, rivals.FOCUS(0.3)),
    "area": Case({"name": "area"}, rivals.AREA()),
    "area by server": Case({"name": "area", "memory": "server"}, rivals.AREA(held_by_server=True)),
    "fedfade": Case({"name": "fedfade", "cutoff": 4}, rivals.FedFade(cutoff=4)),
    "fedfade around, mean": Case(
        {"name": "fedfade", "apply": "around", "weights": "mean"}, rivals.FedFade(mean=True, around=True)
    ),
    "fedfade by server": Case(
        {"name": "fedfade", "controls": "server", "fading": 0.8, "server": {"name": "momentum"}},
        rivals.FedFade(0.8, held_by_server=True, optimiser=rivals.Momentum()),
    ),
    "fedfade by server around": Case(
        {"name": "fedfade", "controls": "server", "apply": "around", "server": 0.7},
        rivals.FedFade(held_by_server=True, around=True, optimiser=rivals.Sgd(0.7)),
    ),
    "fedfade with epochs": Case(
        {"name": "fedfade", "cutoff": 4, "epoch_reset": True}, rivals.FedFade(cutoff=4, epochs=True)
    ),
    "fedfade that does not fade": Case({"name": "fedfade", "fading": "none"}, rivals.FedFade(1.0)),
    "fedfade that fades at once": Case({"name": "fedfade", "fading": 0}, rivals.FedFade(0.0)),
    "fedawe": Case({"name": "fedawe", "server_learning_rate": 0.5}, rivals.FedAWE(0.5)),
    "fedawe clip": Case({"name": "fedawe", "clip": 3}, rivals.FedAWE(clip=3)),
    "fedawe norm": Case(
        {"name": "fedawe", "norm_limit": 2, "server_learning_rate": 0.5}, rivals.FedAWE(0.5, norm_limit=2)
    ),
    "fedpbc": Case({"name": "fedpbc"}, rivals.FedPBC()),
    **{f"catch-up {k}": Case({"name": "fedpbc", "max_catchup": k}, rivals.FedPBCCatchUp(k)) for k in (1, 2, 5)},
    **{
        f"corrected {form} {apply}": Case(
            {"name": "fedpbc_corrected", "correction": form, "apply": apply}, rivals.FedPBCCorrected(form, apply)
        )
        for form in ("full", "light")
        for apply in ("every_step", "around")
    },
    "corrected without epochs": Case(
        {"name": "fedpbc_corrected", "epoch_reset": False}, rivals.FedPBCCorrected("full", epoch_reset=False)
    ),
}
SCENARIOS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cool-down and a decaying rate": {"cooldown": 5, "decaying": True},
    "everything": {"cooldown": 3, "decaying": True, "downlink": True, "lost": True},
}


def trace(seed: int = 1) -> np.ndarray:
    """With an empty round, one with everybody, one with a single client, and a client that stays away at first."""
    links = random_trace(seed, ROUNDS, M, PROB)
    links[:10, 1] = False
    links[[4, 11]], links[7] = False, True
    links[15] = np.arange(M) == 2
    return links


@cache
def simulated(
    folder: Any, case: str, compute: str, cooldown: int = 0, decaying: bool = False, downlink: bool = False, lost=False
) -> tuple[Simulated, dict[int, set[int]]]:
    """(the simulator's run, which clients lost their state when)."""
    up, down = trace(), random_trace(9, ROUNDS, M, 0.6)
    np.save(folder / "centers.npy", CENTERS)
    np.save(folder / "up.npy", up)
    np.save(folder / "down.npy", down)
    link = {"name": "trace", "path": "up.npy"}
    if downlink:
        link = {"name": "two_way", "up": link, "down": {"name": "trace", "path": "down.npy"}}
    table = {
        "name": "rivals",
        "rounds": ROUNDS,
        "local_steps": STEPS,
        "learning_rate": {"name": "inverse_sqrt", "initial": ETA, "period": 4} if decaying else ETA,
        "seeds": [0],
        "chunk_size": 4,
        "precision": "float64",
        "compute": [compute],
        "cooldown_rounds": cooldown,
        "problem": {"name": "quadratic", "centers": "centers.npy"},
        "links": [link],
        "algorithms": [CASES[case].options],
        **({"state_loss": {"round": 9, "share": 0.3}} if lost else {}),
    }
    experiment = fedpbc.Experiment.from_table(table, folder)
    gone = set(experiment.context(0).rng("state loss").permutation(M)[:2].tolist()) if lost else set()
    return simulate(experiment, experiment.cells()[0]), {9: gone}


def expected(method: rivals.Method, compute: str, gone: dict[int, set[int]], **scenario: Any) -> list[rivals.State]:
    """The oracle's run of the same scenario."""
    rate = oracle.inverse_sqrt(ETA, 4) if scenario.get("decaying") else oracle.constant(ETA)
    return rivals.simulate(
        method,
        oracle.Quadratic(CENTERS).gradient,
        trace(),
        np.zeros(D),
        steps=STEPS,
        rate=rate,
        compute=compute,
        cooldown=scenario.get("cooldown", 0),
        prob=np.tile(trace().mean(axis=0), (ROUNDS, 1)),
        downlink=random_trace(9, ROUNDS, M, 0.6) if scenario.get("downlink") else None,
        lost=gone,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Any:
    return tmp_path_factory.mktemp("rivals")


def test_the_trace_holds_the_special_rounds() -> None:
    counts = trace().sum(axis=1)
    assert {0, 1, M} <= set(counts.tolist())
    assert trace().any(axis=0).all()


def test_every_registered_algorithm_is_compared_here() -> None:
    from fedpbc.algorithms import ALGORITHMS

    assert {case.options["name"] for case in CASES.values()} == own(ALGORITHMS)


UPDATES_ALONE = {"fedavg_known", "debiased", "fedstale", "fedawe norm"}
"""They know Delta_i, whatever the steps were: linear gradients say all."""
IN_NUMPY_TOO = {"debiased", "fedstale", "focus", "fedawe norm"}
"""test_rival_facts.py compares these rules without compiling anything: here everything at once is enough."""
RUNS = [
    (case, compute, scenario)
    for case in CASES
    for compute in ("all", "active")
    for scenario in SCENARIOS
    if case not in IN_NUMPY_TOO or (compute, scenario) == ("all", "everything")
]


QUICK = {("all", "everything"), ("active", "plain")}
"""What continuous integration has of each case; the rest runs before a release."""


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("case", "compute", "scenario"),
    [pytest.param(*each, marks=() if each[1:] in QUICK else pytest.mark.release) for each in RUNS],
)
def test_the_simulator_is_the_oracle(folder: Any, case: str, compute: str, scenario: str) -> None:
    run, lost = simulated(folder, case, compute, **SCENARIOS[scenario])
    states = expected(CASES[case].method, compute, lost, **SCENARIOS[scenario])
    assert deviation(run, states) < 1e-12
    assert np.abs(run.servers[-1]).max() > 0.1


@pytest.mark.parametrize(
    "case",
    [
        "fedau",
        "f3ast",
        "mifa",
        "fedvarp",
        "fedstale",
        "focus",
        "scaffold",
        "fedfade",
        "fedawe",
        "corrected light around",
    ],
)
def test_memories_are_the_oracles_too(folder: Any, case: str) -> None:
    run, lost = simulated(folder, case, "all", **SCENARIOS["everything"])
    states = expected(CASES[case].method, "all", lost, **SCENARIOS["everything"])
    names = {
        "fedau": [("weighting.weight", "w")],
        "f3ast": [("weighting", "r")],
        "mifa": [("table", "G")],
        "fedvarp": [("table", "y"), ("mean", "ybar")],
        "fedstale": [("table", "h"), ("weighting.weight", "w")],
        "focus": [("kept.own", "h"), ("kept.mean", "hbar"), ("kept.epoch", "epoch")],
        "scaffold": [("control", "c"), ("controls", "c_i")],
        "fedfade": [("control", "c"), ("controls", "c_i"), ("intervals.weight", "w")],
        "fedawe": [("last", "tau")],
        "corrected light around": [("corrections", "z"), ("length", "h"), ("epoch", "epoch"), ("server_epoch", "E")],
    }
    for ours, theirs in names[case]:
        for mine, state in zip(run.states, states, strict=True):
            for part in ours.split("."):
                mine = getattr(mine, part)
            np.testing.assert_allclose(mine, np.array(state.extra[theirs]), rtol=1e-11, atol=1e-12)


def on_minibatches() -> list[Any]:
    """The first case of every method in continuous integration, its other options before a release."""
    cases = [name for name in CASES if "without" not in name and name not in UPDATES_ALONE]
    first = {CASES[name].options["name"]: name for name in reversed(cases)}.values()
    return [pytest.param(name, marks=() if name in first else pytest.mark.release) for name in cases]


@pytest.mark.every(6)
@pytest.mark.parametrize("case", on_minibatches())
def test_on_a_model_with_minibatches(tmp_path: Any, case: str) -> None:
    """Logistic regression, fresh minibatches, decaying rate, cool-down: gradients are not linear here."""
    experiment = synthetic_experiment(tmp_path, "", "all", minibatch="step", algorithms=[CASES[case].options])
    data = client_data(experiment)
    links = np.load(tmp_path / "trace.npy")
    states = rivals.simulate(
        CASES[case].method,
        data.gradient,
        links,
        np.zeros(CLASSES * 61),
        steps=3,
        rate=oracle.inverse_sqrt(0.05, 3),
        sample=sampler(data, 8, "step"),
        minibatch="step",
        cooldown=3,
    )
    assert links.shape[1] == SYNTHETIC_M
    assert deviation(simulate(experiment, experiment.cells()[0]), states) < 1e-11


# ------------------------------------------------- one mistake in the oracle must be visible, public mistakes above all


class RatesOfBefore(rivals.F3AST):
    """F3AST that weighs by r from before the round, as it was here once: a weight then has no bound."""

    def weights(self, r: Any, memory: Any) -> dict[int, float]:
        before = list(memory["r"])
        return {i: 1 / (r.m * before[i]) for i in super().weights(r, memory)}


class WithoutEpochs(rivals.MIFADifferences):
    """MIFA by differences whose server is not told that a client lost its G_i."""

    def lose(self, i: int, t: int, x0: Any, memory: Any) -> None:
        memory["h"][i] = 0 * x0


class OwnOutcome(rivals.FedAU):
    """FedAU whose weight of round t knows the outcome of round t."""

    def aggregate(self, r: Any, server: Any, delta: Any, memory: Any) -> Any:
        before = {k: list(v) for k, v in memory.items()}
        self.update_rule(r, memory)
        after = {k: list(v) for k, v in memory.items()}
        memory.update({**before, "w": after["w"]})
        server = super().aggregate(r, server, delta, memory)
        memory.update(after)
        return server


class WithoutOneOverEta(rivals.MIFA):
    """MIFA whose table holds updates that were not divided by the eta that made them."""

    def aggregate(self, r: Any, server: Any, delta: Any, memory: Any) -> Any:
        return super().aggregate(r, server, [d * r.eta / ETA for d in delta], memory)


class OwnRoundLeftOut(rivals.DebiasedFedAvg):
    """Debiased FedAvg whose shares are those of before the round; this round's where there is none."""

    def weights(self, r: Any, memory: Any) -> dict[int, float]:
        before, now = memory["history"], super().weights(r, memory)
        counts = {i: sum(i in heard for heard in before) for i in r.active}
        return {i: len(before) / (r.m * counts[i]) if counts[i] else now[i] for i in r.active}


class EveryRoundCountsThatHears(rivals.DebiasedFedAvg):
    """Debiased FedAvg that leaves rounds without anybody out."""

    def update_rule(self, r: Any, memory: Any) -> None:
        if r.active:
            super().update_rule(r, memory)


class StaleAmongTheActive(rivals.FedStale):
    """FedStale that takes all of h_i off a new update and gives beta of hbar back."""

    def aggregate(self, r: Any, server: Any, delta: Any, memory: Any) -> Any:
        weights, h = self.rule.weights(r, memory), list(memory["h"])
        after = super().aggregate(r, server, delta, memory)
        off = sum((w * h[i] for i, w in weights.items()), 0 * server)
        return after - self.eta_g * (1 - self.beta) * off if r.training else after


class RestsWhereNobodyIs(rivals.FedStale):
    """FedStale that leaves empty rounds out, as the authors' program does."""

    def aggregate(self, r: Any, server: Any, delta: Any, memory: Any) -> Any:
        after = super().aggregate(r, server, delta, memory)
        return after if r.active else server


class OneMoreMove(rivals.FOCUS):
    """FOCUS whose gradient is taken after as many moves as there are steps."""

    def step(self, r: Any, i: int, k: int, x: Any, start: Any, memory: Any) -> Any:
        x = super().step(r, i, k, x, start, memory)
        if k < r.steps - 1:
            return x
        return super().step(r, i, k + 1, x, start, memory)


class MeanGradient(rivals.FOCUS):
    """FOCUS whose g_i is the mean gradient of the local steps, as SCAFFOLD's."""

    def step(self, r: Any, i: int, k: int, x: Any, start: Any, memory: Any) -> Any:
        x = super().step(r, i, k, x, start, memory)
        total = memory.setdefault("total", {})
        total[i] = memory["seen"][i] + (total[i] if k else 0)
        if k == r.steps - 1:
            memory["u"][i] = memory["u"][i] - memory["seen"][i] + total[i] / r.steps
            memory["seen"][i] = total[i] / r.steps
        return x


class PushForgotten(rivals.FOCUS):
    """FOCUS whose y is this round's alone."""

    def aggregate(self, r: Any, server: Any, delta: Any, memory: Any) -> Any:
        memory["y"] = 0 * server
        return super().aggregate(r, server, delta, memory)


class EachEchoLimited(rivals.FedAWE):
    """FedAWE that limits the norm of every echoed update and not of their mean."""

    def round(self, r: Any, server: Any, clients: Any, memory: Any) -> Any:
        limit, tau = self.norm_limit, list(memory["tau"])
        self.norm_limit = 0
        before, (mean, after) = list(clients), super().round(r, server, clients, memory)
        self.norm_limit = limit
        if not (r.active and r.training):
            return mean, after
        total = 0 * server
        for i in r.active:
            x = before[i]
            for k in range(r.steps):
                x = x - r.eta * r.grad(i, k, x)
            v = (r.t - tau[i]) * (x - before[i])
            total = total + before[i] + self.eta_g * v * min(1, limit / np.linalg.norm(v))
        mean = total / len(r.active)
        return mean, [mean if i in r.active and i in r.reached else x for i, x in enumerate(after)]


class ControlOverActive(rivals.Scaffold):
    """SCAFFOLD whose c moves by the sum over A divided by |A| and not by m."""

    def aggregate(self, r: Any, server: Any, delta: Any, memory: Any) -> Any:
        before = memory["c"]
        server = super().aggregate(r, server, delta, memory)
        memory["c"] = before + (memory["c"] - before) * r.m / max(len(r.active), 1)
        return server


class ControlNotItsChange(rivals.Scaffold):
    """SCAFFOLD whose c moves by the new c_i instead of by their change."""

    def aggregate(self, r: Any, server: Any, delta: Any, memory: Any) -> Any:
        old, c = list(memory["c_i"]), memory["c"]
        server = super().aggregate(r, server, delta, memory)
        changed = [i for i in r.active if r.training and not np.array_equal(old[i], memory["c_i"][i])]
        memory["c"] = c + sum((memory["c_i"][i] for i in changed), 0 * c) / r.m
        return server


class AgesByTime(rivals.FedFade):
    """FedFade whose slope goes through the origin, as if minibatches took nothing off."""

    def slope(self, t: int, samples: list) -> float:
        trust = [0.98 ** (t - when) for when, _, _ in samples]
        square = sum(w * a * a for w, (_, a, _) in zip(trust, samples, strict=True))
        return sum(w * a * y for w, (_, a, y) in zip(trust, samples, strict=True)) / square if samples else 0.0


class NothingForgotten(rivals.FedFade):
    """FedFade to which all samples count alike."""

    def slope(self, t: int, samples: list) -> float:
        return super().slope(t, [(t, age, left) for _, age, left in samples])


class RatioToTheAged(rivals.FedFade):
    """FedFade that compares g_i with what is left of c_i, u_i, in place of c_i."""

    def aggregate(self, r: Any, server: Any, delta: Any, memory: Any) -> Any:
        memory["c_i"] = list(memory["u"])
        return super().aggregate(r, server, delta, memory)


class DeltaOfBefore(rivals.FedFade):
    """FedFade whose delta does not know this round's samples."""

    def fade(self, t: int, samples: list) -> float:
        return super().fade(t, [sample for sample in samples if sample[0] < t])


class EmptyRoundsRest(rivals.FedFade):
    """FedFade whose server stays where nobody is heard."""

    def aggregate(self, r: Any, server: Any, delta: Any, memory: Any) -> Any:
        after = super().aggregate(r, server, delta, memory)
        return after if r.active else server


class UnreachedCount(rivals.FedFade):
    """FedFade whose intervals end with every message that arrives, also of those that had no c."""

    def update_rule(self, r: Any, memory: Any) -> None:
        super().update_rule(dataclasses.replace(r, active=[i for i in range(r.m) if trace()[r.t, i]]), memory)


class NewcomersTell(rivals.FedFade):
    """FedFade in which a lost c_i counts as one of which nothing is left."""

    def lose(self, i: int, t: int, x0: Any, memory: Any) -> None:
        memory["u"][i] = 0 * x0


class LastClientsProbability(rivals.FedAvgKnown):
    """Every update divided by the p of the last active client."""

    def weights(self, r: Any, memory: Any) -> dict[int, float]:
        return dict.fromkeys(r.active, 1 / (r.m * r.prob[r.active[-1]])) if r.active else {}


class ByPosition(rivals.F3AST):
    """Chooses positions inside the list of active clients and takes them for client ids."""

    def weights(self, r: Any, memory: Any) -> dict[int, float]:
        chosen = super().weights(r, memory)
        positions = {k for k, i in enumerate(r.active) if i in chosen}
        return {i: 1 / (r.m * memory["r"][i]) for i in positions if i in r.active}


class EchoFromZero(rivals.FedAWE):
    """FedAWE whose clients start with tau_i = 0."""

    def memory(self, m: int, x0: Any) -> dict:
        return {"tau": [0] * m}


class MeanLength(rivals.FedPBCCorrected):
    """The light form with the mean of h_i instead of the largest."""

    def round(self, r: Any, server: Any, clients: Any, memory: Any) -> Any:
        z = [v.copy() for v in memory["z"]]
        lengths = [h + r.eta * r.steps * (i in r.computing) for i, h in enumerate(memory["h"])]
        result = super().round(r, server, clients, memory)
        over = [lengths[i] for i in r.active]
        if over and max(over) > 0:
            for i in r.active:
                memory["z"][i] = z[i] + (memory["z"][i] - z[i]) * max(over) / (sum(over) / len(over))
        return result


class ResultOnly(rivals.FedPBCCorrected):
    """The black-box form that corrects the result alone."""

    def local(self, r: Any, i: int, x: Any, z: Any) -> Any:
        for k in range(r.steps):
            x = x - r.eta * r.grad(i, k, x)
        return x - r.eta * r.steps * z


class OldestRounds(rivals.FedPBCCatchUp):
    """Replays the first k rounds after the contact instead of the latest."""

    def replayed(self, v: int, t: int) -> range:
        return range(v, min(v + self.k, t + 1))


class FromTheOwnModel(rivals.FedPBCCatchUp):
    """What was left out once is not left out later: trains on from the client's model instead of from the base."""

    def round(self, r: Any, server: Any, clients: Any, memory: Any) -> Any:
        server, after = super().round(r, server, clients, memory)
        for i in range(r.m):
            if r.t + 1 - memory["v"][i] >= self.k:
                memory["b"][i], memory["v"][i] = after[i], r.t + 1
        return server, after


class TodaysRate(rivals.FedPBCCatchUp):
    """Replays all rounds with the learning rate of the latest."""

    def round(self, r: Any, server: Any, clients: Any, memory: Any) -> Any:
        for past in memory["rounds"]:
            past.eta = r.eta
        return super().round(r, server, clients, memory)


MUTANTS = [
    *(("catch-up 2", mutant) for mutant in (OldestRounds(2), FromTheOwnModel(2), TodaysRate(2))),
    *(("catch-up 2", rivals.FedPBCCatchUp(k)) for k in (1, 3)),
    ("catch-up 5", rivals.FedPBC()),
    ("fedau", OwnOutcome(4)),
    ("fedau", rivals.FedAU(5)),
    ("fedau", rivals.FedAU(0)),
    ("mifa", WithoutOneOverEta()),
    ("mifa", rivals.MIFA(True)),
    ("mifa waiting", rivals.MIFA()),
    ("fedvarp", rivals.FedVARP(1.0)),
    ("debiased", OwnRoundLeftOut()),
    ("debiased", EveryRoundCountsThatHears()),
    ("debiased", rivals.FedAU(0)),
    ("fedstale", StaleAmongTheActive(0.5, rivals.FedAU(4))),
    ("fedstale", RestsWhereNobodyIs(0.5, rivals.FedAU(4))),
    ("fedstale", rivals.FedStale(0.5, rivals.FedAU(5))),
    ("fedstale", rivals.FedStale(0.6, rivals.FedAU(4))),
    ("focus", OneMoreMove(0.3)),
    ("focus", MeanGradient(0.3)),
    ("focus", PushForgotten(0.3)),
    ("focus", rivals.FOCUS(0.4)),
    ("fedawe norm", EachEchoLimited(0.5, norm_limit=2)),
    ("fedawe norm", rivals.FedAWE(0.5)),
    ("scaffold", ControlOverActive(0.8)),
    ("scaffold", ControlNotItsChange(0.8)),
    ("scaffold", rivals.Scaffold(0.8, held_by_server=True)),
    ("scaffold around", rivals.Scaffold()),
    ("scaffold with epochs", rivals.Scaffold()),
    *(
        ("fedfade", mutant(cutoff=4))
        for mutant in (
            AgesByTime,
            NothingForgotten,
            RatioToTheAged,
            DeltaOfBefore,
            EmptyRoundsRest,
            UnreachedCount,
            NewcomersTell,
        )
    ),
    ("area", rivals.AREA(held_by_server=True)),
    ("area", rivals.MIFA()),
    ("fedfade", rivals.FedFade(cutoff=5)),
    ("fedfade with epochs", rivals.FedFade(cutoff=4)),
    ("fedfade", rivals.FedFade(mean=True)),
    ("fedfade", rivals.FedFade(cutoff=4, held_by_server=True)),
    ("fedfade", rivals.FedFade(1.0, cutoff=4)),
    ("fedfade around, mean", rivals.FedFade(mean=True)),
    ("fedfade by server", rivals.FedFade(0.8, held_by_server=True)),
    ("fedfade by server", rivals.FedFade(0.8, optimiser=rivals.Momentum())),
    ("fedfade that fades at once", rivals.FedFade(0.1)),
    ("fedavg_known", LastClientsProbability()),
    ("f3ast", ByPosition(2, 0.2)),
    ("f3ast", RatesOfBefore(2, 0.2)),
    ("mifa on clients", WithoutEpochs()),
    ("mifa on clients", rivals.MIFA()),
    ("fedvarp on clients", rivals.FedVARP(0.6)),
    ("f3ast", rivals.F3AST(3, 0.2)),
    ("f3ast", rivals.F3AST(2, 0.1)),
    ("fedprox", rivals.FedProx(0.7)),
    ("amplified", rivals.AmplifiedFedAvg(4, 1.7)),
    ("amplified", rivals.AmplifiedFedAvg(5, 1.6)),
    ("fedawe", EchoFromZero(0.5)),
    ("fedawe clip", rivals.FedAWE(clip=4)),
    ("fedavg momentum", rivals.FedAvg(rivals.Momentum(0.8))),
    ("fedavg adam", rivals.FedAvg(rivals.Yogi(0.1))),
    ("fedau yogi", rivals.FedAU(50, rivals.Adam(0.1, tau=0.1))),
    ("corrected full every_step", rivals.FedPBCCorrected("light")),
    ("corrected light every_step", MeanLength("light")),
    ("corrected light around", ResultOnly("light")),
    ("corrected full around", rivals.FedPBCCorrected("full")),
    ("corrected without epochs", rivals.FedPBCCorrected("full")),
    ("corrected full every_step", rivals.FedPBCCorrected("full", epoch_reset=False)),
]


@pytest.mark.every(2)
@pytest.mark.parametrize(("case", "mutant"), MUTANTS, ids=lambda v: v if isinstance(v, str) else type(v).__name__)
def test_a_wrong_rule_does_not_agree(folder: Any, case: str, mutant: rivals.Method) -> None:
    run, lost = simulated(folder, case, "all", **SCENARIOS["everything"])
    assert deviation(run, expected(mutant, "all", lost, **SCENARIOS["everything"])) > 1e-6
