"""The client: an ordinary train function, and two mods."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpbc.flower import drift_correction, drop_by_trace, fedpbc_mod
from sklearn_digits.task import learning_rate, load_client
from sklearn_digits.task import train as train_locally

app = ClientApp()


@app.train(mods=[drop_by_trace(), fedpbc_mod])
def train(message: Message, context: Context) -> Message:
    """Local SGD from the model of the message; the same for the same (model, round, client)."""
    client, config = int(context.node_config["partition-id"]), context.run_config
    server_round = message.content["config"]["server-round"]
    data = load_client(client, int(config["num-clients"]))
    model, loss = train_locally(
        message.content["arrays"].to_numpy_ndarrays(),
        data,
        batches=np.random.default_rng([client, server_round]),
        eta=learning_rate(float(config["learning-rate"]), server_round),
        steps=int(config["local-steps"]),
        drift=drift_correction(message),
    )
    metrics = MetricRecord({"num-examples": len(data[1]), "loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(model), "metrics": metrics}), reply_to=message)
