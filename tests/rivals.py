"""FedPBC and its rivals in plain NumPy float64, to compare the simulator with, round by round.

Written from the project's table of update rules, not from the code of ``fedpbc``; nothing of the package is used
here. Loops over rounds, clients and local steps: x^t is the server's model, x_i^t that of client i, A^t the clients
whose uplink works in round t, s local steps, step size eta_t, Delta_i = x_i^(t,s) - x_i^(t,0). A method object holds
settings only; what it remembers from round to round is the dict ``State.extra``. ``test_rivals_oracle.py``
checks it by hand-computed cases.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import oracle
from oracle import Gradient, Sampler


@dataclass
class State(oracle.State):
    """The models after some rounds, and what the method remembers."""

    extra: dict = field(default_factory=dict)


@dataclass
class Round:
    """What is given from outside in round t."""

    t: int
    m: int  # clients
    eta: float  # eta_t
    steps: int  # s
    active: list[int]  # A, ascending: whose report the server gets
    reached: set[int]  # whom the downlink reaches
    computing: set[int]  # who does local steps
    training: bool  # False in the cool-down: nobody does local steps
    prob: np.ndarray | None  # p_i^t
    grad: Callable[[int, int, np.ndarray], np.ndarray]  # (client i, local step k, x) -> gradient on that step's sample


def simulate(
    method: Method,
    gradient: Gradient,
    links: np.ndarray,
    x0: np.ndarray,
    *,
    steps: int,
    rate: Callable[[int], float],
    compute: str = "all",
    sample: Sampler = lambda t, i, k: None,
    minibatch: str = "round",
    cooldown: int = 0,
    prob: np.ndarray | None = None,
    downlink: np.ndarray | None = None,
    lost: dict[int, set[int]] | None = None,
) -> list[State]:
    """The states at t = 0, ..., T on the uplinks ``links[t, i]`` (True: i is in A^t).

    downlink[t, i]: the server reaches client i in round t (default: the links). lost[t]: the clients that lose all
    they keep at the START of round t, so states[t] is still the state before the loss. prob[t, i]: p_i^t, for the
    method that knows it. compute, minibatch, cooldown: as in ``oracle.run``.
    """
    links = np.asarray(links, bool)
    downlink = links if downlink is None else np.asarray(downlink, bool)
    rounds, m = links.shape
    x0 = np.array(x0, np.float64)
    server, clients, memory = x0, [x0] * m, method.memory(m, x0)
    states = [State(server, list(clients), copy.deepcopy(memory))]
    for t in range(rounds):
        for i in sorted((lost or {}).get(t, ())):
            clients[i] = x0
            method.lose(i, t, x0, memory)

        active = [i for i in range(m) if links[t, i]]
        training = t < rounds - cooldown
        computing = set()
        if training:
            computing = set(active) if compute == "active" else set(range(m))

        def grad(i: int, k: int, x: np.ndarray, t: int = t) -> np.ndarray:
            return gradient(i, x, sample(t, i, k if minibatch == "step" else 0))

        reached = {i for i in range(m) if downlink[t, i]}
        p = None if prob is None else np.asarray(prob, np.float64)[t]
        r = Round(t, m, rate(t), steps, active, reached, computing, training, p, grad)
        server, clients = method.round(r, server, list(clients), memory)
        states.append(State(server, list(clients), copy.deepcopy(memory)))
    return states


class Method:
    """What ``simulate`` asks of a method."""

    def memory(self, m: int, x0: np.ndarray) -> dict:
        """What the method remembers besides the models, before round 0."""
        return {}

    def lose(self, i: int, t: int, x0: np.ndarray, memory: dict) -> None:
        """Client i loses its memories (its model is already x0)."""

    def round(self, r: Round, server: np.ndarray, clients: list, memory: dict) -> tuple[np.ndarray, list]:
        """x^(t+1) and all x_i^(t+1); changes the entries of ``memory``."""
        raise NotImplementedError


# --- methods that broadcast x^t at the start of the round ------------------------------------------------------------


class Broadcast(Method):
    """Client i starts from x^t if the downlink reaches it, else from its own x_i^t; it keeps what its steps give."""

    def step(self, r: Round, i: int, k: int, x: np.ndarray, start: np.ndarray, memory: dict) -> np.ndarray:
        """One local step: x - eta g."""
        return x - r.eta * r.grad(i, k, x)

    def aggregate(self, r: Round, server: np.ndarray, delta: list, memory: dict) -> np.ndarray:
        """x^(t+1) from the Delta_i (of which only those of i in A may be looked at)."""
        raise NotImplementedError

    def round(self, r: Round, server: np.ndarray, clients: list, memory: dict) -> tuple[np.ndarray, list]:
        """Local steps of every computing client, then the server."""
        after, delta = [], []
        for i in range(r.m):
            start = server if i in r.reached else clients[i]
            x = start
            if i in r.computing:
                for k in range(r.steps):
                    x = self.step(r, i, k, x, start, memory)
            after.append(x)
            delta.append(x - start)
        return self.aggregate(r, server, delta, memory), after


class Sgd:
    """Server optimiser: x + lr u."""

    def __init__(self, lr: float = 1.0):
        self.lr = lr

    def memory(self, x0: np.ndarray) -> dict:
        """Nothing."""
        return {}

    def move(self, x: np.ndarray, u: np.ndarray, memory: dict) -> np.ndarray:
        """The new server model."""
        return x + self.lr * u


class Momentum(Sgd):
    """FedAvgM: v = beta v + u; x + lr v; v starts at 0."""

    def __init__(self, beta: float = 0.9, lr: float = 1.0):
        self.beta, self.lr = beta, lr

    def memory(self, x0: np.ndarray) -> dict:
        """The velocity."""
        return {"opt_v": np.zeros_like(x0)}

    def move(self, x: np.ndarray, u: np.ndarray, memory: dict) -> np.ndarray:
        """The new server model."""
        memory["opt_v"] = self.beta * memory["opt_v"] + u
        return x + self.lr * memory["opt_v"]


class Adam(Sgd):
    """FedAdam (Reddi et al. 2020): m = b1 m + (1-b1) u; v = b2 v + (1-b2) u^2; x + lr m / (sqrt(v) + tau).

    m starts at 0, v at tau^2; no bias correction.
    """

    def __init__(self, lr: float = 0.1, b1: float = 0.9, b2: float = 0.99, tau: float = 1e-3):
        self.lr, self.b1, self.b2, self.tau = lr, b1, b2, tau

    def memory(self, x0: np.ndarray) -> dict:
        """First and second moment."""
        return {"opt_m": np.zeros_like(x0), "opt_v": np.full_like(x0, self.tau**2)}

    def second(self, v: np.ndarray, u: np.ndarray) -> np.ndarray:
        """The new v."""
        return self.b2 * v + (1 - self.b2) * u**2

    def move(self, x: np.ndarray, u: np.ndarray, memory: dict) -> np.ndarray:
        """The new server model."""
        memory["opt_m"] = self.b1 * memory["opt_m"] + (1 - self.b1) * u
        memory["opt_v"] = self.second(memory["opt_v"], u)
        return x + self.lr * memory["opt_m"] / (np.sqrt(memory["opt_v"]) + self.tau)


class Yogi(Adam):
    """FedYogi: as FedAdam, but v = v - (1-b2) u^2 sign(v - u^2)."""

    def second(self, v: np.ndarray, u: np.ndarray) -> np.ndarray:
        """The new v."""
        return v - (1 - self.b2) * u**2 * np.sign(v - u**2)


class Weighting(Broadcast):
    """u = sum over A of w_i Delta_i, then the server optimiser (default x + u).

    Empty A or cool-down: the server and its optimiser stay; the weighting rule's own state is updated in every round.
    """

    def __init__(self, optimiser: Sgd | None = None):
        self.optimiser = optimiser or Sgd(1.0)

    def rule_memory(self, m: int) -> dict:
        """What the weighting rule remembers."""
        return {}

    def memory(self, m: int, x0: np.ndarray) -> dict:
        """The rule's and the optimiser's memories."""
        return {**self.rule_memory(m), **self.optimiser.memory(x0)}

    def weights(self, r: Round, memory: dict) -> dict[int, float]:
        """w_i for the i in A that take part (absent from the dict: weight 0)."""
        raise NotImplementedError

    def update_rule(self, r: Round, memory: dict) -> None:
        """The rule's state after round t."""

    def aggregate(self, r: Round, server: np.ndarray, delta: list, memory: dict) -> np.ndarray:
        """Weights, the step, then what the rule learns from the round afterwards."""
        weights = self.weights(r, memory)
        if r.active and r.training:
            u = np.zeros_like(server)
            for i in r.active:
                if i in weights:
                    u = u + weights[i] * delta[i]
            server = self.optimiser.move(server, u, memory)
        self.update_rule(r, memory)
        return server


