"""The oracle of the rivals (``rivals.py``) against cases computed by hand, ``oracle.py`` and facts it must obey."""

from __future__ import annotations

import itertools

import numpy as np
import oracle
from rivals import (
    F3AST,
    FOCUS,
    MIFA,
    Adam,
    AmplifiedFedAvg,
    DebiasedFedAvg,
    FedAU,
    FedAvg,
    FedAvgAll,
    FedAvgKnown,
    FedAWE,
    FedFade,
    FedPBC,
    FedPBCCatchUp,
    FedPBCCorrected,
    FedProx,
    FedStale,
    FedVARP,
    Method,
    Momentum,
    Scaffold,
    Sgd,
    State,
    Yogi,
    simulate,
)


class Matrices:
    """F_i(x) = (x - u_i)' H_i (x - u_i) / 2 with random positive definite H_i, exact gradients."""

    def __init__(self, seed: int, m: int, d: int, identity: bool = False):
        rng = np.random.default_rng(seed)
        self.centers = rng.normal(size=(m, d)) * 3 + np.arange(m)[:, None]
        self.hessians = []
        for _ in range(m):
            a = rng.normal(size=(d, d))
            self.hessians.append(np.eye(d) if identity else a @ a.T / d + 0.2 * np.eye(d))
        self.solution = np.linalg.solve(
            sum(self.hessians), sum(h @ u for h, u in zip(self.hessians, self.centers, strict=True))
        )

    def gradient(self, i: int, x: np.ndarray, xi: object = None) -> np.ndarray:
        """H_i (x - u_i), plus the sample if there is one."""
        g = self.hessians[i] @ (x - self.centers[i])
        return g if xi is None else g + xi


def _push(i: int, x: np.ndarray, xi: object = None) -> np.ndarray:
    """The constant gradient -(i+1): with s = 1 and eta = 1, Delta_i = i + 1."""
    return np.full_like(x, -(i + 1.0))


def _ones(i: int, x: np.ndarray, xi: object = None) -> np.ndarray:
    return np.full_like(x, -1.0)


FADING_X = [1 / 2, 7 / 4, 15 / 4, 9 / 2]
LEARNING = [{0, 1}, {0}, {0, 1}]
TOLD = [[-4.0, -4.0], [-2.0, 0.0], [-1.0, -1.0]]
"""Gradients by round and client."""


def _told(i: int, x: np.ndarray, xi: tuple[int, int]) -> np.ndarray:
    t, _ = xi
    return np.full_like(x, TOLD[t][i])


def _links(sets: list[set[int]], m: int) -> np.ndarray:
    return np.array([[i in s for i in range(m)] for s in sets])


def _servers(states: list[State]) -> np.ndarray:
    return np.array([state.server for state in states])


def _gap(a: list[State], b: list[State], clients: bool = False) -> float:
    """The largest relative difference of the server models (and client models) of two runs."""
    scale = max(1.0, float(np.abs(_servers(a)).max()))
    gap = float(np.abs(_servers(a) - _servers(b)).max())
    if clients:
        for p, q in zip(a, b, strict=True):
            gap = max(gap, max(float(np.abs(x - y).max()) for x, y in zip(p.clients, q.clients, strict=True)))
    return gap / scale


def _expect(name: str, actual: object, wanted: object, tol: float = 1e-13) -> None:
    np.testing.assert_allclose(np.asarray(actual, float), np.asarray(wanted, float), rtol=0, atol=tol, err_msg=name)


def _trajectory(name: str, method: Method, gradient, sets, m, wanted, x0=0.0, eta=lambda t: 1.0, **kw) -> list[State]:
    """A scalar run with s = 1 against hand-computed server models (from x^1 on)."""
    states = simulate(method, gradient, _links(sets, m), np.array([x0]), steps=1, rate=eta, **kw)
    _expect(name, _servers(states)[1:, 0], wanted)
    return states


