"""FedAvg in FLGo: a benchmark from our arrays, its own task, loaders and loop, one process."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

import common
import flgo
import flgo.algorithm.fedavg as fedavg
from flgo.benchmark.partition import IIDPartitioner
from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe
from flgo.experiment.logger import BasicLogger

HERE = Path(__file__).resolve().parent
CONFIG = f"""
import sys
sys.path.append({str(HERE)!r})
import torch
import common
features, labels = common.data()
train_data = torch.utils.data.TensorDataset(features.flatten(0, 1), labels.flatten())
test_data = torch.utils.data.TensorDataset(features[0], labels[0])
def get_model():
    return common.logistic()
"""


# FLGo 0.4.4 is older than this demand of PyTorch's
FromDatasetPipe.TaskDataset.__getitems__ = lambda self, indices: [self[i] for i in indices]


class Server(fedavg.Server):
    """Ticks at the end of a round."""

    def iterate(self):
        done = super().iterate()
        clock.tick()
        return done


class Algorithm:
    """What FLGo takes for an algorithm."""

    Client, __name__ = fedavg.Client, "fedavg"


Algorithm.Server = Server
clock = common.Clock()
folder = tempfile.mkdtemp()
sys.path.insert(0, folder)
os.chdir(folder)
try:
    Path("config_file.py").write_text(CONFIG)
    name = flgo.gen_benchmark_from_file("ours", "config_file.py", target_path=".", data_type="cv")
    benchmark = importlib.import_module(name)
    del benchmark.visualize  # a picture of every client, which takes minutes
    flgo.gen_task_by_(benchmark, IIDPartitioner(num_clients=common.CLIENTS), "task")
    total = sum(common.rounds())
    option = {
        "num_rounds": total,
        "proportion": common.ACTIVE / common.CLIENTS,
        "num_steps": common.STEPS,
        "batch_size": common.BATCH,
        "learning_rate": common.RATE,
        "learning_rate_decay": 1.0,
        "train_holdout": 0.0,
        "eval_interval": -1,
        "no_log_console": True,
        "no_tqdm": True,
        "sample": "uniform",
        "aggregate": "uniform",
    }
    runner = flgo.init("task", Algorithm, option, Logger=BasicLogger)
    runner.run()
    model = runner.model
finally:
    os.chdir("/")
    shutil.rmtree(folder, ignore_errors=True)
clock.report("flgo", model)
