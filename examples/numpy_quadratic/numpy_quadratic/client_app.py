"""The client: an ordinary train function, and two mods."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpbc.flower import drift_correction, drop_by_trace, fedpbc_mod
from numpy_quadratic.task import learning_rate, loss
from numpy_quadratic.task import train as train_locally

app = ClientApp()


@app.train(mods=[drop_by_trace(), fedpbc_mod])
def train(message: Message, context: Context) -> Message:
    """Local steps from the model of the message; the same for the same (model, round, client)."""
    client, config = int(context.node_config["partition-id"]), context.run_config
    (x,) = message.content["arrays"].to_numpy_ndarrays()
    eta = learning_rate(float(config["learning-rate"]), message.content["config"]["server-round"])
    x = train_locally(x, client, eta, int(config["local-steps"]), drift_correction(message))
    metrics = MetricRecord({"num-examples": 1, "loss": loss(x, client)})
    return Message(RecordDict({"arrays": ArrayRecord([x]), "metrics": metrics}), reply_to=message)
