"""The client: quadratics F_i(x) = a_i ||x - u_i||^2 / 2 with exact gradients, computing for as long as it is told to.

The a_i differ, so that every x^t depends on who was heard before; with equal ones the mean of all models would not.
"""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpbc.flower import fedpbc_mod

app = ClientApp()
FUTURE = 10**12


def lie(message, context, call_next):
    """While there is a file ``lie-NAME``, the answer is of a round of the future."""
    reply = call_next(message, context)
    lying = (Path(context.run_config["marks"]) / f"lie-{context.node_config['client-id']}").exists()
    if lying and reply.has_content() and "answer" in reply.content["fedpbc"]:
        said = json.loads(reply.content["fedpbc"]["answer"])
        reply.content["fedpbc"] = ConfigRecord({"answer": json.dumps(said | {"round": FUTURE})})
    return reply


@app.train(mods=[lie, fedpbc_mod])
def train(message, context):
    name, config = context.node_config["client-id"], context.run_config
    i = int(name.removeprefix("client-"))
    center = np.random.default_rng(i).normal(i, 1.0, 5)
    (x,) = message.content["arrays"].to_numpy_ndarrays()
    eta = config["learning-rate"] / ((message.content["config"]["server-round"] - 1) / 5 + 1) ** 0.5
    for _ in range(config["local-steps"]):
        x = x - eta * (1 + i / 2) * (x - center)
    compute_while_held(Path(config["marks"]), name, context.run_id)
    return Message(
        RecordDict({"arrays": ArrayRecord([x]), "metrics": MetricRecord({"num-examples": 1})}), reply_to=message
    )


def compute_while_held(marks, name, run_id):
    """Go on computing while there is a file ``hold-NAME``; ``computing-NAME`` then says in which run."""
    while (marks / f"hold-{name}").exists():
        (marks / f"computing-{name}").write_text(str(run_id))
        time.sleep(0.05)
