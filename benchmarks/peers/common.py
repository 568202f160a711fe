"""What a peer is given, and what it gives back; runs in the peer's environment, without fedpbc."""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from itertools import pairwise

import numpy as np
import torch

CLIENTS, ACTIVE, STEPS, BATCH, FEATURES, CLASSES = 150, 16, 10, 32, 60, 10
RATE = 0.005


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Features float32[150, 320, 60] and labels [150, 320]: ten minibatches of 32 for each client."""
    with np.load(sys.argv[1]) as file:
        return torch.tensor(file["features"]), torch.tensor(file["labels"], dtype=torch.int64)


def rounds() -> tuple[int, int]:
    """How many are not counted, and how many are."""
    return int(sys.argv[2]), int(sys.argv[3])


def logistic() -> torch.nn.Module:
    """60 to 10 with a bias, started at 0."""
    model = torch.nn.Linear(FEATURES, CLASSES)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return model


class Clock:
    """Ticks after each round."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.ticks: list[tuple[float, float]] = []

    def tick(self) -> None:
        """A round is over."""
        self.ticks.append((time.perf_counter(), time.process_time()))

    def report(self, package: str, model: torch.nn.Module, cpu: bool = True) -> None:
        """The last line of output, as JSON: versions, milliseconds of each counted round, the loss at the end."""
        skipped, counted = rounds()
        ticks = self.ticks[skipped - 1 : skipped + counted]
        if len(ticks) != counted + 1:
            sys.exit(f"{len(self.ticks)} rounds, expected {skipped + counted}")
        wall, used = ([1e3 * (b[i] - a[i]) for a, b in pairwise(ticks)] for i in (0, 1))
        features, labels = data()
        with torch.no_grad():
            outputs = model(features.flatten(0, 1)).flatten(0, -2)
            loss = torch.nn.functional.cross_entropy(outputs, labels.flatten()).item()
        versions = {"torch": version("torch"), package: version(package)}
        print()
        print(json.dumps({"versions": versions, "wall": wall, "cpu": used if cpu else [], "loss": loss}))