class FedAvg(Weighting):
    """FedAvg over the active: w_i = 1/|A|."""

    def weights(self, r: Round, memory: dict) -> dict[int, float]:
        """1/|A|."""
        return {i: 1 / len(r.active) for i in r.active}


class FedAvgAll(Weighting):
    """FedAvg over all, absent clients count as zero updates: w_i = 1/m."""

    def weights(self, r: Round, memory: dict) -> dict[int, float]:
        """1/m."""
        return dict.fromkeys(r.active, 1 / r.m)


class FedAvgKnown(Weighting):
    """FedAvg with known probabilities: w_i = 1/(m p_i^t), and 0 where p_i^t = 0."""

    def weights(self, r: Round, memory: dict) -> dict[int, float]:
        """1/(m p_i^t)."""
        return {i: 1 / (r.m * r.prob[i]) for i in r.active if r.prob[i] > 0}


class FedAU(Weighting):
    """FedAU: x+ = x + 1/m sum_A w_i Delta_i with the w_i from before the round (1 at the start); cutoff K, 0 = none.

    Then, in every round: S_i += 1; if i in A or S_i = K: w_i <- S_i if M_i = 0 else (M_i w_i + S_i)/(M_i + 1);
    M_i += 1; S_i = 0.
    """

    def __init__(self, cutoff: int = 0, optimiser: Sgd | None = None):
        super().__init__(optimiser)
        self.cutoff = cutoff

    def rule_memory(self, m: int) -> dict:
        """S_i (rounds waited), M_i (intervals seen), w_i."""
        return {"S": [0] * m, "M": [0] * m, "w": [1.0] * m}

    def weights(self, r: Round, memory: dict) -> dict[int, float]:
        """w_i/m."""
        return {i: memory["w"][i] / r.m for i in r.active}

    def update_rule(self, r: Round, memory: dict) -> None:
        """Count the round; close the interval of who was heard or has waited K rounds."""
        waited, count, w = memory["S"], memory["M"], memory["w"]
        for i in range(r.m):
            waited[i] += 1
            if i in r.active or (self.cutoff > 0 and waited[i] == self.cutoff):
                if count[i] == 0:
                    w[i] = float(waited[i])
                else:
                    w[i] = (count[i] * w[i] + waited[i]) / (count[i] + 1)
                count[i] += 1
                waited[i] = 0


class DebiasedFedAvg(Weighting):
    """Debiased FedAvg: n_i = rounds so far in which i was heard, this one included; f_i = n_i/(t + 1); w_i = 1/(m f_i).

    Every round counts, empty ones and those of the cool-down too.
    """

    def rule_memory(self, m: int) -> dict:
        """Who was heard in every round so far."""
        return {"history": []}

    def weights(self, r: Round, memory: dict) -> dict[int, float]:
        """One over m times the share of rounds in which i was heard."""
        rounds = [*memory["history"], r.active]
        return {i: 1 / (r.m * (sum(i in heard for heard in rounds) / len(rounds))) for i in r.active}

    def update_rule(self, r: Round, memory: dict) -> None:
        """One more round."""
        memory["history"].append(list(r.active))