def test_against_existing_oracle() -> None:
    """FedAvg, FedAvg over all and FedPBC equal oracle.py, written by somebody else, on random links."""
    rng = np.random.default_rng(5)
    problem = Matrices(5, 6, 3)
    links = rng.random((40, 6)) < 0.3
    noise = rng.normal(size=(40, 6, 4, 3))
    pairs = ((FedAvg(), oracle.FedAvg()), (FedAvgAll(), oracle.FedAvgAll()), (FedPBC(), oracle.FedPBC()))
    for mine, theirs in pairs:
        worst = 0.0
        for compute in ("all", "active"):
            for minibatch in ("round", "step"):
                kw = {
                    "steps": 4,
                    "rate": oracle.inverse_sqrt(0.1, 10),
                    "compute": compute,
                    "minibatch": minibatch,
                    "cooldown": 7,
                }
                kw["sample"] = lambda t, i, k: noise[t, i, k]
                a = simulate(mine, problem.gradient, links, np.ones(3), **kw)
                b = oracle.run(theirs, problem.gradient, links, np.ones(3), **kw)
                worst = max(worst, _gap(a, b, clients=True))
        assert worst < 1e-13, worst


def test_catching_up_by_hand() -> None:
    """Centers 0 and 8, client 1 heard in round 3 and 4 only; eta 1/2, but 1/4 in round 3."""

    def gradient(i: int, x: np.ndarray, xi: object) -> np.ndarray:
        return x - 8 * i

    sets = [{0}, {0}, {0}, {0, 1}, {0, 1}]

    def rate(t: int) -> float:
        return 0.25 if t == 3 else 0.5

    # round 3: client 1 comes with 0 -> 2; 0 -> 4 -> 5; 0 -> 4 -> 6 -> 7 -> 7.25. Round 4: each goes halfway
    for k, third in {1: 1.0, 2: 2.5, 4: 3.625, 9: 3.625}.items():
        fourth = (third / 2 + (third + 8) / 2) / 2
        states = _trajectory(f"k = {k}", FedPBCCatchUp(k), gradient, sets, 2, [0, 0, 0, third, fourth], eta=rate)
    _expect("away", [s.clients[1][0] for s in states[1:4]], [4, 6, 7])
    lost = {3: {1}}
    _trajectory("lost", FedPBCCatchUp(9), gradient, sets, 2, [0, 0, 0, 1, 2.5], eta=rate, lost=lost)


def test_certain_links() -> None:
    """p = 1: the coincidences of paper-reading.md, exact gradients."""
    for identity in (True, False):
        m, d, rounds, s = 7, 4, 60, 5
        problem = Matrices(1, m, d, identity)
        links = np.ones((rounds, m), bool)
        prob = np.ones((rounds, m))
        label = "H = I" if identity else "random H"
        for schedule, eta in (("constant", lambda t: 0.05), ("decreasing", lambda t: 0.05 / (1 + t / 7) ** 0.5)):

            def go(method, eta=eta, problem=problem, links=links, prob=prob, d=d, s=s):
                return simulate(method, problem.gradient, links, np.ones(d), steps=s, rate=eta, prob=prob)

            base = go(FedAvg())
            group = {
                "all": FedAvgAll(), "known": FedAvgKnown(), "fedau": FedAU(), "fedau1": FedAU(1), "fedau50": FedAU(50),
                "f3ast": F3AST(m, 0.3), "prox0": FedProx(0.0), "amplified1": AmplifiedFedAvg(3, 1.0),
                "momentum0": FedAvg(Momentum(0.0)), "varp": FedVARP(), "awe": FedAWE(), "awe_clip": FedAWE(clip=3),
                "pbc": FedPBC(),
            }  # fmt: skip
            for wait in (False, True):
                group[f"mifa wait={wait}"] = MIFA(wait)
            for name, method in group.items():
                gap = _gap(base, go(method))
                assert gap < 1e-12, (label, schedule, name, gap)
            scaffold = go(Scaffold())
            assert _gap(scaffold, base) > (1e-3 if not identity else -1), "a control variate must do something"
            for form in ("full", "light"):
                corrected = go(FedPBCCorrected(form))
                gap = _gap(scaffold, corrected)
                for a, b in zip(scaffold, corrected, strict=True):
                    for i in range(m):
                        shift = a.extra["c"] - a.extra["c_i"][i]
                        gap = max(gap, float(np.abs(shift - b.extra["z"][i]).max()))
                assert gap < 1e-11, (label, form, gap)
                server_gap = _gap(scaffold, corrected)
                assert server_gap < 1e-12, (label, form, server_gap)


