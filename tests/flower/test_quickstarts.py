"""Apps in the form of Flower's quickstarts (NumPy, scikit-learn, PyTorch): nothing but the two lines changes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedpbc.flower import InProcessGrid

M, ROUNDS = 4, 6

CLIENT = """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
{imports}
app = ClientApp()

@app.train()
def train(msg, context):
    i, t = context.node_config["partition-id"], msg.content["config"]["server-round"]
    X, y = data(i)
{train}
    metrics = MetricRecord({{"num-examples": len(X)}})
    return Message(content=RecordDict({{"arrays": arrays, "metrics": metrics}}), reply_to=msg)

@app.evaluate()
def evaluate(msg, context):
    X, y = data(context.node_config["partition-id"])
    first = float(msg.content["arrays"].to_numpy_ndarrays()[0].flat[0])
    metrics = MetricRecord({{"num-examples": len(X), "first": first}})
    return Message(content=RecordDict({{"metrics": metrics}}), reply_to=msg)
"""
SERVER = """
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
{imports}
app = ServerApp()

@app.main()
def main(grid, context):
    strategy = FedAvg(fraction_evaluate=1.0)
    result = strategy.start(
        grid=grid,
        initial_arrays={initial},
        train_config=ConfigRecord({{"lr": 0.1}}),
        num_rounds=context.run_config["rounds"],
    )
    final.extend(result.arrays.to_numpy_ndarrays())
"""
FRAMEWORKS = {
    "numpy": {
        "imports": "import numpy as np",
        "initial": "ArrayRecord([np.zeros((3, 2)), np.zeros(2)])",
        "train": """
    w, b = msg.content["arrays"].to_numpy_ndarrays()
    rows = np.random.default_rng([i, t]).choice(len(X), 8)
    error = X[rows] @ w + b - np.eye(2)[y[rows]]
    arrays = ArrayRecord([w - msg.content["config"]["lr"] * X[rows].T @ error, b - error.mean(axis=0)])
""",
    },
    "sklearn": {
        "imports": "import warnings\nimport numpy as np\nfrom sklearn.linear_model import LogisticRegression",
        "initial": "ArrayRecord([np.zeros((1, 3)), np.zeros(1)])",
        "train": """
    model = LogisticRegression(max_iter=1, warm_start=True, solver="saga", random_state=1000 * i + t)
    model.classes_ = np.arange(2)
    model.coef_, model.intercept_ = msg.content["arrays"].to_numpy_ndarrays()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    arrays = ArrayRecord([model.coef_, model.intercept_])
""",
    },
    "torch": {
        "imports": "import torch",
        "initial": "ArrayRecord({'weight': torch.zeros(2, 3).double(), 'bias': torch.zeros(2).double()})",
        "train": """
    model = torch.nn.Linear(3, 2).double()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    torch.manual_seed(1000 * i + t)
    rows = torch.randint(len(X), (8,))
    loss = torch.nn.functional.cross_entropy(model(torch.tensor(X)[rows]), torch.tensor(y)[rows])
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=msg.content["config"]["lr"]).step()
    arrays = ArrayRecord(model.state_dict())
""",
    },
}


def data(i: int) -> tuple[np.ndarray, np.ndarray]:
    """10 (i + 1) samples."""
    rng = np.random.default_rng(i)
    y = np.arange(10 * (i + 1)) % 2
    return rng.normal(size=(len(y), 3)) + y[:, None], y


def apps(framework: str, strategy: str = "") -> tuple[ClientApp, ServerApp, list[np.ndarray]]:
    """As it is, or with two lines changed and what they import."""
    client, server = CLIENT.format(**FRAMEWORKS[framework]), SERVER.format(**FRAMEWORKS[framework])
    if strategy:
        client = _changed(client, "@app.train()", "@app.train(mods=[fedpbc_mod])")
        client = f"from fedpbc.flower import fedpbc_mod\n{client}"
        server = _changed(server, "FedAvg(fraction_evaluate=1.0)", strategy)
        server = _changed(server, "from flwr.serverapp.strategy import FedAvg", "from fedpbc.flower import *")
    final: list[np.ndarray] = []
    spaces: list[dict[str, Any]] = [{"data": data}, {"final": final}]
    for text, space in zip((client, server), spaces, strict=True):
        exec(compile(text, framework, "exec"), space)
    return spaces[0]["app"], spaces[1]["app"], final


def _changed(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


def run(parts: tuple[ClientApp, ServerApp, list[np.ndarray]], **links: Any) -> list[np.ndarray]:
    client, server, final = parts
    grid = InProcessGrid(client, [str(i) for i in range(M)], **links)
    server(grid, Context(1, 1, {}, RecordDict(), {"rounds": ROUNDS}))
    return final


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    pytest.importorskip(request.param)
    return request.param


def test_two_lines_and_the_models_are_flowers(framework):
    """Where everybody is heard, FedAvg by samples is Flower's."""
    stock = run(apps(framework))
    ours = run(apps(framework, f'FedAvg(round_deadline=60, client_weights="samples", min_available_nodes={M})'))
    for a, b in zip(stock, ours, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", ["FedPBC", "FedAU", "FedVARP"])
def test_two_lines_and_links_may_fail(framework, strategy, tmp_path):
    active = np.random.default_rng(5).random((ROUNDS, M)) < 0.6
    active[-1] = True
    options = f"round_deadline=60, num_clients={M}, min_available_nodes={M}, directory={str(tmp_path)!r}"
    final = run(apps(framework, f"{strategy}({options})"), uplink=lambda t, name: bool(active[t, int(name)]))
    assert all(np.isfinite(array).all() for array in final)
    assert sum(np.abs(array).sum() for array in final) > 0
    heard = [json.loads(line)["clients"] for line in (tmp_path / "participation.jsonl").read_text().splitlines()]
    assert heard == [[str(i) for i in np.flatnonzero(row)] for row in active]
    evaluated = [json.loads(line)["clients"] for line in (tmp_path / "evaluation.jsonl").read_text().splitlines()]
    assert evaluated[-1]["first"] == pytest.approx(float(final[0].flat[0]), rel=1e-6)