class F3AST(Weighting):
    """F3AST: S = up to K clients of A with the smallest r_i. First r <- (1-beta) r + beta 1_S, for all clients and in
    every round; then w_i = 1/(m r_i) for i in S with the new r, else 0.

    Ties: the smaller (i - t) mod m. r_i starts at min(1, K/m).
    """

    def __init__(self, slots: int = 10, beta: float = 0.01, optimiser: Sgd | None = None):
        super().__init__(optimiser)
        self.slots, self.beta = slots, beta

    def rule_memory(self, m: int) -> dict:
        """The rates r_i and the last round's choice S."""
        return {"r": [min(1.0, self.slots / m)] * m, "chosen": []}

    def weights(self, r: Round, memory: dict) -> dict[int, float]:
        """The choice by the old r, the new r, and 1/(m r_i) for the chosen."""
        rates = memory["r"]
        ranked = sorted(r.active, key=lambda i: (rates[i], (i - r.t) % r.m))
        memory["chosen"] = sorted(ranked[: self.slots])
        for i in range(r.m):
            selected = 1.0 if i in memory["chosen"] else 0.0
            rates[i] = (1 - self.beta) * rates[i] + self.beta * selected
        return {i: 1 / (r.m * rates[i]) for i in memory["chosen"]}


class FedProx(FedAvg):
    """FedProx: FedAvg's weights; local step x -= eta (g + mu (x - x_start)), x_start = where i started the round."""

    def __init__(self, mu: float, optimiser: Sgd | None = None):
        super().__init__(optimiser)
        self.mu = mu

    def step(self, r: Round, i: int, k: int, x: np.ndarray, start: np.ndarray, memory: dict) -> np.ndarray:
        """One proximal step."""
        return x - r.eta * (r.grad(i, k, x) + self.mu * (x - start))


class AmplifiedFedAvg(FedAvg):
    """Amplified FedAvg: FedAvg; when (t+1) is a multiple of P: x <- x_t0 + gamma (x - x_t0), then x_t0 <- x.

    x_t0 is the model at the start of the window. Windows close by round number, also in empty and cool-down rounds.
    """

    def __init__(self, window: int, gamma: float, optimiser: Sgd | None = None):
        super().__init__(optimiser)
        self.window, self.gamma = window, gamma

    def memory(self, m: int, x0: np.ndarray) -> dict:
        """x_t0."""
        return {**super().memory(m, x0), "x_t0": x0}

    def aggregate(self, r: Round, server: np.ndarray, delta: list, memory: dict) -> np.ndarray:
        """FedAvg's round, and the amplification at the end of a window."""
        server = super().aggregate(r, server, delta, memory)
        if (r.t + 1) % self.window == 0:
            server = memory["x_t0"] + self.gamma * (server - memory["x_t0"])
            memory["x_t0"] = server
        return server


class MIFA(Broadcast):
    """MIFA: i in A: G_i <- -Delta_i/eta_t; then x+ = x - eta_t/m sum over ALL G_i, in empty rounds too.

    G_i = 0 at the start. wait: the server stays until every client has been heard at least once, and moves in the
    round in which the last one is heard. Cool-down: table and server stay. The table is the server's.
    """

    def __init__(self, wait: bool = False):
        self.wait = wait

    def memory(self, m: int, x0: np.ndarray) -> dict:
        """The table and who was heard."""
        return {"G": [np.zeros_like(x0) for _ in range(m)], "heard": set()}

    def aggregate(self, r: Round, server: np.ndarray, delta: list, memory: dict) -> np.ndarray:
        """Fill the table, then the step."""
        if not r.training:
            return server
        for i in r.active:
            memory["G"][i] = -delta[i] / r.eta
            memory["heard"].add(i)
        if self.wait and len(memory["heard"]) < r.m:
            return server
        total = np.zeros_like(server)
        for i in range(r.m):
            total = total + memory["G"][i]
        return server - r.eta / r.m * total


class FedVARP(Broadcast):
    """FedVARP: x+ = x + eta_g (ybar + 1/|A| sum_A (Delta_i - y_i)); then y_i <- Delta_i for i in A, ybar <- mean y.

    y_i = 0 at the start. Empty A or cool-down: nothing changes. The table is the server's.
    """

    def __init__(self, eta_g: float = 1.0):
        self.eta_g = eta_g

    def memory(self, m: int, x0: np.ndarray) -> dict:
        """The table and its mean over all m clients."""
        return {"y": [np.zeros_like(x0) for _ in range(m)], "ybar": np.zeros_like(x0)}

    def aggregate(self, r: Round, server: np.ndarray, delta: list, memory: dict) -> np.ndarray:
        """The step with the old table, then the new table."""
        if not (r.active and r.training):
            return server
        change = np.zeros_like(server)
        for i in r.active:
            change = change + (delta[i] - memory["y"][i])
        server = server + self.eta_g * (memory["ybar"] + change / len(r.active))
        for i in r.active:
            memory["y"][i] = delta[i]
        total = np.zeros_like(server)
        for i in range(r.m):
            total = total + memory["y"][i]
        memory["ybar"] = total / r.m
        return server


