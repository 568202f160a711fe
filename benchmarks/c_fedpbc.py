"""FedPBC as a C kernel, compiled here with ``cc`` for this machine; it trains and aggregates, and does nothing else."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy_fedpbc import NumpyFedPBC
from setting import Setting

SOURCE = Path(__file__).with_name("c_fedpbc.c")
FLAGS = ["-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC"]
FILL = 64
"""Features are filled up to a multiple of this: whole vectors, however long they are, and whole groups of them."""


class NoCompiler(Exception):
    """There is no ``cc``, or it does not take these flags."""


class CFedPBC:
    """All models in one array [m, classes, width], features filled up to whole vectors."""

    def __init__(self, setting: Setting, seed: int = 0, threads: int = 1) -> None:
        self.setting, self.seed, self.threads, self.round = setting, seed, threads, 0
        m, classes = setting.num_clients, setting.num_classes
        width = -(-setting.num_features // FILL) * FILL
        self.clients, self.server = _aligned((m, classes, width)), _aligned((classes, width))
        self._features = _aligned((len(setting.train.labels), width))
        self._features[:, : setting.num_features] = setting.train.features
        self._labels = setting.train.labels.astype(np.int32)
        self._prob = np.ascontiguousarray(setting.prob, np.float32)
        self._evaluator = NumpyFedPBC(setting)
        self._rounds = _compiled(setting, width)

    def advance(self, rounds: int) -> list[dict[str, float]]:
        """``rounds`` more rounds, and nothing else."""
        s, first = self.setting, self.round
        self.round += rounds
        arrays = (self.clients, self.server, self._features, self._labels, s.offsets, s.sizes, self._prob)
        self._rounds(
            s.num_clients, *(a.ctypes.data for a in arrays), len(s.prob), first, self.round, s.local_steps,
            s.learning_rate, self.seed, self.threads,
        )  # fmt: skip
        return []

    def advance_and_evaluate(self, rounds: int) -> list[dict[str, float]]:
        """For the check: a row of metrics every ``eval_every``, by the NumPy rival's evaluation."""
        rows = []
        for _ in range(rounds // self.setting.eval_every):
            self.advance(self.setting.eval_every)
            clients = self.clients[:, :, : self.setting.num_features]
            mean = clients.mean(axis=0)
            distance = float(((clients - mean) ** 2).sum(axis=(1, 2)).mean())
            rows.append(self.evaluate(self.server[:, : mean.shape[1]], mean) | {"consensus_distance": distance})
        return rows

    def evaluate(self, server: np.ndarray, mean: np.ndarray) -> dict[str, float]:
        """The metrics of two models, by NumPy."""
        return self._evaluator.evaluate(server, mean)


def _compiled(setting: Setting, width: int) -> Any:
    """The kernel for these sizes. Raises NoCompiler."""
    sizes = {"CLASSES": setting.num_classes, "FEATURES": setting.num_features, "BATCH": setting.batch_size}
    if setting.num_classes % 10 or setting.batch_size != 32:
        raise NoCompiler(f"written for multiples of 10 classes and 32 samples, not {sizes}")
    defines = [f"-D{name}={value}" for name, value in {**sizes, "WIDTH": width}.items()]
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernel.so"
        try:
            subprocess.run(["cc", *FLAGS, *defines, str(SOURCE), "-o", str(library)], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NoCompiler(f"cc: {error}") from error
        function = ctypes.CDLL(str(library)).fedpbc_rounds
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    function.argtypes = [
        number,
        *7 * [pointer],
        *3 * [number],
        ctypes.c_int,
        ctypes.c_float,
        ctypes.c_uint64,
        ctypes.c_int,
    ]
    function.restype = None
    return function


def _aligned(shape: tuple[int, ...]) -> np.ndarray:
    """Zeros, float32, at an address that is a multiple of 64."""
    size = int(np.prod(shape)) * 4
    buffer = np.zeros(size + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(np.float32).reshape(shape)