def test_corrections() -> None:
    """Facts about the z_i, the mean and the fixed point on random links."""
    m, d, rounds, s = 6, 3, 300, 4
    rng = np.random.default_rng(2)
    links = rng.random((rounds, m)) < np.array([0.1, 0.2, 0.3, 0.5, 0.7, 0.9])
    for identity in (True, False):
        problem = Matrices(3, m, d, identity)
        for form in ("full", "light"):
            for apply in ("every_step", "around"):
                for compute in ("all", "active"):
                    kw = {"steps": s, "rate": lambda t: 0.05 / (1 + t / 50), "compute": compute, "cooldown": 20}
                    states = simulate(FedPBCCorrected(form, apply), problem.gradient, links, np.ones(d), **kw)
                    worst = max(float(np.abs(sum(st.extra["z"])).max()) for st in states)
                    assert worst < 1e-11, (form, apply, compute, worst)
                    singles = 0
                    for t in range(rounds):
                        if links[t].sum() == 1:
                            singles += 1
                            for before, after in zip(states[t].extra["z"], states[t + 1].extra["z"], strict=True):
                                assert np.array_equal(before, after), "|A| = 1 leaves z unchanged"
                    assert singles > 5
                    if identity and compute == "all":
                        done = 1.0
                        ubar = problem.centers.mean(axis=0)
                        for t, state in enumerate(states):
                            wanted = ubar + done * (1 - ubar)
                            assert np.abs(state.mean - wanted).max() < 1e-11, (form, apply, t)
                            if t < rounds - 20:
                                done *= (1 - kw["rate"](t)) ** s

    problem = Matrices(4, m, d)
    long = rng.random((6000, m)) < np.array([0.3, 0.4, 0.5, 0.6, 0.7, 0.9])
    for form in ("full", "light"):
        for compute in ("all", "active"):
            states = simulate(
                FedPBCCorrected(form), problem.gradient, long, np.ones(d), steps=s, rate=lambda t: 0.05, compute=compute
            )
            error = float(np.abs(states[-1].server - problem.solution).max())
            assert error < 1e-9, (form, compute)
            assert states[-1].consensus_distance < 1e-18
    bias = []
    for eta in (0.04, 0.02, 0.01):
        states = simulate(
            FedPBCCorrected("full", "around"), problem.gradient, long, np.ones(d), steps=s, rate=lambda t, e=eta: e
        )
        bias.append(float(np.linalg.norm(states[-1].server - problem.solution)))
    for larger, smaller in itertools.pairwise(bias):
        assert 3 < larger / smaller < 6, bias

    def linear(i, x, xi=None):
        return problem.centers[i]

    pair = [
        simulate(FedPBCCorrected("full", how), linear, links, np.ones(d), steps=s, rate=lambda t: 0.01)
        for how in ("every_step", "around")
    ]
    assert _gap(*pair, clients=True) < 1e-12

    # two clients by hand: s = 2, eta = 1/2, constant gradients -1 and -2; A = {0}, {0, 1}, {0, 1}
    sets = [{0}, {0, 1}, {0, 1}]
    full = simulate(FedPBCCorrected("full"), _push, _links(sets, 2), np.zeros(1), steps=2, rate=lambda t: 0.5)
    # t=1: xhat = (2, 4), h = (1, 2), b = (1, 0): y = (-1, -2), mean -1.5, z = (-.5, .5), x = 3
    # t=2: xhat = 3 + (1.5, 1.5): y = (-1.5, -1.5), z stays
    _expect("corrected full by hand, x", _servers(full)[1:, 0], [1, 3, 4.5])
    _expect(
        "corrected full by hand, z", [np.ravel(st.extra["z"]) for st in full[1:]], [[0, 0], [-0.5, 0.5], [-0.5, 0.5]]
    )
    light = simulate(FedPBCCorrected("light"), _push, _links(sets, 2), np.zeros(1), steps=2, rate=lambda t: 0.5)
    # t=1: xbar = 3, h_A = 2: z = (-1/2, 1/2)
    _expect(
        "corrected light by hand, z", [np.ravel(st.extra["z"]) for st in light[1:]], [[0, 0], [-0.5, 0.5], [-0.5, 0.5]]
    )


