"""FedAvg, FedAU, MIFA and FedVARP over the replies: the simulator's rules, given the clients of a deployment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord

from fedpbc.algorithms.differences import mean_with
from fedpbc.algorithms.fedau import Intervals, init, weights
from fedpbc.algorithms.fedvarp import surrogate
from fedpbc.algorithms.mifa import remember
from fedpbc.core.aggregation import masked_mean, weighted_sum
from fedpbc.core.types import Link
from fedpbc.flower.arrays import Model, to_record
from fedpbc.flower.drift import SCALE
from fedpbc.flower.fedpbc import mean_of_replies
from fedpbc.flower.known import KeptByClients, KnownClients
from fedpbc.flower.ledger import Reply
from fedpbc.flower.options import one_of, positive, switch, whole
from fedpbc.flower.roster import Client
from fedpbc.flower.strategy import UnreliableClients
from fedpbc.flower.table import Updates


class FedAvg(UnreliableClients):
    """FedAvg over the replies: x^(t+1) = mean over A^t of x_i (McMahan et al. 2017; the paper's Algorithm 1).

    Unlike Flower's it does not weight by num-examples: the objective is the uniform mean over clients, as for the
    other strategies. Biased towards clients that are heard often. Parameters: those of ``UnreliableClients``.
    """

    method = "fedavg"

    def rule(self, t: int, replies: list[Reply]) -> Model | None:
        """x^(t+1) = (1/|A^t|) sum over A^t of x_i; an empty A^t leaves x^t."""
        return mean_of_replies(self, replies) if replies else None


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


Keeper = Literal["server", "client"]
"""Who keeps the latest update of a client."""


class LatestUpdates(KeptByClients):
    """Base of the methods that use everybody's latest update, kept on the server or by the clients.

    A client that keeps its own, h_i = Delta_i / scale, sends x^t + Delta_i - scale h_i in place of its model; the
    server reads Delta_i / scale - h_i off it and follows the mean of the h_i.
    """

    def __init__(self, *, round_deadline: float, num_clients: int, memory: Keeper, **options: Any) -> None:
        super().__init__(round_deadline=round_deadline, num_clients=num_clients, **options)
        self.by_clients = one_of("memory", memory, ("server", "client")) == "client"

    def settings(self) -> dict[str, Any]:
        """Beside the common ones: memory."""
        return super().settings() | {"memory": "client" if self.by_clients else "server"}

    def num_rows(self) -> dict[str, int]:
        """The latest updates, or their mean."""
        return {"mean": 1} if self.by_clients else {"row": self.m}

    def scale(self, t: int) -> float:
        """What Delta_i is divided by before it is kept."""
        return 1.0

    def extras(self, client: Client) -> dict[str, ArrayRecord]:
        """The scale, where the client keeps its latest update."""
        if not self.by_clients or self.round >= self.train_rounds:
            return {}
        return {SCALE: to_record({"scale": np.array(self.scale(self.round))})}

    def fitting(self, replies: list[Reply]) -> list[Reply]:
        """Those that are differences to what the server knows: not of clients that lost what they kept."""
        return [reply for reply in replies if not reply.answer.lost]

    def differences(self, t: int, replies: list[Reply]) -> Iterator[tuple[str, slice, np.ndarray, np.ndarray]]:
        """(array, columns, hbar before the round, the differences Delta_i / scale - h_i [m, b])."""
        for name, block, update in self.updates(replies).blocks():
            yield name, block, self.tables["mean"].rows[name][0, block], update / update.dtype.type(self.scale(t))

    def follow(self, t: int, heard: list[Reply]) -> None:
        """hbar += (1/m) sum of the differences, or a new epoch when a client lost its h_i."""
        if not heard or self.begin_epoch(t, heard):
            return
        reported = self.updates(heard).reported
        for _, _, mean, change in self.differences(t, heard):
            mean[:] = mean_with(mean, change, reported)
        self.tables["mean"].wrote(t, np.array([True]))
        self.count(t, heard)


class MIFA(LatestUpdates):
    """x -= (eta_t/m) sum over ALL clients of G_i, their latest update divided by its eta (arXiv 2106.04159).

    learning_rate: eta_t, a number or a function of the round t = 0, 1, ...; the one that the clients use. wait: the
    server does not move before everybody was heard once. memory: who keeps the G_i. "server": m + 1 models there.
        "client": each its own in ``context.state``, and 2 models on the server, whatever m; the models are the same. A
        client that lost its G_i (new node, new run) makes everybody's start from 0 again. The other parameters are
        those of ``UnreliableClients``; ``num_clients`` is required. Raises ConfigError.
    """

    method = "mifa"

    def __init__(
        self,
        *,
        round_deadline: float,
        num_clients: int,
        learning_rate: float | Callable[[int], float],
        wait: bool = False,
        memory: Keeper = "server",
        **options: Any,
    ) -> None:
        self.learning_rate = learning_rate if callable(learning_rate) else lambda t: learning_rate
        positive("learning_rate", self.learning_rate(0))
        super().__init__(round_deadline=round_deadline, num_clients=num_clients, memory=memory, **options)
        self.wait = switch("wait", wait)

    def settings(self) -> dict[str, Any]:
        """Beside the common ones: wait, and the learning rate of round 0."""
        return super().settings() | {"wait": self.wait, "learning_rate in round 0": float(self.learning_rate(0))}

    def scale(self, t: int) -> float:
        """eta_t."""
        return self._rate(t)

    def rule(self, t: int, replies: list[Reply]) -> Model | None:
        """x^(t+1) = x^t - (eta_t/m) sum_i G_i with the G_i after round t, in an empty round too."""
        new = self.layout.empty()
        if self.by_clients:
            replies = self.fitting(replies)
            reported, known = self.updates(replies).reported, np.array(self.accepted) >= 0
            for name, block, mean, change in self.differences(t, replies):
                step = mean_with(mean, change, reported)  # of Delta_i / eta_t = -G_i
                new[name][block] = self.flat[name][block] + step.dtype.type(self._rate(t)) * step
        else:
            known = self.tables["row"].heard()
            for name, block, rows in self._remembered(t, self.updates(replies)):
                eta = rows.dtype.type(self._rate(t))
                new[name][block] = self.flat[name][block] - eta * np.mean(rows, axis=0)
        known[[reply.client.index for reply in replies]] = True
        return new if known.all() or not self.wait else None

    def keep(self, t: int, heard: list[Reply]) -> None:
        """G_i anew for i in A^t."""
        if self.by_clients:
            self.follow(t, heard)
            return
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


class FedVARP(LatestUpdates):
    """x += eta_g (mean of all latest updates y + mean over A^t of (Delta_i - y_i)) (arXiv 2207.14130).

    server_learning_rate: eta_g. memory: who keeps the y_i. "server": m + 2 models there. "client": each its own in
        ``context.state``, and 2 models on the server, whatever m; the models are the same. A client that lost its y_i
        (new node, new run) makes everybody's start from 0 again. The other parameters are those of
        ``UnreliableClients``; ``num_clients`` is required. Raises ConfigError.
    """

    method = "fedvarp"

    def __init__(
        self,
        *,
        round_deadline: float,
        num_clients: int,
        server_learning_rate: float = 1.0,
        memory: Keeper = "server",
        **options: Any,
    ) -> None:
        super().__init__(round_deadline=round_deadline, num_clients=num_clients, memory=memory, **options)
        self.server_learning_rate = positive("server_learning_rate", server_learning_rate)

    def settings(self) -> dict[str, Any]:
        """Beside the common ones: server_learning_rate."""
        return super().settings() | {"server_learning_rate": self.server_learning_rate}

    def num_rows(self) -> dict[str, int]:
        """The y_i, unless the clients keep them, and their mean."""
        return super().num_rows() | {"mean": 1}

    def rule(self, t: int, replies: list[Reply]) -> Model | None:
        """x^(t+1) = x^t + eta_g surrogate; an empty round leaves it."""
        if self.by_clients:
            replies = self.fitting(replies)
        if not replies:
            return None
        new = self.layout.empty()
        for name, block, step in self._steps(t, replies):
            new[name][block] = self.flat[name][block] + step.dtype.type(self.server_learning_rate) * step
        return new

    def keep(self, t: int, heard: list[Reply]) -> None:
        """y_i = Delta_i for i in A^t, and their mean."""
        if self.by_clients:
            self.follow(t, heard)
            return
        if not heard:
            return
        updates = self.updates(heard)
        for name, block, (_, rows, mean) in self._surrogates(updates):
            self.tables["row"].rows[name][:, block], self.tables["mean"].rows[name][0, block] = rows, mean
        self.tables["row"].wrote(t, updates.reported)
        self.tables["mean"].wrote(t, np.array([True]))

    def _steps(self, t: int, replies: list[Reply]) -> Iterator[tuple[str, slice, np.ndarray]]:
        """(array, columns, the mean of all latest updates + mean over A^t of (Delta_i - y_i))."""
        if self.by_clients:
            reported = self.updates(replies).reported
            for name, block, mean, change in self.differences(t, replies):
                yield name, block, mean + masked_mean(change, reported, otherwise=mean * 0)
        else:
            for name, block, (step, _, _) in self._surrogates(self.updates(replies)):
                yield name, block, step

    def _surrogates(self, updates: Updates) -> Iterator[tuple[str, slice, tuple[np.ndarray, np.ndarray, np.ndarray]]]:
        """(array, columns, (step, the y_i after this round, their mean))."""
        for name, block, update in updates.blocks():
            rows, mean = self.tables["row"].rows[name][:, block], self.tables["mean"].rows[name][0, block]
            yield name, block, surrogate(rows, mean, update, updates.reported)