class FedStale(Broadcast):
    """FedStale: v = (1 - beta) fresh + beta (hbar + sum_A w_i (Delta_i - h_i)), fresh = sum_A w_i Delta_i, hbar = mean
    of all h_i; x+ = x + eta_g v; then h_i <- Delta_i in A. h_i = 0 at the start. w_i: those of a rule that weighs.

    Empty A: x + eta_g beta hbar, unless the w_i are 1/|A|: then x. The rule sees every round. Cool-down: x, h_i stay.
    """

    def __init__(self, beta: float, rule: Weighting, eta_g: float = 1.0):
        self.beta, self.rule, self.eta_g = beta, rule, eta_g

    def memory(self, m: int, x0: np.ndarray) -> dict:
        """The table and what the rule remembers."""
        return {"h": [np.zeros_like(x0)] * m, **self.rule.rule_memory(m)}

    def aggregate(self, r: Round, server: np.ndarray, delta: list, memory: dict) -> np.ndarray:
        """The step with the old table, then the new table."""
        weights = self.rule.weights(r, memory)
        if r.training and (r.active or not isinstance(self.rule, FedAvg)):
            fresh, change = np.zeros_like(server), np.zeros_like(server)
            for i, w in weights.items():
                fresh = fresh + w * delta[i]
                change = change + w * (delta[i] - memory["h"][i])
            varied = sum(memory["h"]) / r.m + change
            server = server + self.eta_g * ((1 - self.beta) * fresh + self.beta * varied)
            for i in r.active:
                memory["h"][i] = delta[i]
        self.rule.update_rule(r, memory)
        return server


class AREA(Broadcast):
    """AREA: client keeps its last result y_i (x0 at the start); i in A: z_i = s plain steps; then
    x+ = x + 1/m sum_A (z_i - y_i), y_i <- z_i: x is the mean of all y_i. Empty A or cool-down: nothing.

    Lost: y_i = x0, and x stays; held_by_server: a loss takes x_i only.
    """

    def __init__(self, held_by_server: bool = False):
        self.held_by_server = held_by_server

    def memory(self, m: int, x0: np.ndarray) -> dict:
        """y_i, and where this round's steps began."""
        return {"y": [x0] * m, "start": {}}

    def lose(self, i: int, t: int, x0: np.ndarray, memory: dict) -> None:
        """y_i is gone if the client keeps it."""
        if not self.held_by_server:
            memory["y"][i] = x0

    def step(self, r: Round, i: int, k: int, x: np.ndarray, start: np.ndarray, memory: dict) -> np.ndarray:
        """A plain step."""
        memory["start"][i] = start
        return super().step(r, i, k, x, start, memory)

    def aggregate(self, r: Round, server: np.ndarray, delta: list, memory: dict) -> np.ndarray:
        """Everybody in A replaces its share of the mean."""
        if r.training:
            for i in r.active:
                z = memory["start"][i] + delta[i]
                server = server + (z - memory["y"][i]) / r.m
                memory["y"][i] = z
        return server


class Differences(Broadcast):
    """Client i keeps h_i (0), what of it was last counted, and sends u_i - h_i; the server keeps hbar (0) alone.

    i in A: hbar += (u_i - h_i)/m, h_i <- u_i; so hbar = (1/m) sum of h_i. Epochs: server's E and clients' e_i start
    at 0. Lost: h_i = 0, e_i = -1. Every i that the broadcast reaches with 0 <= e_i != E: h_i = 0, e_i = E. Only those
    of A with e_i = E count. If some i of A has e_i = -1: after the round's step E += 1 (once) and hbar = 0, and all of
    A have h_i = 0 and e_i = the new E. Who is in A with an older epoch and was not reached learns E: h_i = 0, e_i = E.
    """

    def memory(self, m: int, x0: np.ndarray) -> dict:
        """h_i, e_i, E and hbar; who was heard in this epoch."""
        return {"h": [np.zeros_like(x0)] * m, "epoch": [0] * m, "E": 0, "hbar": np.zeros_like(x0), "heard": set()}

    def lose(self, i: int, t: int, x0: np.ndarray, memory: dict) -> None:
        """h_i is gone."""
        memory["h"][i], memory["epoch"][i] = np.zeros_like(x0), -1

    def exchange(self, r: Round, latest: dict[int, np.ndarray], memory: dict) -> tuple[dict, np.ndarray, set]:
        """(u_i - h_i of those who count, hbar and who was heard with this round in the old epoch)."""
        h, epoch = memory["h"], memory["epoch"]
        zero = np.zeros_like(memory["hbar"])
        for i in r.reached:
            if epoch[i] != -1 and epoch[i] != memory["E"]:
                h[i], epoch[i] = zero, memory["E"]
        counted = {i: latest[i] - h[i] for i in r.active if epoch[i] == memory["E"]}
        hbar = memory["hbar"]
        for change in counted.values():
            hbar = hbar + change / r.m
        heard = memory["heard"] | set(counted)
        if any(epoch[i] == -1 for i in r.active):
            memory["E"] += 1
            memory["hbar"], memory["heard"] = zero, set()
            for i in r.active:
                h[i] = zero
        else:
            memory["hbar"], memory["heard"] = hbar, heard
            for i in r.active:
                h[i] = latest[i] if i in counted else zero
        for i in r.active:
            epoch[i] = memory["E"]
        return counted, hbar, heard


class MIFADifferences(Differences):
    """MIFA with u_i = -Delta_i/eta_t: x+ = x - eta_t hbar, hbar with this round's differences, before a new epoch."""

    def __init__(self, wait: bool = False):
        self.wait = wait

    def aggregate(self, r: Round, server: np.ndarray, delta: list, memory: dict) -> np.ndarray:
        """The exchange, then the step."""
        if not r.training:
            return server
        _, hbar, heard = self.exchange(r, {i: -delta[i] / r.eta for i in r.active}, memory)
        return server if self.wait and len(heard) < r.m else server - r.eta * hbar


class FedVARPDifferences(Differences):
    """FedVARP with u_i = Delta_i: x+ = x + eta_g (hbar + mean of the differences that count), hbar of before."""

    def __init__(self, eta_g: float = 1.0):
        self.eta_g = eta_g

    def aggregate(self, r: Round, server: np.ndarray, delta: list, memory: dict) -> np.ndarray:
        """The step with the old mean; nobody who counts: the server stays."""
        if not r.training:
            return server
        before = memory["hbar"]
        counted, _, _ = self.exchange(r, {i: delta[i] for i in r.active}, memory)
        if not counted:
            return server
        return server + self.eta_g * (before + sum(counted.values()) / len(counted))