def test_losses() -> None:
    """Lost state: the epochs restore sum z = 0; without them it stays wrong. SCAFFOLD's c against its c_i."""
    m, d, rounds = 5, 2, 400
    rng = np.random.default_rng(6)
    problem = Matrices(6, m, d)
    links = rng.random((rounds, m)) < 0.5
    lost = {100: {1, 3}, 101: {1}, 130: {0}}
    kw = {"steps": 3, "rate": lambda t: 0.05, "lost": lost}
    for form in ("full", "light"):
        states = simulate(FedPBCCorrected(form), problem.gradient, links, np.ones(d), **kw)
        broken = False  # a member of the current epoch lost its z_i and was not heard since: E rises only then
        for t, state in enumerate(states):
            if t > 0:
                before = states[t - 1].extra
                broken = broken or any(before["epoch"][i] == before["E"] for i in lost.get(t - 1, ()))
                broken = broken and state.extra["E"] == before["E"]
            if broken:
                continue
            current = [z for z, e in zip(state.extra["z"], state.extra["epoch"], strict=True) if e == state.extra["E"]]
            assert np.abs(sum(current, np.zeros(d))).max() < 1e-11
        assert set(states[-1].extra["epoch"]) == {states[-1].extra["E"]}
        assert states[-1].extra["E"] >= 2
        with_epochs = float(np.abs(states[-1].server - problem.solution).max())
        without = simulate(FedPBCCorrected(form, epoch_reset=False), problem.gradient, links, np.ones(d), **kw)
        leak = float(np.abs(sum(without[-1].extra["z"])).max())
        assert leak > 1e-2
        assert with_epochs < 1e-4
        assert np.abs(without[-1].server - problem.solution).max() > 0.1
    for held in (True, False):
        states = simulate(Scaffold(held_by_server=held), problem.gradient, links, np.ones(d), **kw)
        drift = float(np.abs(states[-1].extra["c"] - sum(states[-1].extra["c_i"]) / m).max())
        float(np.abs(states[-1].server - problem.solution).max())
        assert (drift < 1e-12) == held
    states = simulate(Scaffold(epochs=True), problem.gradient, links, np.ones(d), **kw)
    assert states[-1].extra["E"] >= 2
    assert np.abs(states[-1].extra["c"] - sum(states[-1].extra["c_i"]) / m).max() < 1e-12
    # a lost client that is not reached starts from x0; FedAWE starts anew as if just heard
    st = simulate(FedAvg(), _ones, _links([{0, 1}, {0}], 2), np.zeros(1), steps=1, rate=lambda t: 1.0, lost={1: {1}})
    _expect("FedAvg, lost and unreached: x_1 = x0 + Delta", st[2].clients[1], [1.0])
    _trajectory("FedAWE, lost", FedAWE(), _ones, [{0}, set(), {0, 1}], 2, [1, 1, 2], lost={2: {1}})


