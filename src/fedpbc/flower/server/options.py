"""The options that all strategies share: what they mean, and what is allowed."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedpbc.flower.server.checks import count_or_share, folder, one_of, positive, require, share, switch, whole, word
from fedpbc.flower.server.metrics import Average

log = logging.getLogger("flwr")


@dataclass(kw_only=True, eq=False)
class Options:
    """Options of every strategy.

    round_deadline: seconds until a round closes; the time-to-live of its messages, so nobody works through old ones.
    num_clients: m. Needed where the rule divides by m or keeps something per client; else it may be left open.
    directory: checkpoint, participation.jsonl and metrics.jsonl; a new server goes on from there. None: nothing kept.
    cooldown: the last so many rounds are without local steps, so that mixing brings the models together.
    poll_interval: seconds between two looks for replies, 0.1 to 0.5 in a deployment.
    min_available_nodes: clients to wait for at the start, and only there. None: 2, or num_clients if that is less.
    pin_names: with SuperNode authentication, a client-id belongs to the key of the SuperNode that used it first.
        (Without authentication every restart has another key, and any client can call itself anything.)
    same_name: of two nodes that are online under one name, the "first" is the client until it has gone, or the
        "latest"; the log names both. A client that was started again as another node waits until its old one has gone.
    buffers: arrays that local training changes without a gradient: names, or patterns of names with * and ?; integers
        and truth values are in any case. The new model has the mean of those that were sent, under every method.
    forget_unnamed: a client without a name is forgotten so many rounds after its node went: when it is started again
        it has another id, and is another client. 0: never; nor where ``num_clients`` is given.
    spill: keep models that clients go on from, but the latest, on disk only; needs ``directory``.
    failure_limit: a client that failed so many times in a row in the same way is named in an error line of the log.
    min_replies: a round closes as soon as so many clients answered (an integer), or such a share of those that are
        here (a float); ``round_deadline`` is the latest. None: when all who were asked have. Who is fast is then heard
        more often.
    fraction_train: as in Flower's FedAvg: so large a share of the clients that are here when a round opens is asked, at
        least ``min_train_nodes``; who is not asked is not active.
    selection_seed: draws whom; the same clients again in a round that is done again.
    min_train_nodes: as ``min_available_nodes``, of which the larger counts.
    fraction_evaluate: the share of the clients just heard that evaluate the model after a round; 0: none.
    min_evaluate_nodes: at least so many of them.
    weighted_by_key: the metric that weights metrics, and models under ``client_weights = "samples"`` only.
    client_weights: "uniform": the objective is the mean of the F_i. "samples": sum_i n_i F_i / sum_i n_i; every Delta_i
        counts times n_i over the mean of the n known, n_i what the client's ``weighted_by_key`` says. Refused where the
        method is then another one.
    arrayrecord_key, configrecord_key: where the train function finds the model and its config.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn: (contents, weighted_by_key) -> metrics; None: the weighted mean.
    """

    round_deadline: float
    num_clients: int | None = None
    directory: str | Path | None = None
    cooldown: int = 0
    poll_interval: float = 0.2
    min_available_nodes: int | None = None
    pin_names: bool = False
    same_name: Literal["first", "latest"] = "first"
    buffers: Sequence[str] = ("*running_mean", "*running_var", "*num_batches_tracked")
    forget_unnamed: int = 100
    spill: bool = False
    failure_limit: int = 3
    min_replies: int | float | None = None
    fraction_train: float = 1.0
    selection_seed: int = 0
    min_train_nodes: int | None = None
    fraction_evaluate: float = 1.0
    min_evaluate_nodes: int = 2
    weighted_by_key: str = "num-examples"
    client_weights: Literal["uniform", "samples"] = "uniform"
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"
    train_metrics_aggr_fn: Average | None = None
    evaluate_metrics_aggr_fn: Average | None = None

    def __init_subclass__(cls, **more: Any) -> None:
        """Every strategy documents all its options, the common ones after its own."""
        super().__init_subclass__(**more)
        own, common = vars(cls).get("__doc__"), inspect.cleandoc(Options.__doc__ or "")
        if own:
            cls.__doc__ = f"{inspect.cleandoc(own)}\n\n{common}\n"

    def __post_init__(self) -> None:
        """Raises ConfigError for values that are not allowed."""
        positive("round_deadline", self.round_deadline)
        good = positive("poll_interval", self.poll_interval) <= self.round_deadline
        require("poll_interval", self.poll_interval, good, f"at most round_deadline = {self.round_deadline}")
        if self.num_clients is not None:
            self.num_clients = whole("num_clients", self.num_clients, 1)
        self.cooldown, self.directory = whole("cooldown", self.cooldown), folder("directory", self.directory)
        switch("pin_names", self.pin_names)
        switch("spill", self.spill)
        given = self.buffers
        good = isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(n, str) for n in given)
        require("buffers", given, good, "a list of names of arrays, or of patterns like *running_var")
        one_of("client_weights", self.client_weights, ("uniform", "samples"))
        one_of("same_name", self.same_name, ("first", "latest"))
        self.forget_unnamed = whole("forget_unnamed", self.forget_unnamed)
        self.failure_limit = whole("failure_limit", self.failure_limit, 1)
        require("spill", self.spill, not self.spill or self.directory is not None, "False without a directory")
        self._check_flowers()
        few = self.num_clients is None or self.clients_at_start <= self.num_clients
        require("min_available_nodes", self.clients_at_start, few, f"at most num_clients = {self.num_clients}")

    def _check_flowers(self) -> None:
        """Those of Flower's FedAvg, which itself takes them as they come."""
        asked = self.fraction_train
        require("fraction_train", asked, share("fraction_train", asked) > 0, "a number > 0 and <= 1")
        self.selection_seed = whole("selection_seed", self.selection_seed)
        if self.min_replies is not None:
            k, m = count_or_share("min_replies", self.min_replies), self.num_clients
            require("min_replies", k, m is None or k <= m, f"at most num_clients = {m}")
        for key in ("min_available_nodes", "min_train_nodes", "min_evaluate_nodes"):
            if getattr(self, key) is not None:
                whole(key, getattr(self, key))
        if share("fraction_evaluate", self.fraction_evaluate) == 0.0:
            self.min_evaluate_nodes = 0
            log.warning("fraction_evaluate is set to 0.0. Federated evaluation will be skipped.")
        for key in ("weighted_by_key", "arrayrecord_key", "configrecord_key"):
            word(key, getattr(self, key))

    @property
    def clients_at_start(self) -> int:
        """How many clients are waited for before the first round."""
        wanted = [n for n in (self.min_available_nodes, self.min_train_nodes) if n is not None]
        return max(wanted, default=min(2, self.num_clients or 2))