class FOCUS(Differences):
    """FOCUS: client keeps g_i (0 at the start), its last gradient. i in A: z = x, u = 0; s times: z -= eta u, g =
    gradient at z, u += g - g_i, g_i <- g. Server: y += sum over A of u (y = 0 at the start), x+ = x - eta_g eta y.

    Nobody in A or cool-down: x and y stay. Client models: what was received last. Who is not reached begins there.
    Epochs as in the other methods of differences, with g_i = h_i; y = 0 when one begins. Whom the broadcast reaches
    with an old epoch has g_i = 0 before its steps.
    """

    def __init__(self, eta_g: float = 1.0):
        self.eta_g = eta_g

    def memory(self, m: int, x0: np.ndarray) -> dict:
        """y, and what the local steps of a round make: u and the gradient seen last."""
        return {**super().memory(m, x0), "y": np.zeros_like(x0), "u": {}, "seen": {}}

    def round(self, r: Round, server: np.ndarray, clients: list, memory: dict) -> tuple[np.ndarray, list]:
        """Clients keep what they received and not where their steps led."""
        for i in r.reached:
            if memory["epoch"][i] not in (-1, memory["E"]):
                memory["h"][i], memory["epoch"][i] = np.zeros_like(server), memory["E"]
        after, _ = super().round(r, server, clients, memory)
        return after, [server if i in r.reached else clients[i] for i in range(r.m)]

    def step(self, r: Round, i: int, k: int, x: np.ndarray, start: np.ndarray, memory: dict) -> np.ndarray:
        """One pass: move along u, then look how the gradient changed."""
        if k == 0:
            memory["u"][i], memory["seen"][i] = np.zeros_like(x), memory["h"][i]
        x = x - r.eta * memory["u"][i]
        g = r.grad(i, k, x)
        memory["u"][i] = memory["u"][i] + g - memory["seen"][i]
        memory["seen"][i] = g
        return x

    def aggregate(self, r: Round, server: np.ndarray, delta: list, memory: dict) -> np.ndarray:
        """y with what was pushed, then the step."""
        if not (r.active and r.training):
            return server
        epoch = memory["E"]
        counted, _, _ = self.exchange(r, {i: memory["seen"][i] for i in r.active}, memory)
        y = memory["y"]
        for i in counted:
            y = y + memory["u"][i]
        memory["y"] = y if memory["E"] == epoch else np.zeros_like(y)
        return server - self.eta_g * r.eta * y


class Scaffold(Broadcast):
    """SCAFFOLD, option II: local x -= eta (g - c_i + c); c_i+ = c_i - c - Delta_i/(s eta);
    x+ = x + eta_g/|A| sum_A Delta_i; c+ = c + 1/m sum_A (c_i+ - c_i).

    Who is not reached has no c: plain local steps, and if it is in A its Delta_i counts in x but its c_i and c do not
    change for it. Empty A or cool-down: nothing changes. c_i is kept by the client, so a loss makes it 0 and the
    server does not know (c stays); held_by_server: it is kept by the server and sent along, a loss takes x_i only.

    around: plain training from x^t - eta (s-1)/2 (c - c_i), afterwards minus eta (s+1)/2 (c - c_i).

    epochs: E and e_i start at 0. Lost: e_i = -1. Before the steps every reached i with 0 <= e_i != E: c_i = 0, e_i = E.
    If some i in A that was reached has e_i = -1: c = 0, E += 1 (once), and those of A that were reached have c_i = 0
    and e_i = the new E instead of what the round gives.
    """

    def __init__(self, eta_g: float = 1.0, held_by_server: bool = False, around: bool = False, epochs: bool = False):
        self.eta_g, self.held_by_server, self.around, self.epochs = eta_g, held_by_server, around, epochs

    def memory(self, m: int, x0: np.ndarray) -> dict:
        """c and the c_i, all 0; the epochs."""
        return {"c": np.zeros_like(x0), "c_i": [np.zeros_like(x0) for _ in range(m)], "epoch": [0] * m, "E": 0}

    def lose(self, i: int, t: int, x0: np.ndarray, memory: dict) -> None:
        """c_i := 0 if the client keeps it."""
        if not self.held_by_server:
            memory["c_i"][i] = np.zeros_like(x0)
            if self.epochs:
                memory["epoch"][i] = -1

    def round(self, r: Round, server: np.ndarray, clients: list, memory: dict) -> tuple[np.ndarray, list]:
        """Who is reached learns of the epoch before its steps."""
        for i in r.reached:
            if memory["epoch"][i] not in (-1, memory["E"]):
                memory["c_i"][i], memory["epoch"][i] = np.zeros_like(server), memory["E"]
        return super().round(r, server, clients, memory)

    def step(self, r: Round, i: int, k: int, x: np.ndarray, start: np.ndarray, memory: dict) -> np.ndarray:
        """One step, shifted by c - c_i where the server reached i."""
        shift = memory["c"] - memory["c_i"][i] if i in r.reached else np.zeros_like(x)
        if not self.around:
            return x - r.eta * (r.grad(i, k, x) + shift)
        if k == 0:
            x = x - r.eta * (r.steps - 1) / 2 * shift
        x = x - r.eta * r.grad(i, k, x)
        return x - r.eta * (r.steps + 1) / 2 * shift if k == r.steps - 1 else x

    def aggregate(self, r: Round, server: np.ndarray, delta: list, memory: dict) -> np.ndarray:
        """x with 1/|A|, c with 1/m and the CHANGE of the c_i."""
        if not (r.active and r.training):
            return server
        total = np.zeros_like(server)
        for i in r.active:
            total = total + delta[i]
        c, change = memory["c"], np.zeros_like(server)
        for i in r.active:
            if i in r.reached:
                new = memory["c_i"][i] - c - delta[i] / (r.steps * r.eta)
                change = change + (new - memory["c_i"][i])
                memory["c_i"][i] = new
        memory["c"] = c + change / r.m
        heard = [i for i in r.active if i in r.reached]
        if any(memory["epoch"][i] == -1 for i in heard):
            memory["c"], memory["E"] = np.zeros_like(server), memory["E"] + 1
            for i in heard:
                memory["c_i"][i], memory["epoch"][i] = np.zeros_like(server), memory["E"]
        return server + self.eta_g / len(r.active) * total


