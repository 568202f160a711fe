"""FedAvg, FedAU, MIFA and FedVARP over the replies: the simulator's rules, given the clients of a deployment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedpbc.algorithms.fedau import Intervals, init, weights
from fedpbc.algorithms.fedvarp import surrogate
from fedpbc.algorithms.mifa import remember
from fedpbc.core.aggregation import weighted_sum
from fedpbc.core.types import Link
from fedpbc.flower.arrays import Model
from fedpbc.flower.fedpbc import mean_of_replies
from fedpbc.flower.ledger import Reply
from fedpbc.flower.options import positive, require, switch, whole
from fedpbc.flower.strategy import UnreliableClients
from fedpbc.flower.table import KeepsTables, Updates


class FedAvg(UnreliableClients):
    """FedAvg over the replies: x^(t+1) = mean over A^t of x_i (McMahan et al. 2017; the paper's Algorithm 1).

    Unlike Flower's it does not weight by num-examples: the objective is the uniform mean over clients, as for the
    other strategies. Biased towards clients that are heard often. Parameters: those of ``UnreliableClients``.
    """

    method = "fedavg"

    def rule(self, t: int, replies: list[Reply]) -> Model | None:
        """x^(t+1) = (1/|A^t|) sum over A^t of x_i; an empty A^t leaves x^t."""
        return mean_of_replies(self, replies) if replies else None


class KnownClients(UnreliableClients):
    """Base of the methods that must know m; ``num_clients`` is required. Raises ConfigError."""

    remembers = True

    def __init__(self, *, round_deadline: float, num_clients: int, **options: Any) -> None:
        require("num_clients", num_clients, num_clients is not None, f"given: {self.method} divides by it")
        super().__init__(round_deadline=round_deadline, num_clients=num_clients, **options)
        self.m = num_clients

    def updates(self, replies: list[Reply]) -> Updates:
        """Delta_i = x_i - x^t of the replies, for rules over [m, d]."""
        return Updates(self.layout, self.flat, {r.client.index: r.arrays for r in replies}, self.m)


class FedAU(KnownClients):
    """x += (1/m) sum over the active of w_i Delta_i, w_i the mean interval between i's rounds (arXiv 2306.03401).

    cutoff: K, an interval ends after K rounds even if the client is still away; 0: never. Server memory: three
    numbers per client. The other parameters are those of ``UnreliableClients``; ``num_clients`` is required.
    """

    method = "fedau"

    def __init__(self, *, round_deadline: float, num_clients: int, cutoff: int = 50, **options: Any) -> None:
        super().__init__(round_deadline=round_deadline, num_clients=num_clients, **options)
        self.cutoff = whole("cutoff", cutoff)

    def settings(self) -> dict[str, Any]:
        """Beside the common ones: cutoff."""
        return super().settings() | {"cutoff": self.cutoff}

    def begin(self) -> None:
        """Nobody was away yet."""
        self.intervals = init(None, self.m, np.float64)

    def _weights(self, t: int, reported: np.ndarray) -> tuple[Intervals, np.ndarray]:
        """(the intervals after round t, w_i / m): they see every round, an empty one too."""
        limit = np.int64(self.cutoff or np.iinfo(np.int32).max)
        after, w = weights(limit, self.intervals, Link(reported, reported * 0.0), t)
        return after, w

    def rule(self, t: int, replies: list[Reply]) -> Model | None:
        """x^(t+1) = x^t + sum over A^t of w_i Delta_i / m; an empty A^t leaves x^t."""
        if not replies:
            return None
        updates = self.updates(replies)
        _, w = self._weights(t, updates.reported)
        new = self.layout.empty()
        for name, block, update in updates.blocks():
            new[name][block] = self.flat[name][block] + weighted_sum(update, w, updates.reported)
        return new

    def keep(self, t: int, heard: list[Reply]) -> None:
        """The intervals after this round."""
        self.intervals, _ = self._weights(t, self.updates(heard).reported)

    def memory(self) -> dict[str, Any]:
        """S_i, M_i, w_i."""
        return {name: values.tolist() for name, values in self.intervals._asdict().items()}

    def recall(self, memory: dict[str, Any]) -> None:
        """S_i, M_i, w_i as they were."""
        dtypes = init(None, self.m, np.float64)._asdict()
        self.intervals = Intervals(**{name: np.array(memory[name], dtypes[name].dtype) for name in dtypes})


class MIFA(KeepsTables, KnownClients):
    """x -= (eta_t/m) sum over ALL clients of G_i, their latest update divided by its eta (arXiv 2106.04159).

    learning_rate: eta_t, a number or a function of the round t = 0, 1, ...; the one that the clients use. wait: the
    server does not move before everybody was heard once. Server memory: m models. The other parameters are those of
    ``UnreliableClients``; ``num_clients`` is required. Raises ConfigError.
    """

    method = "mifa"

    def __init__(
        self,
        *,
        round_deadline: float,
        num_clients: int,
        learning_rate: float | Callable[[int], float],
        wait: bool = False,
        **options: Any,
    ) -> None:
        self.learning_rate = learning_rate if callable(learning_rate) else lambda t: learning_rate
        positive("learning_rate", self.learning_rate(0))
        super().__init__(round_deadline=round_deadline, num_clients=num_clients, **options)
        self.wait = switch("wait", wait)

    def settings(self) -> dict[str, Any]:
        """Beside the common ones: wait, and the learning rate of round 0."""
        return super().settings() | {"wait": self.wait, "learning_rate in round 0": float(self.learning_rate(0))}

    def num_rows(self) -> dict[str, int]:
        """The G_i."""
        return {"row": self.m}

    def rule(self, t: int, replies: list[Reply]) -> Model | None:
        """x^(t+1) = x^t - (eta_t/m) sum_i G_i with the G_i after round t, in an empty round too."""
        new = self.layout.empty()
        for name, block, rows in self._remembered(t, self.updates(replies)):
            eta = rows.dtype.type(self._rate(t))
            new[name][block] = self.flat[name][block] - eta * np.mean(rows, axis=0)
        known = self.tables["row"].heard()
        known[[reply.client.index for reply in replies]] = True
        return new if known.all() or not self.wait else None

    def keep(self, t: int, heard: list[Reply]) -> None:
        """G_i anew for i in A^t."""
        updates = self.updates(heard)
        for name, block, rows in self._remembered(t, updates):
            self.tables["row"].rows[name][:, block] = rows
        self.tables["row"].wrote(t, updates.reported)

    def check(self, reply: Reply) -> None:
        """Raise Refused when G_i would be too large to compute with."""
        self.check_direction(reply, self.flat, self._rate(self.round))

    def _rate(self, t: int) -> float:
        return positive(f"learning_rate in round {t}", self.learning_rate(t))

    def _remembered(self, t: int, updates: Updates) -> Iterator[tuple[str, slice, np.ndarray]]:
        """(array, columns, the G_i after round t)."""
        for name, block, update in updates.blocks():
            rows = self.tables["row"].rows[name][:, block]
            yield name, block, remember(rows, update, rows.dtype.type(self._rate(t)), updates.reported)


class FedVARP(KeepsTables, KnownClients):
    """x += eta_g (mean of all latest updates y + mean over A^t of (Delta_i - y_i)) (arXiv 2207.14130).

    server_learning_rate: eta_g. Server memory: m + 1 models. The other parameters are those of
    ``UnreliableClients``; ``num_clients`` is required. Raises ConfigError.
    """

    method = "fedvarp"

    def __init__(
        self, *, round_deadline: float, num_clients: int, server_learning_rate: float = 1.0, **options: Any
    ) -> None:
        super().__init__(round_deadline=round_deadline, num_clients=num_clients, **options)
        self.server_learning_rate = positive("server_learning_rate", server_learning_rate)

    def settings(self) -> dict[str, Any]:
        """Beside the common ones: server_learning_rate."""
        return super().settings() | {"server_learning_rate": self.server_learning_rate}

    def num_rows(self) -> dict[str, int]:
        """The y_i and their mean."""
        return {"row": self.m, "mean": 1}

    def rule(self, t: int, replies: list[Reply]) -> Model | None:
        """x^(t+1) = x^t + eta_g surrogate; an empty round leaves it."""
        if not replies:
            return None
        new = self.layout.empty()
        for name, block, (step, _, _) in self._surrogates(self.updates(replies)):
            new[name][block] = self.flat[name][block] + step.dtype.type(self.server_learning_rate) * step
        return new

    def keep(self, t: int, heard: list[Reply]) -> None:
        """y_i = Delta_i for i in A^t, and their mean."""
        if not heard:
            return
        updates = self.updates(heard)
        for name, block, (_, rows, mean) in self._surrogates(updates):
            self.tables["row"].rows[name][:, block], self.tables["mean"].rows[name][0, block] = rows, mean
        self.tables["row"].wrote(t, updates.reported)
        self.tables["mean"].wrote(t, np.array([True]))

    def _surrogates(self, updates: Updates) -> Iterator[tuple[str, slice, tuple[np.ndarray, np.ndarray, np.ndarray]]]:
        """(array, columns, (step, the y_i after this round, their mean))."""
        for name, block, update in updates.blocks():
            rows, mean = self.tables["row"].rows[name][:, block], self.tables["mean"].rows[name][0, block]
            yield name, block, surrogate(rows, mean, update, updates.reported)
