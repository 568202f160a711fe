"""All that the server knows, from one round to the next; begun with x^0, or taken up from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord

from fedpbc.errors import ConfigError, shorten
from fedpbc.flower.server.bases import Bases
from fedpbc.flower.server.checkpoint import Checkpoint, Logs
from fedpbc.flower.server.checks import whole
from fedpbc.flower.server.configs import Configs
from fedpbc.flower.server.failures import Failures
from fedpbc.flower.server.ledger import Ledger
from fedpbc.flower.server.options import Options
from fedpbc.flower.server.reasons import Reasons
from fedpbc.flower.server.roster import Roster
from fedpbc.flower.server.rule import Round, Rule
from fedpbc.flower.server.stragglers import Stragglers
from fedpbc.flower.wire.arrays import Layout, Model, Refused, read_initial
from fedpbc.flower.wire.protocol import FOREVER


class Federation:
    """The server's state: the model, the clients, the round that is open, and what outlives a kill.

    Others work on it: ``asking``, ``receiving`` and ``closing`` are a round, ``loop`` goes over the rounds.
    """

    ledger: Ledger
    """The book of the round that is open."""
    config: ConfigRecord
    """Its config."""

    def __init__(
        self, options: Options, method: str, rule: Rule, initial: ArrayRecord, train_rounds: int = FOREVER
    ) -> None:
        """Begin with x^0, or go on from the checkpoint. Raises ConfigError."""
        model = read_initial(initial)
        self.options, self.method, self.rule, self.train_rounds = options, method, rule, train_rounds
        self.layout = Layout.of(model, options.buffers)
        directory = None if options.directory is None else Path(options.directory)
        self.checkpoint = Checkpoint(directory) if directory is not None else None
        self.roster = Roster(options.num_clients, options.same_name == "first")
        self.bases = Bases(self.checkpoint, options.spill)
        self.logs, self.reasons = Logs(directory), Reasons()
        self.configs, self.failures = Configs(), Failures(options.failure_limit, rule.replays)
        self.keys: dict[int, str] = {}
        """The public keys of the nodes that are online, hexadecimal."""
        self.samples: dict[str, float] = {}
        """n_i as the clients last said, by name; where they weigh."""
        self.stragglers = Stragglers()
        """Who was not waited for in rounds that closed early."""
        self.evaluation = Ledger(0, 0.0)
        """The book of the last evaluation."""
        self.heard: list[str] = []
        """Who was heard in the last round that was closed."""
        self.summary_line: dict[str, Any] = {}
        """Its line in metrics.jsonl."""
        self.target: int | None = None
        """How many rounds there will be, where our own loop runs them."""
        self.done = 0
        """Rounds that are closed."""
        self._now: tuple[Round, Model] | None = None
        """The open round as the rule sees it, and the model it was made of."""
        try:
            saved = self.checkpoint.load() if self.checkpoint is not None else None
            rule.init(self.layout.learnt, options.num_clients)
            if saved is None:
                self.model = self.layout.flatten(model)
                """x^t, flattened."""
                self.first_base = self.bases.add(initial)
                """The name of x^0."""
                self.save()
            else:
                self._resume(saved)
        except BaseException:
            self.close()
            raise
        self.round = self.done
        """t, the round that is open or comes next."""

    @property
    def arrays(self) -> ArrayRecord:
        """x^t as it is sent."""
        return self.bases.get(self.bases.latest)

    def now(self) -> Round:
        """The round that is open, as the rule sees it."""
        if self._now is None or self._now[0].t != self.round or self._now[1] is not self.model:
            learnt = {name: self.model[name] for name in self.layout.learnt.shapes}
            now = Round(self.round, learnt, self.round < self.train_rounds, self.bases)
            self._now = now, self.model
        return self._now[0]

    def learns(self) -> bool:
        """Whether this round has local steps, or may replay some; else nothing of it changes a model."""
        return self.round < self.train_rounds or self.rule.replays

    def close(self) -> None:
        """Let another server write to ``directory``."""
        if self.checkpoint is not None:
            self.checkpoint.close()
            self.checkpoint = None

    def save(self) -> None:
        """Write the checkpoint, with which the round counts."""
        if self.checkpoint is None:
            return
        memory, pieces = self.rule.save()
        state = {
            "settings": self._settings(), "rounds": self.done, "clients": self.roster.state(),
            "bases": self.bases.names(), "latest": self.bases.latest, "first_base": self.first_base,
            "memory": memory, "configs": self.configs.state(), "failures": self.failures.state(),
            "logs": self.logs.marks(), "samples": self.samples,
        }  # fmt: skip
        models = {name: lambda name=name: self.bases.model(name) for name in self.bases.names()}
        self.checkpoint.save(state, {**models, **pieces})

    def _settings(self) -> dict[str, Any]:
        options, layout = self.options, self.layout
        common = {"num_clients": options.num_clients, "cooldown": options.cooldown, "pin_names": options.pin_names}
        shapes = {name: [str(layout.dtypes[name]), *shape] for name, shape in layout.shapes.items()}
        weights = {} if options.client_weights == "uniform" else {"client_weights": options.client_weights}
        rounds = {"num_rounds - cooldown": self.train_rounds} if options.cooldown else {}
        kept = {"buffers": list(layout.buffers)} if layout.buffers and self.rule.remembers else {}
        return {
            "strategy": self.method,
            **common,
            **self.rule.settings(),
            **rounds,
            **weights,
            "arrays": shapes,
            **kept,
        }

    def _resume(self, saved: dict[str, Any]) -> None:
        now, directory = self._settings(), self.options.directory
        for key in [*now, *(key for key in saved["settings"] if key not in now)]:
            if now.get(key) != saved["settings"].get(key):
                was, new = saved["settings"].get(key), now.get(key)
                what = f"{key} was {shorten(was)}, is {shorten(new)}"
                raise ConfigError(f"directory = {directory}: belongs to another federation: {what}")
        try:
            self._take_up(saved)
            self.logs.take_up(saved["logs"], self.done)
            self.heard = self.logs.heard(self.done - 1)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, Refused) as error:
            what = f"its checkpoint is damaged ({type(error).__name__}: {error}); restore it from a backup"
            raise ConfigError(f"directory = {directory}: {what}") from None

    def _take_up(self, saved: dict[str, Any]) -> None:
        """Everything as it was saved; raises whatever damage raises."""
        assert self.checkpoint is not None
        self.done, self.first_base = whole("rounds", saved["rounds"]), saved["first_base"]
        self.roster.restore(saved["clients"])
        self.bases.restore(saved["bases"], saved["latest"])
        self.configs.restore(saved["configs"])
        self.failures.restore(saved["failures"])
        self.samples = dict(saved.get("samples", {}))
        for client in self.roster.clients.values():
            if self.rule.replays and client.base not in saved["bases"]:
                raise ValueError(f"client {client.name} goes on from a model that is not there")
        self.layout.read(self.arrays)
        self.model = self.layout.flatten(self.bases.model(self.bases.latest))
        self.rule.load(saved["memory"], self.checkpoint.read)