class FedFade(FedAU):
    """FedFade (ours): server x, c; client i has c_i, of which u_i = (product of the deltas since its last contact) c_i
    is left. Local x -= eta (g + c - u_i); g_i = mean of its own s gradients g; d_i = g_i - u_i. C = those of A that
    were reached, w_i = FedAU's mean interval with C in the place of A, used first.

    intervals: x+ = x - eta s (c + 1/m sum_C w_i d_i), with an empty C too. mean: x+ = x + 1/|A| sum_A Delta_i; A empty:
    x stays. Either step is the server optimiser's u. Then c+ = delta (c + 1/m sum_C d_i); u_i = delta g_i, c_i = g_i in
    C; all other u_i = delta u_i. So c is the mean of all u_i. u_i = c_i = 0 at the start. Cool-down: only the
    intervals go on. Who is not reached takes plain steps.

    learnt: for i in C that has a c_i != 0 of a rounds ago, r = <g_i, c_i>/|c_i|^2 clipped to [.02, 1] is a sample
    (a, log r) of round t, with the weight .98^(now - t); the slope of the straight line of least squares through all
    samples so far, this round's included, clipped to [-1, 0]; delta = exp(3 slope). No slope (0): no samples, or a
    weighted variance of the ages of at most 1e-4 of their mean square. Else delta is the number ``fading``.

    Lost: c_i = u_i = 0 and no age, c stays; held_by_server: they are the server's, and nothing but x_i is lost.
    epochs: E and e_i start at 0. Lost: e_i = -1. Before the steps every reached i with 0 <= e_i != E: c_i = u_i = 0, no
    age, e_i = E. If some i in C has e_i = -1: after everything else of the round c = 0, E += 1 (once), and all of C
    have c_i = u_i = 0, no age and e_i = the new E.
    around: plain training from x - eta (s-1)/2 (c - u_i), afterwards minus eta (s+1)/2 (c - u_i).

    latest_length: in a round without contacts eta s is that of the latest round with some (a server that is told it).

    Written without the product form: every u_i is multiplied in every round, all samples are kept.
    """

    def __init__(
        self,
        fading: float | None = None,
        mean: bool = False,
        cutoff: int = 50,
        held_by_server: bool = False,
        around: bool = False,
        optimiser: Sgd | None = None,
        latest_length: bool = False,
        epochs: bool = False,
    ):
        super().__init__(cutoff, optimiser)
        self.latest_length, self.epochs = latest_length, epochs
        self.fading, self.mean, self.held_by_server, self.around = fading, mean, held_by_server, around

    def memory(self, m: int, x0: np.ndarray) -> dict:
        """The controls, how old they are, the samples, the intervals, and this round's sums of gradients."""
        zeros = [np.zeros_like(x0) for _ in range(m)]
        controls = {"c": np.zeros_like(x0), "c_i": zeros, "u": list(zeros), "age": [None] * m}
        controls |= {"epoch": [0] * m, "E": 0}
        return {**super().memory(m, x0), **controls, "samples": [], "delta": 1.0, "sum": {}, "length": 0.0}

    def lose(self, i: int, t: int, x0: np.ndarray, memory: dict) -> None:
        """c_i is gone if the client keeps it."""
        if not self.held_by_server:
            self.begin_anew(i, memory)
            if self.epochs:
                memory["epoch"][i] = -1

    def begin_anew(self, i: int, memory: dict) -> None:
        """Nothing is known of i."""
        memory["c_i"][i] = memory["u"][i] = np.zeros_like(memory["c"])
        memory["age"][i] = None

    def round(self, r: Round, server: np.ndarray, clients: list, memory: dict) -> tuple[np.ndarray, list]:
        """Who is reached learns of the epoch before its steps."""
        for i in r.reached:
            if memory["epoch"][i] not in (-1, memory["E"]):
                self.begin_anew(i, memory)
                memory["epoch"][i] = memory["E"]
        return super().round(r, server, clients, memory)

    def step(self, r: Round, i: int, k: int, x: np.ndarray, start: np.ndarray, memory: dict) -> np.ndarray:
        """One step, shifted by c - u_i where the server reached i; its own gradient is added up."""
        shift = memory["c"] - memory["u"][i] if i in r.reached else np.zeros_like(x)
        if self.around and k == 0:
            x = x - r.eta * (r.steps - 1) / 2 * shift
        own = r.grad(i, k, x)
        memory["sum"][i] = own if k == 0 else memory["sum"][i] + own
        if not self.around:
            return x - r.eta * (own + shift)
        x = x - r.eta * own
        return x - r.eta * (r.steps + 1) / 2 * shift if k == r.steps - 1 else x

    def aggregate(self, r: Round, server: np.ndarray, delta: list, memory: dict) -> np.ndarray:
        """The step with the controls of before, then the new ones, all of them a round older."""
        contacts = [i for i in r.active if i in r.reached]
        weights = list(memory["w"])
        self.update_rule(replace(r, active=contacts), memory)
        if not r.training:
            return server
        g = {i: memory["sum"][i] / r.steps for i in contacts}
        d = {i: g[i] - memory["u"][i] for i in contacts}
        if not self.mean:
            direction = memory["c"]
            for i in contacts:
                direction = direction + weights[i] * d[i] / r.m
            length = memory["length"] if self.latest_length and not contacts else r.eta * r.steps
            server = self.optimiser.move(server, -length * direction, memory)
        elif r.active:
            server = self.optimiser.move(server, mean_over(r.active, delta), memory)
        if contacts:
            memory["length"] = r.eta * r.steps

        for i in contacts:
            norm = float(memory["c_i"][i] @ memory["c_i"][i])
            if memory["age"][i] is not None and norm > 0:
                left = min(max(float(g[i] @ memory["c_i"][i]) / norm, 0.02), 1.0)
                memory["samples"].append((r.t, memory["age"][i], np.log(left)))
        memory["delta"] = self.fade(r.t, memory["samples"]) if self.fading is None else self.fading

        c = memory["c"]
        for i in contacts:
            c = c + d[i] / r.m
        memory["c"] = memory["delta"] * c
        for i in range(r.m):
            if i in g:
                memory["c_i"][i] = memory["u"][i] = g[i]
                memory["age"][i] = 0
            memory["u"][i] = memory["delta"] * memory["u"][i]
            if memory["age"][i] is not None:
                memory["age"][i] += 1
        if any(memory["epoch"][i] == -1 for i in contacts):
            memory["c"], memory["E"] = np.zeros_like(server), memory["E"] + 1
            for i in contacts:
                self.begin_anew(i, memory)
                memory["epoch"][i] = memory["E"]
        return server

    def slope(self, t: int, samples: list) -> float:
        """Of the weighted straight line through the samples."""
        if not samples:
            return 0.0
        when, age, left = (np.array(column, np.float64) for column in zip(*samples, strict=True))
        trust = 0.98 ** (t - when)
        center = np.average(age, weights=trust)
        if np.average((age - center) ** 2, weights=trust) <= 1e-4 * np.average(age**2, weights=trust):
            return 0.0
        line = np.stack([np.ones_like(age), age], axis=1) * np.sqrt(trust)[:, None]
        return float(np.linalg.lstsq(line, left * np.sqrt(trust), rcond=None)[0][1])

    def fade(self, t: int, samples: list) -> float:
        """delta of this round."""
        return float(np.exp(3 * min(max(self.slope(t, samples), -1.0), 0.0)))


