"""What a strategy costs on the server: whole rounds with tiny clients, and its own work with large models."""

from __future__ import annotations

import logging
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpbc.flower import MIFA, SCAFFOLD, FedAU, FedAvg, FedPBC, FedVARP, InProcessGrid, drift_correction, fedpbc_mod
from fedpbc.flower.server.exchange import gather

LEARNING_RATE = 0.1


def strategies(num_clients: int) -> dict[str, Callable[[], Any]]:
    """Name -> a new strategy of that kind."""
    common = {"round_deadline": 60.0, "min_available_nodes": num_clients, "fraction_evaluate": 0.0}
    known = common | {"num_clients": num_clients}
    return {
        "FedPBC": lambda: FedPBC(**known),
        "FedAvg": lambda: FedAvg(**common),
        "FedAU": lambda: FedAU(**known),
        "MIFA": lambda: MIFA(learning_rate=LEARNING_RATE, **known),
        "FedVARP": lambda: FedVARP(**known),
        "SCAFFOLD": lambda: SCAFFOLD(**known),
    }


def app_that(train: Callable[[np.ndarray, Message], np.ndarray]) -> ClientApp:
    """A client app with one array."""
    app = ClientApp()

    @app.train(mods=[fedpbc_mod])
    def _train(message: Message, context: Context) -> Message:
        model = train(message.content["arrays"]["w"].numpy(), message)
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": ArrayRecord({"w": Array(model)}), "metrics": metrics}), reply_to=message)

    return app


def _step(model: np.ndarray, message: Message) -> np.ndarray:
    return model - LEARNING_RATE * drift_correction(message).gradient(model - 1, LEARNING_RATE)


def round_ms(make: Callable[[], Any], num_clients: int, rounds: int) -> float:
    """Milliseconds a round of tiny clients in this process, half of whose replies get lost."""
    grid = InProcessGrid(app_that(_step), map(str, range(num_clients)), uplink=lambda t, i: (t + int(i)) % 2 == 0)
    strategy = make()
    began = time.perf_counter()
    strategy.start(grid, ArrayRecord({"w": Array(np.zeros(20))}), num_rounds=rounds)
    return 1e3 * (time.perf_counter() - began) / rounds


def server_work(make: Callable[[], Any], num_clients: int, size: int, repetitions: int) -> dict[str, Any]:
    """Medians in ms of the strategy's own work and of sums over the same replies; memory in models beside them.

    The work is all that a strategy does with the replies of a round: checks, x^(t+1), and the model as it is sent.
    """
    models = np.random.default_rng(0).standard_normal((num_clients, size), np.float32)
    grid = InProcessGrid(app_that(lambda model, message: _noisy(message, models)), map(str, range(num_clients)))
    strategy = make()
    gather(strategy.prepare(ArrayRecord({"w": Array(np.zeros(size, np.float32))})), grid)
    strategy.own_loop = True
    own, sums, decoded_sums, cpu = [], [], [], []
    for number in range(1, repetitions + 1):
        messages = list(strategy.configure_train(number, strategy.arrays, ConfigRecord(), grid))
        replies = list(grid.pull_messages(grid.push_messages(messages)))
        del messages
        decoded = [np.frombuffer(reply.content["arrays"]["w"].data, np.float32, offset=128) for reply in replies]
        before = time.process_time()
        sums.append(_timed(lambda decoded=decoded: _sum(decoded)))
        cpu_sum = time.process_time() - before
        decoded_sums.append(_timed(lambda r=replies: _sum(reply.content["arrays"]["w"].numpy() for reply in r)))
        if number == repetitions:  # tracemalloc slows down what it counts: a round of its own
            tracemalloc.start()
            strategy.aggregate_train(number, replies)
            peak = tracemalloc.get_traced_memory()[1] / (4 * size)
            tracemalloc.stop()
        else:
            before = time.process_time()
            own.append(_timed(lambda n=number, r=replies: strategy.aggregate_train(n, r)))
            cpu.append((time.process_time() - before) / cpu_sum)
    ratios = [a / b for a, b in zip(own, sums, strict=False)]
    medians = {name: statistics.median(v) for name, v in (("own", own), ("sum", sums), ("decoded", decoded_sums))}
    return medians | {"ratios": ratios, "cpu_ratios": cpu, "peak_models": peak}


def _noisy(message: Message, models: np.ndarray) -> np.ndarray:
    drift_correction(message).gradient(models[0], LEARNING_RATE)
    return models[int(message.metadata.dst_node_id) % len(models)]


def _sum(arrays: Any) -> np.ndarray:
    total: np.ndarray | None = None
    for array in arrays:
        if total is None:
            total = array.copy()
        else:
            total += array
    assert total is not None
    return total


def _timed(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return 1e3 * (time.perf_counter() - began)


logging.getLogger("flwr").setLevel(logging.WARNING)