def test_by_hand() -> None:
    """Small cases computed by hand; s = 1 and eta = 1 unless said otherwise."""
    # FedAU, K = 3. Client 1 waits 2 (w 2), is cut off after 3 (w 2.5), waits 2 (w 7/3)
    sets = [{0}, {0, 1}, {0}, {0}, {0}, {0}, {0, 1}]
    states = _trajectory("FedAU K=3, x", FedAU(3), _ones, sets, 2, [0.5, 1.5, 2, 2.5, 3, 3.5, 5.25])
    _expect("FedAU K=3, w_1", [st.extra["w"][1] for st in states], [1, 1, 2, 2, 2, 2.5, 2.5, 7 / 3])
    _expect("FedAU K=3, S_1", [st.extra["S"][1] for st in states], [0, 1, 0, 1, 2, 0, 1, 0])
    # K = 0 (none): client 1 waits 2 (w 2), then 5 (w 3.5)
    states = _trajectory("FedAU no cutoff, x", FedAU(), _ones, sets, 2, [0.5, 1.5, 2, 2.5, 3, 3.5, 5])
    _expect("FedAU no cutoff, w_1", [st.extra["w"][1] for st in states][-2:], [2, 3.5])
    # empty and cool-down rounds count as waiting
    states = _trajectory(
        "FedAU, empty, cool-down, x", FedAU(), _ones, [set(), {0}, {0, 1}], 2, [0, 0.5, 0.5], cooldown=1
    )
    _expect("FedAU, empty, cool-down, w", states[-1].extra["w"], [1.5, 3])

    # F3AST, K = 1, beta = 1/2, Delta_i = i + 1; the weights are 1/(3 r_i) with the r of after the choice:
    # 1/(3 * 2/3) = 1/2, 1/(3 * 7/12) = 4/7, 1/2, none, 1/2; x = 1/2, 1/2 + 8/7 = 23/14, 30/14, 30/14, 37/14
    everyone = {0, 1, 2}
    sets = [everyone, everyone, {0, 1}, set(), {0}]
    states = _trajectory("F3AST, x", F3AST(1, 0.5), _push, sets, 3, [1 / 2, 23 / 14, 30 / 14, 30 / 14, 37 / 14])
    wanted = [[1 / 3] * 3, [2 / 3, 1 / 6, 1 / 6], [1 / 3, 7 / 12, 1 / 12], [2 / 3, 7 / 24, 1 / 24]]
    wanted += [[1 / 3, 7 / 48, 1 / 48], [2 / 3, 7 / 96, 1 / 96]]
    _expect("F3AST, r", [st.extra["r"] for st in states], wanted)
    assert [st.extra["chosen"] for st in states[1:]] == [[0], [1], [0], [], [0]]

    # MIFA, gradients x - u_i, u = (0, 4), eta = 1, 1/2, 1/4, A = {0}, {1}, empty
    def pull(i, x, xi=None):
        return x - (0.0, 4.0)[i]

    sets, halves = [{0}, {1}, set()], lambda t: 0.5**t
    states = _trajectory("MIFA, x", MIFA(), pull, sets, 2, [0.5, 1.125, 1.4375], x0=1.0, eta=halves)
    _expect("MIFA, G", [np.ravel(st.extra["G"]) for st in states[1:]], [[1, 0], [1, -3.5], [1, -3.5]])
    _trajectory("MIFA waiting, x", MIFA(True), pull, sets, 2, [1, 1.5, 1.75], x0=1.0, eta=halves)
    _trajectory("MIFA, cool-down", MIFA(), pull, sets, 2, [0.5, 1.125, 1.125], x0=1.0, eta=halves, cooldown=1)
    # s = 2, eta = 1/2, both active: Delta = -3/4 (x - u): G = 3/2 (x - u) = (1.5, -4.5), x = 1 + .25 * 3 = 1.75
    two = simulate(MIFA(), pull, _links([{0, 1}], 2), np.ones(1), steps=2, rate=lambda t: 0.5)
    _expect("MIFA, s = 2", [two[1].server[0], *np.ravel(two[1].extra["G"])], [1.75, 1.5, -4.5])

    states = _trajectory("FedVARP, x", FedVARP(), _push, [{0}, {1}, {0, 1}, set()], 2, [1, 3.5, 5, 5])
    _expect("FedVARP, ybar", [st.extra["ybar"][0] for st in states], [0, 0.5, 1.5, 1.5, 1.5])
    states = _trajectory("SCAFFOLD, x", Scaffold(), _push, [{0}, {1}, {0}, set()], 2, [1, 3.5, 5, 5])
    _expect("SCAFFOLD, c", [st.extra["c"][0] for st in states], [0, -0.5, -1.5, -1.5, -1.5])
    _expect("SCAFFOLD, c_i", np.ravel(states[-1].extra["c_i"]), [-1, -2])
    # t=1: i = 1 is heard but not reached: plain Delta = 2 from its own model, c and c_1 stay
    down = _links([{0}, {0}, {0}], 2)
    states = _trajectory(
        "SCAFFOLD, downlink fails, x", Scaffold(), _push, [{0}, {1}, {0}], 2, [1, 3, 3.5], downlink=down
    )
    _expect("SCAFFOLD, downlink fails, c", [st.extra["c"][0] for st in states], [0, -0.5, -0.5, -0.5])

    # FedFade, delta = 1/2, no cutoff, g = (-1, -2):
    # t=0: d_0 = -1, x = 1/2; c = (0 - 1/2)/2, u = (-1/2, 0). t=1: d_1 = -2, x = 1/2 + 1/4 + 1 = 7/4;
    # c = (-1/4 - 1)/2, u = (-1/4, -1), w_1 = 2. t=2: d = (-3/4, -1), x = 7/4 + 5/8 + (3/4 + 2)/2 = 15/4;
    # c = (-5/8 - 7/8)/2, u = (-1/2, -1). t=3, nobody: x = 15/4 + 3/4; c = -3/8, u = (-1/4, -1/2)
    states = _trajectory("FedFade, x", FedFade(0.5, cutoff=0), _push, [{0}, {1}, {0, 1}, set()], 2, FADING_X)
    _expect("FedFade, c", [st.extra["c"][0] for st in states], [0, -1 / 4, -5 / 8, -3 / 4, -3 / 8])
    _expect("FedFade, u", np.ravel(states[-1].extra["u"]), [-1 / 4, -1 / 2])
    # learnt, g of round t: t=0: d = (-4, -4), x = 4, c = -4. t=1: d_0 = -2 + 4, x = 4 + 4 - 1 = 7, c = -3; one sample
    # (a = 1, r = 1/2): no slope. t=2: d = (1, 3), x = 7 + 3 - 2 = 8; samples (1, 1/2), (1, 1/2), (2, 1/4): slope
    # log 1/2, delta = 1/8, c = (-3 + 2)/8, u = (-1/8, -1/8)
    states = _trajectory(
        "FedFade learning, x", FedFade(cutoff=0), _told, LEARNING, 2, [4, 7, 8], sample=lambda t, i, k: (t, i)
    )
    _expect("FedFade learning, delta", [st.extra["delta"] for st in states], [1, 1, 1, 1 / 8])
    _expect("FedFade learning, c", [st.extra["c"][0] for st in states], [0, -4, -3, -1 / 8])

    _trajectory("FedAWE, x", FedAWE(), _ones, [{0}, set(), {0, 1}], 2, [1, 1, 3])
    _trajectory("FedAWE clip 2, x", FedAWE(clip=2), _ones, [{0}, set(), {0, 1}], 2, [1, 1, 2.5])
    _trajectory("FedAWE eta_g 1/2, x", FedAWE(0.5), _ones, [{0}, set(), {0, 1}], 2, [0.5, 0.5, 1.5])
    states = _trajectory("FedAWE, cool-down", FedAWE(), _ones, [{0}, {0, 1}], 2, [1, 0.5], cooldown=1)
    _expect("FedAWE, cool-down, tau", states[-1].extra["tau"], [1, 1])
    states = _trajectory(
        "FedAWE, downlink fails", FedAWE(), _ones, [set(), {0}], 1, [0, 2], downlink=_links([set()] * 2, 1)
    )
    _expect("FedAWE, downlink fails: x_i^(t,s)", states[-1].clients[0], [1])

    _trajectory("amplified", AmplifiedFedAvg(2, 2.0), _ones, [{0}] * 2 + [set(), {0}], 1, [1, 4, 4, 6])
    _trajectory("amplified, empty end", AmplifiedFedAvg(2, 2.0), _ones, [{0}, set(), {0}], 1, [1, 2, 3])
    _trajectory("amplified, cool-down", AmplifiedFedAvg(2, 2.0), _ones, [{0}, {0}, {0}], 1, [1, 2, 2], cooldown=2)
    _trajectory("sgd", FedAvg(Sgd(0.5)), _ones, [{0}, set(), {0}], 1, [0.5, 0.5, 1])
    _trajectory("momentum", FedAvg(Momentum(0.5, 2.0)), _ones, [{0}, set(), {0}, {0}], 1, [2, 2, 5, 5], cooldown=1)
    # Adam, b1 = 1/2, b2 = 3/4, tau = 1: v = 1 stays, m = .5, .75: x = .25, .625; Delta = 1
    _trajectory("adam, u = 1", FedAvg(Adam(1.0, 0.5, 0.75, 1.0)), _ones, [{0}, set(), {0}], 1, [0.25, 0.25, 0.625])
    # u = 2: v = .75 + .25*4 = 1.75, m = 1
    _trajectory("adam, u = 2", FedAvg(Adam(1.0, 0.5, 0.75, 1.0)), _push, [{1}], 2, [1 / (1.75**0.5 + 1)])
    # Yogi, u = 2: v = 1 + .25*4 = 2; then v - 4 < 0 again: 3; m = 1, 1.5
    second = 1 / (2**0.5 + 1)
    wanted = [second, second + 1.5 / (3**0.5 + 1)]
    _trajectory("yogi", FedAvg(Yogi(1.0, 0.5, 0.75, 1.0)), _push, [{1}, {1}], 2, wanted)
    prob = np.array([[0.5, 0.0], [0.25, 0.5]])
    _trajectory("known p", FedAvgKnown(), _push, [{0, 1}, {0, 1}], 2, [1, 5], prob=prob)

    # FedProx, s = 2, eta = 1/2, mu = 1, gradient -1: 0 -> .5 -> .5 + .5 (1 - .5) = .75
    prox = simulate(FedProx(1.0), _ones, _links([{0}], 1), np.zeros(1), steps=2, rate=lambda t: 0.5)
    _expect("FedProx", prox[1].server, [0.75])
    # broadcast and downlink: i = 1 is heard from its own model (2 after t=0), Delta = 2; server 1 -> 3
    states = _trajectory(
        "FedAvg, downlink fails", FedAvg(), _push, [{0}, {1}], 2, [1, 3], downlink=_links([{0}, {0}], 2)
    )
    _expect("FedAvg, downlink fails, clients", np.ravel(states[-1].clients), [2, 4])
    states = _trajectory("FedPBC, downlink fails", FedPBC(), _push, [{0, 1}], 2, [1.5], downlink=_links([{0}], 2))
    _expect("FedPBC, downlink fails, clients", np.ravel(states[-1].clients), [1.5, 2])


def test_poison() -> None:
    """A diverged client that is never heard changes nothing at the server."""
    m = 3

    def bad(i, x, xi=None):
        return np.full_like(x, np.nan) if i == 2 else _push(i, x)

    links = _links([{0}, {0, 1}, set(), {1}], m)
    prob = np.full((4, m), 0.5)
    rules = [FedAvg(), FedAvgAll(), FedAvgKnown(), FedAU(), F3AST(2), FedProx(0.1), AmplifiedFedAvg(2, 2.0), MIFA(),
             FedVARP(), Scaffold(), FedFade(), FedAWE(), FedAWE(norm_limit=0.1), FedPBC(), DebiasedFedAvg(), FOCUS(),
             FedStale(0.5, FedAU()), FedStale(0.5, FedAvg()),
             FedPBCCorrected("full"), FedPBCCorrected("light")]  # fmt: skip
    for method in rules:
        kw = {"steps": 2, "rate": lambda t: 0.1, "prob": prob}
        a = simulate(method, bad, links, np.zeros(2), **kw)
        b = simulate(method, _push, links, np.zeros(2), **kw)
        assert np.array_equal(_servers(a), _servers(b)), type(method).__name__