# --- methods whose clients keep their own models, mixed at the end of the round --------------------------------------


def mean_over(indices: list[int], vectors: list[np.ndarray]) -> np.ndarray:
    """The mean of some of the vectors."""
    total = np.zeros_like(vectors[indices[0]])
    for i in indices:
        total = total + vectors[i]
    return total / len(indices)


class FedPBC(Method):
    """FedPBC (Algorithm 2): s steps from x_i; x+ = mean over A of x_i; i in A that the downlink reaches receive x+."""

    def round(self, r: Round, server: np.ndarray, clients: list, memory: dict) -> tuple[np.ndarray, list]:
        """Local steps, mean, multicast."""
        after = []
        for i in range(r.m):
            x = clients[i]
            if i in r.computing:
                for k in range(r.steps):
                    x = x - r.eta * r.grad(i, k, x)
            after.append(x)
        if r.active:
            server = mean_over(r.active, after)
            for i in r.active:
                if i in r.reached:
                    after[i] = server
        return server, after


class FedPBCCatchUp(Method):
    """FedPBC whose clients catch up with at most k rounds. Client i keeps its base b_i (x0 at the start) and v_i (0).

    Its model in round t is b_i after rounds max(v_i, t+1-k), ..., t, those in which it computes, each with the eta and
    the samples of that round. x+ = mean of them over A; i in A that the downlink reaches: b_i = x+, v_i = t + 1.
    Lost at the start of round t: b_i = x0, v_i = t. Written without any shortcut: everything is replayed every round.
    """

    def __init__(self, k: int):
        self.k = k

    def memory(self, m: int, x0: np.ndarray) -> dict:
        """b_i, v_i and all rounds so far."""
        return {"b": [x0] * m, "v": [0] * m, "rounds": []}

    def lose(self, i: int, t: int, x0: np.ndarray, memory: dict) -> None:
        """It goes on from x0."""
        memory["b"][i], memory["v"][i] = x0, t

    def replayed(self, v: int, t: int) -> range:
        """The rounds that a client replays in round t."""
        return range(max(v, t + 1 - self.k), t + 1)

    def round(self, r: Round, server: np.ndarray, clients: list, memory: dict) -> tuple[np.ndarray, list]:
        """Replays, mean, multicast."""
        memory["rounds"].append(r)
        after = []
        for i in range(r.m):
            x = memory["b"][i]
            for t in self.replayed(memory["v"][i], r.t):
                past = memory["rounds"][t]
                if i in past.computing:
                    for k in range(past.steps):
                        x = x - past.eta * past.grad(i, k, x)
            after.append(x)
        if r.active:
            server = mean_over(r.active, after)
            for i in r.active:
                if i in r.reached:
                    after[i] = memory["b"][i] = server
                    memory["v"][i] = r.t + 1
        return server, after


class FedAWE(Method):
    """FedAWE: client keeps x_i and tau_i (-1 at the start); only i in A computes, whatever ``compute`` says: s steps
    from x_i, reports x_i + eta_g min(t - tau_i, clip) Delta_i (clip 0: none); x+ = mean of the reports over A.

    i in A that the downlink reaches receive x+, the rest of A keep x_i^(t,s), not their report. tau_i = t for i in
    A. Cool-down: Delta_i = 0, all else goes on. Lost: x_i = x0, tau_i = t - 1. Empty A: the server stays.

    norm_limit L > 0: x+ = mean of x_i + eta_g v over A, v = mean of min(t - tau_i, clip) Delta_i, shortened to norm L.
    """

    def __init__(self, eta_g: float = 1.0, clip: float = 0, norm_limit: float = 0):
        self.eta_g, self.clip, self.norm_limit = eta_g, clip, norm_limit

    def memory(self, m: int, x0: np.ndarray) -> dict:
        """tau_i."""
        return {"tau": [-1] * m}

    def lose(self, i: int, t: int, x0: np.ndarray, memory: dict) -> None:
        """It starts anew as if just heard."""
        memory["tau"][i] = t - 1

    def round(self, r: Round, server: np.ndarray, clients: list, memory: dict) -> tuple[np.ndarray, list]:
        """Local steps of A, echoed reports, mean, multicast."""
        after = list(clients)
        reports = list(clients)
        innovations = [np.zeros_like(server)] * r.m
        for i in r.active:
            x = clients[i]
            if r.training:
                for k in range(r.steps):
                    x = x - r.eta * r.grad(i, k, x)
            echo = r.t - memory["tau"][i]
            if self.clip > 0:
                echo = min(echo, self.clip)
            reports[i] = clients[i] + self.eta_g * echo * (x - clients[i])
            innovations[i] = echo * (x - clients[i])
            after[i] = x
            memory["tau"][i] = r.t
        if r.active:
            server = mean_over(r.active, reports)
            if self.norm_limit > 0:
                v = mean_over(r.active, innovations)
                longer = np.linalg.norm(v) > self.norm_limit
                v = v / np.linalg.norm(v) * self.norm_limit if longer else v
                server = mean_over(r.active, clients) + self.eta_g * v
            for i in r.active:
                if i in r.reached:
                    after[i] = server
        return server, after


