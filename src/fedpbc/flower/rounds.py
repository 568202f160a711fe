"""Round by round, around the rule of a method: whom the server asks what, which replies count, what is kept."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedpbc.errors import ConfigError, shorten
from fedpbc.flower.arrays import Layout, Model, Refused, read_initial, sane
from fedpbc.flower.bases import Bases
from fedpbc.flower.checkpoint import Checkpoint, Logs, Pieces
from fedpbc.flower.configs import Configs
from fedpbc.flower.failures import Failures, Trouble
from fedpbc.flower.ledger import Ledger, Reply, describe, first_line
from fedpbc.flower.measures import Measures
from fedpbc.flower.metrics import LeftOut, average_metrics
from fedpbc.flower.options import check_flowers, folder, one_of, positive, require, switch, whole
from fedpbc.flower.protocol import FOREVER, IDENTIFY, RECORD, SERVER_ROUND, TRAIN, Order
from fedpbc.flower.reasons import Reasons
from fedpbc.flower.roster import Client, Roster

log = logging.getLogger("flwr")

NOT_FINITE = "holds a value that is not finite, or huge"


class Rounds(Measures):
    """A strategy without its loop. Options and errors: those of ``UnreliableClients``, which the strategies are."""

    method: ClassVar[str]
    """Name in logs and checkpoints."""
    keeps_base: ClassVar[bool] = False
    """A client goes on from the last model it helped to form, not from the latest."""
    from_start: bool = True
    """A client that was never met goes on from x^0."""
    remembers: ClassVar[bool] = False
    """The rule keeps what clients sent, so that all of it is looked through for NaN before, not the mean after."""

    def __init__(
        self,
        *,
        round_deadline: float,
        num_clients: int | None = None,
        directory: str | Path | None = None,
        cooldown: int = 0,
        poll_interval: float = 0.2,
        pin_names: bool = False,
        same_name: Literal["first", "latest"] = "first",
        spill: bool = False,
        failure_limit: int = 3,
        **options: Any,
    ) -> None:
        self.round_deadline, self.poll_interval = positive("round_deadline", round_deadline), poll_interval
        good = positive("poll_interval", poll_interval) <= self.round_deadline
        require("poll_interval", poll_interval, good, f"at most round_deadline = {round_deadline}")
        self.num_clients = None if num_clients is None else whole("num_clients", num_clients, 1)
        self.cooldown, self.directory = whole("cooldown", cooldown), folder("directory", directory)
        self.pin_names, self.spill = switch("pin_names", pin_names), switch("spill", spill)
        self.same_name = one_of("same_name", same_name, ("first", "latest"))
        self.failure_limit = whole("failure_limit", failure_limit, 1)
        require("spill", spill, not spill or directory is not None, "False without a directory")
        check_flowers(options)
        super().__init__(**options)
        wanted = [options[key] for key in ("min_available_nodes", "min_train_nodes") if key in options]
        self.min_available_nodes = max(wanted, default=min(2, self.num_clients or 2))
        few = self.num_clients is None or self.min_available_nodes <= self.num_clients
        require("min_available_nodes", self.min_available_nodes, few, f"at most num_clients = {num_clients}")
        self.checkpoint: Checkpoint | None = None
        self.train_rounds = FOREVER
        self.round = 0
        """t, the round that is open or comes next."""
        self.evaluation, self.heard = Ledger(0, 0.0), []
        self.own_loop = False
        """Our own loop runs the rounds, not Flower's."""

    @property
    def arrays(self) -> ArrayRecord:
        """x^t as it is sent."""
        return self.bases.get(self.bases.latest)

    # What a method adds.

    @abstractmethod
    def rule(self, t: int, replies: list[Reply]) -> Model | None:
        """x^(t+1), flattened, from the replies of round t, in the order of names; None: it stays x^t.

        Changes nothing: it may be called again with fewer replies, when the result is not finite. Like ``keep`` not
        called in a cool-down, unless clients go on from their own base.
        """

    def keep(self, t: int, heard: list[Reply]) -> None:
        """These replies count, and x^(t+1) is finite: remember what later rounds need of them. x^t is still there."""

    def begin(self) -> None:
        """Set up what the rule keeps; ``self.layout`` and ``self.flat`` (x^0) are there."""

    def learns(self) -> bool:
        """Whether this round has local steps, or may replay some; else nothing of it changes a model."""
        return self.round < self.train_rounds or self.keeps_base

    def extras(self, client: Client) -> dict[str, ArrayRecord]:
        """What this client is sent beside the model."""
        return {}

    def order(self, client: Client, **fields: Any) -> Order:
        """What this client is asked to do in this round."""
        return Order(TRAIN, client.name, round=self.round, **fields)

    def check(self, reply: Reply) -> None:
        """Raise Refused for a reply the rule cannot use."""

    def give_up(self, client: Client, trouble: Trouble) -> str:
        """What is done about a client that failed ``failure_limit`` times in the same way, in words; here nothing."""
        return "it is asked again in every round"

    def settings(self) -> dict[str, Any]:
        """What must be the same when a checkpoint is taken up again; plain values."""
        return {"num_clients": self.num_clients, "cooldown": self.cooldown, "pin_names": self.pin_names}

    def memory(self) -> dict[str, Any]:
        """What the rule keeps, as far as it is small: plain values."""
        return {}

    def pieces(self) -> Pieces:
        """What the rule keeps, as far as it is large; a piece is never changed under the same name."""
        return {}

    def recall(self, memory: dict[str, Any]) -> None:
        """Take ``memory`` and ``pieces`` of a checkpoint up again."""

    # Begin and go on.

    def prepare(self, initial: ArrayRecord, train_rounds: int = FOREVER) -> int:
        """Begin with x^0, or go on from the checkpoint; the number of rounds that are done. Raises ConfigError."""
        model = read_initial(initial)
        self.layout = Layout.of(model)
        if self.directory is not None and self.checkpoint is None:
            self.checkpoint = Checkpoint(self.directory)
        self.train_rounds = train_rounds
        self.roster = Roster(self.num_clients, self.same_name == "first")
        self.bases = Bases(self.checkpoint, self.spill)
        self.logs, self.reasons, self.heard = Logs(self.directory), Reasons(), []
        self.configs, self.failures = Configs(), Failures(self.failure_limit, self.keeps_base)
        saved = self.checkpoint.load() if self.checkpoint is not None else None
        if saved is None:
            self.flat = self.layout.flatten(model)
            self.first_base, self.done = self.bases.add(initial), 0
            self.begin()
            self._save()
        else:
            self._resume(saved)
        self.round = self.done
        return self.done

    def close(self) -> None:
        """Let another server write to ``directory``."""
        if self.checkpoint is not None:
            self.checkpoint.close()
            self.checkpoint = None
        self.own_loop = False

    def _settings(self) -> dict[str, Any]:
        shapes = {name: [str(self.layout.dtypes[name]), *shape] for name, shape in self.layout.shapes.items()}
        rounds = {"num_rounds - cooldown": self.train_rounds} if self.cooldown else {}
        return {"strategy": self.method, **self.settings(), **rounds, "arrays": shapes}

    def _resume(self, saved: dict[str, Any]) -> None:
        now = self._settings()
        for key in [*now, *(key for key in saved["settings"] if key not in now)]:
            if now.get(key) != saved["settings"].get(key):
                was, new = saved["settings"].get(key), now.get(key)
                what = f"{key} was {shorten(was)}, is {shorten(new)}"
                raise ConfigError(f"directory = {self.directory}: belongs to another federation: {what}")
        try:
            self._take_up(saved)
            self.logs.take_up(saved["logs"], self.done)
            self.heard = self.logs.heard(self.done - 1)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, Refused) as error:
            what = f"its checkpoint is damaged ({type(error).__name__}: {error}); restore it from a backup"
            raise ConfigError(f"directory = {self.directory}: {what}") from None

    def _take_up(self, saved: dict[str, Any]) -> None:
        """Everything as it was saved; raises whatever damage raises."""
        self.done, self.first_base = whole("rounds", saved["rounds"]), saved["first_base"]
        self.roster.restore(saved["clients"])
        self.bases.restore(saved["bases"], saved["latest"])
        self.configs.restore(saved["configs"])
        self.failures.restore(saved["failures"])
        for client in self.roster.clients.values():
            if self.keeps_base and client.base not in saved["bases"]:
                raise ValueError(f"client {client.name} goes on from a model that is not there")
        self.layout.read(self.arrays)
        self.flat = self.layout.flatten(self.bases.model(self.bases.latest))
        self.recall(saved["memory"])

    def _save(self) -> None:
        if self.checkpoint is None:
            return
        state = {
            "settings": self._settings(), "rounds": self.done, "clients": self.roster.state(),
            "bases": self.bases.names(), "latest": self.bases.latest, "first_base": self.first_base,
            "memory": self.memory(), "configs": self.configs.state(), "failures": self.failures.state(),
            "logs": self.logs.marks(),
        }  # fmt: skip
        models = {name: lambda name=name: self.bases.model(name) for name in self.bases.names()}
        self.checkpoint.save(state, {**models, **self.pieces()})

    # A round.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to all clients that are online; nodes we have not met are asked who they are."""
        self.open(server_round - 1, config)
        groups = self.ask(grid)
        if self.own_loop and self.spill:  # the others follow one by one, so that one spilled model at a time is read
            return next(groups, [])
        return [message for group in groups for message in group]

    def open(self, t: int, config: ConfigRecord) -> None:
        """Begin round t."""
        self.round, self.config = t, config.copy()
        self.configs.open(t, config)
        self.ledger = Ledger(t, time.monotonic() + self.round_deadline)

    def ask(self, grid: Grid, identify_only: bool = False) -> Iterator[list[Message]]:
        """Messages to the nodes that are online and were not asked yet, those with the same arrays together."""
        self._keys = {node.node_id: node.public_key.hex() for node in grid.get_nodes()}
        self.roster.settle(self._keys)
        unknown = [n for n in self._keys if self.roster.unknown(n) and not self.ledger.tried(n, IDENTIFY)]
        groups: dict[str, list[Client]] = {}
        for node in [] if identify_only else self._keys:
            client = self.roster.at(node)
            if client is not None and not self.ledger.tried(node, TRAIN):
                groups.setdefault(client.base, []).append(client)
        ttl = max(1.0, self.ledger.deadline - time.monotonic())
        if unknown:
            yield [self._identify(node, ttl) for node in unknown]
        for clients in groups.values():
            yield [self._train(client, ttl) for client in clients]

    def _identify(self, node: int, ttl: float) -> Message:
        order = Order(IDENTIFY)
        content = RecordDict({RECORD: order.record()})
        return self.ledger.sent(Message(content, node, MessageType.TRAIN, ttl=ttl), order, None)

    def _train(self, client: Client, ttl: float) -> Message:
        if not self.keeps_base:
            client.version, client.base = self.round, self.bases.latest
        order = self.order(
            client,
            first=client.version,
            base=client.base,
            train_rounds=self.train_rounds,
            budget=ttl,
            arrays_key=self.arrayrecord_key,
            config_key=self.configrecord_key,
            keep_progress=self.keeps_base,
        )
        config, record = self.config.copy(), order.record()
        config[SERVER_ROUND] = self.round + 1
        record.update({**self.configs.since(client.version, self.round), **self.failures.order(client.name)})
        content = RecordDict(
            {
                self.arrayrecord_key: self.bases.get(client.base),
                self.configrecord_key: config,
                RECORD: record,
                **self.extras(client),
            }
        )
        return self.ledger.sent(Message(content, client.node, MessageType.TRAIN, ttl=ttl), order, client)

    def receive(self, message: Message) -> None:
        """Count one reply, or refuse it and say why in the log."""
        who = f"node {message.metadata.src_node_id}"
        try:
            asked = self.ledger.match(message)
            who = asked.client.name if asked.client else f"node {asked.metadata.dst_node_id}"
            if message.has_error():
                self.ledger.failed.append((who, first_line(message.error.reason)))
                self.ledger.crashed(asked, message.error)
            elif asked.client is None:
                self._meet(message)
            else:
                self.ledger.take(asked, message, self.layout)
                reply = self.ledger.replies.get(who)
                if reply is not None:
                    self._accept(reply)
        except Refused as refused:
            self._refuse(who, str(refused))

    def introduces(self, message: Message) -> bool:
        """Whether ``message`` says who lives in a node."""
        asked = self.ledger.find(message)
        return asked is not None and asked.client is None

    def _accept(self, reply: Reply) -> None:
        try:
            self.check(reply)
            if self.remembers and not sane(reply.arrays):
                raise Refused(NOT_FINITE)
        except Refused:
            del self.ledger.replies[reply.client.name]
            raise

    def _refuse(self, who: str, why: str) -> None:
        self.ledger.refuse(who, why)
        log.warning("round %d: reply of %s refused: %s", self.round + 1, who, why)

    def _meet(self, message: Message) -> None:
        record = message.content.get(RECORD)
        name = record.get("client-id") if isinstance(record, ConfigRecord) else None
        node = message.metadata.src_node_id
        if not isinstance(name, str):
            raise Refused("does not say who it is: the client app needs @app.train(mods=[fedpbc_mod])")
        if not (name == "" or name.isprintable()) or len(name.encode(errors="replace")) > 256:
            raise Refused(f"calls itself {shorten(name)}: a client-id is up to 256 printable bytes")
        key = self._keys.get(node, "") if self.pin_names else ""
        client, new = self.roster.meet(node, name, key)
        if client is not None and new:
            self.welcome(client)

    def welcome(self, client: Client) -> None:
        """A client that was never met: where it goes on from. A client of the paper is there from round 0."""
        client.version, client.base = 0, self.first_base

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Close the round: x^(t+1) from the replies that count, then checkpoint and logs.

        (None, metrics) when the model stays as it is.
        """
        for message in replies:
            self.receive(message)
        self.ledger.close()
        new, heard = self._form()
        if self.learns():
            self.keep(self.round, heard)
        if new is not None:
            self.flat = new
            self.bases.add(self.layout.record(new))
            self.flat = self.layout.flatten(self.bases.model(self.bases.latest))
        for reply in heard:
            reply.client.version, reply.client.base = self.round + 1, self.bases.latest
        self._note_failures(heard)
        self.bases.retain(self._needed())
        self.configs.retain(self._oldest())
        self.heard = [reply.client.name for reply in heard]
        named = [(reply.client.name, reply.content) for reply in heard]
        metrics, left_out = average_metrics(named, self.train_metrics_aggr_fn, self.weighted_by_key)
        self._say_why(left_out)
        self._write(heard, metrics)
        self.done = self.round + 1
        self._save()
        return None if new is None else self.arrays, metrics

    def _say_why(self, left_out: LeftOut) -> None:
        """Why replies of this round, or their metrics, do not count; refused ones were said when they came."""
        self.reasons.say(self.round + 1, "no model from", self.ledger.failed)
        self.reasons.say(self.round + 1, "left out are the metrics of", left_out)
        self.reasons.count(self.ledger.refused)
        waiting = "was still catching up when the round closed"
        self.reasons.count((name, waiting) for name in self.ledger.unfinished)

    def _form(self) -> tuple[Model | None, list[Reply]]:
        """(x^(t+1), the replies it is made of): NaN is looked for in the result first, then for who sent it."""
        while True:
            replies = sorted(self.ledger.replies.values(), key=lambda reply: reply.client.name)
            if not self.learns():
                return None, replies
            new = self.rule(self.round, replies)
            if new is None or (sane(new) and (not self.layout.narrows or sane(self.layout.restore(new)))):
                return new, replies
            bad = [reply for reply in replies if not sane(reply.arrays)]
            for reply in bad or replies:
                del self.ledger.replies[reply.client.name]
                self._refuse(reply.client.name, NOT_FINITE if bad else "the new model would not be finite")
            if not replies:
                log.warning("round %d: the new model would not be finite; it stays as it was", self.round + 1)
                return None, []

    def _needed(self) -> set[str]:
        """The models that somebody goes on from; x^0 as long as a client may come that was never met."""
        if not self.keeps_base:
            return set()
        bases = {client.base for client in self.roster.clients.values()}
        return bases if self.roster.is_full() or not self.from_start else bases | {self.first_base}

    def _oldest(self) -> int:
        """The first round that somebody may still replay."""
        if not self.keeps_base:
            return self.round + 1
        versions = [client.version for client in self.roster.clients.values()]
        return min(versions if self.roster.is_full() or not self.from_start else [0, *versions], default=self.round + 1)

    def _note_failures(self, heard: list[Reply]) -> None:
        """Count the failures of this round; who failed too often in the same way is named, and given up on if asked."""
        self.failures.left_out = {}
        for reply in heard:
            self.failures.heard(reply.client.name)
        for name, failure in self.ledger.failures.items():
            trouble = None if name in self.ledger.replies else self.failures.note(name, failure)
            if trouble is not None:
                log.error(trouble.describe(name, self.give_up(self.roster.clients[name], trouble)))

    def _write(self, heard: list[Reply], metrics: MetricRecord | None) -> None:
        """One line for the log, one each for the journals."""
        more = {"left_out": self.failures.left_out, "bases": len(self.bases.names())}
        self.summary_line = self.ledger.summary(len(self.roster)) | more
        log.info("round %d: %s", self.round + 1, describe(self.summary_line))
        self.logs.round(self.summary_line, [reply.client.name for reply in heard], metrics)

    def summary(self) -> None:
        """Say in the log what will be done."""
        log.info("\t├──> Rounds close after %g s; every client is asked every round", self.round_deadline)
        log.info("\t├──> Wait for %d clients at the start", self.min_available_nodes)
        log.info("\t└──> %s", f"Kept in {self.directory}" if self.directory else "Nothing is kept: no directory given")