class FedPBCCorrected(Method):
    """Drift-corrected FedPBC: every client keeps a correction z_i (0 at the start) and takes its local steps along
    grad l_i + z_i. xhat_i = models after the steps, h_i = sum of the etas of i's own steps since its last contact,
    b_i = the model it received then, xbar_A = mean over A of xhat_i, S = those of A that the downlink reaches.

    full: y_i = (b_i - xhat_i)/h_i for i in A with h_i > 0; z_i += (mean of these y) - y_i for i in S with h_i > 0.
    light: h_A = max over A of h_i; if h_A > 0: z_i += (xhat_i - xbar_A)/h_A for all i in S.
    Then, for i in S: x_i = b_i = xbar_A, h_i = 0.

    apply "every_step": x -= eta (g + z_i). "around" (black-box training): plain training from
    x_i - eta (s-1)/2 z_i, afterwards minus eta (s+1)/2 z_i.

    Epochs (epoch_reset): server epoch E and the clients' epochs start at 0. Lost: x_i = b_i = x0, z_i = 0, h_i = 0,
    epoch_i = -1. Before the z update: if any i in S has epoch -1, E += 1 (once); every i in S with epoch_i != E:
    z_i := 0, epoch_i := E.
    """

    def __init__(self, form: str = "full", apply: str = "every_step", epoch_reset: bool = True):
        assert form in ("full", "light")
        assert apply in ("every_step", "around")
        self.form, self.apply, self.epoch_reset = form, apply, epoch_reset

    def memory(self, m: int, x0: np.ndarray) -> dict:
        """z_i, b_i, h_i, epoch_i and the server's epoch E."""
        return {
            "z": [np.zeros_like(x0) for _ in range(m)],
            "b": [x0 for _ in range(m)],
            "h": [0.0] * m,
            "epoch": [0] * m,
            "E": 0,
        }

    def lose(self, i: int, t: int, x0: np.ndarray, memory: dict) -> None:
        """Everything of client i."""
        memory["z"][i] = np.zeros_like(x0)
        memory["b"][i] = x0
        memory["h"][i] = 0.0
        memory["epoch"][i] = -1

    def local(self, r: Round, i: int, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        """xhat_i of a computing client."""
        s, eta = r.steps, r.eta
        if self.apply == "every_step":
            for k in range(s):
                x = x - eta * (r.grad(i, k, x) + z)
            return x
        x = x - eta * (s - 1) / 2 * z
        for k in range(s):
            x = x - eta * r.grad(i, k, x)
        return x - eta * (s + 1) / 2 * z

    def round(self, r: Round, server: np.ndarray, clients: list, memory: dict) -> tuple[np.ndarray, list]:
        """Local steps, mean, epochs, corrections, multicast."""
        z, b, h, epoch = memory["z"], memory["b"], memory["h"], memory["epoch"]
        xhat = []
        for i in range(r.m):
            if i in r.computing:
                xhat.append(self.local(r, i, clients[i], z[i]))
                for _ in range(r.steps):
                    h[i] = h[i] + r.eta
            else:
                xhat.append(clients[i])
        if not r.active:
            return server, xhat

        server = mean_over(r.active, xhat)  # xbar_A
        synced = [i for i in r.active if i in r.reached]  # S

        if self.epoch_reset:
            if any(epoch[i] == -1 for i in synced):
                memory["E"] += 1
            for i in synced:
                if epoch[i] != memory["E"]:
                    z[i] = np.zeros_like(server)
                    epoch[i] = memory["E"]

        if self.form == "full":
            y = {i: (b[i] - xhat[i]) / h[i] for i in r.active if h[i] > 0}
            if y:
                ybar = mean_over(sorted(y), y)
                for i in synced:
                    if h[i] > 0:
                        z[i] = z[i] + (ybar - y[i])
        else:
            h_max = max(h[i] for i in r.active)
            if h_max > 0:
                for i in synced:
                    z[i] = z[i] + (xhat[i] - server) / h_max

        after = list(xhat)
        for i in synced:
            after[i] = server
            b[i] = server
            h[i] = 0.0
        return server, after


METHODS = {
    "fedavg": FedAvg,
    "fedavg_all": FedAvgAll,
    "fedavg_known": FedAvgKnown,
    "debiased_fedavg": DebiasedFedAvg,
    "fedau": FedAU,
    "f3ast": F3AST,
    "fedprox": FedProx,
    "amplified_fedavg": AmplifiedFedAvg,
    "mifa": MIFA,
    "fedvarp": FedVARP,
    "fedstale": FedStale,
    "area": AREA,
    "focus": FOCUS,
    "scaffold": Scaffold,
    "fedfade": FedFade,
    "fedawe": FedAWE,
    "fedpbc": FedPBC,
    "fedpbc_corrected": FedPBCCorrected,
}
OPTIMISERS = {"sgd": Sgd, "momentum": Momentum, "adam": Adam, "yogi": Yogi}
