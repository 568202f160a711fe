"""Apps in the form of Flower's quickstarts (NumPy, scikit-learn, PyTorch, Hugging Face): two lines change, no more."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from ray_simulation import superlink
from waiting import PATIENCE

from fedpbc.flower import InProcessGrid
from fedpbc.io.whole import read_arrays

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
    "transformers": {  # a random network: nothing is downloaded
        "imports": """
import numpy as np, torch
from transformers import AutoModelForSequenceClassification, BertConfig

def network():
    sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    config = BertConfig(vocab_size=8, max_position_embeddings=4, num_labels=2, **sizes)
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(config).double()
""",
        "initial": "ArrayRecord(network().state_dict())",
        "train": """
    model = network().train()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict(), strict=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1000 * i + t)
    words = torch.tensor(np.digitize(X, [-1, 0, 1, 2]))
    samples = torch.utils.data.TensorDataset(words, torch.tensor(y))
    for ids, labels in torch.utils.data.DataLoader(samples, batch_size=8, shuffle=True):
        model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    arrays = ArrayRecord(model.state_dict())
""",
    },
}


def data(i: int) -> tuple[np.ndarray, np.ndarray]:
    """10 (i + 1) samples."""
    rng = np.random.default_rng(i)
    y = np.arange(10 * (i + 1)) % 2
    return rng.normal(size=(len(y), 3)) + y[:, None], y


def texts(framework: str, strategy: str = "", mods: str = "fedpbc_mod") -> tuple[str, str]:
    """Client and server as they are, or with two lines changed and what they import."""
    client, server = CLIENT.format(**FRAMEWORKS[framework]), SERVER.format(**FRAMEWORKS[framework])
    if strategy:
        client = _changed(client, "@app.train()", f"@app.train(mods=[{mods}])")
        client = f"from fedpbc.flower import drop_by_trace, fedpbc_mod\n{client}"
        server = _changed(server, "FedAvg(fraction_evaluate=1.0)", strategy)
        server = _changed(server, "from flwr.serverapp.strategy import FedAvg", "from fedpbc.flower import *")
    return client, server


def apps(framework: str, strategy: str = "") -> tuple[ClientApp, ServerApp, list[np.ndarray]]:
    final: list[np.ndarray] = []
    spaces: list[dict[str, Any]] = [{"data": data}, {"final": final}]
    for text, space in zip(texts(framework, strategy), spaces, strict=True):
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


@pytest.fixture(params=[*list(FRAMEWORKS)[:-1], pytest.param("transformers", marks=pytest.mark.release)])
def framework(request):
    pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    return request.param


def test_two_lines_and_the_models_are_flowers(framework):
    """Where everybody is heard, FedAvg by samples is Flower's."""
    stock = run(apps(framework))
    ours = run(apps(framework, f'FedAvg(round_deadline=60, client_weights="samples", min_available_nodes={M})'))
    for a, b in zip(stock, ours, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def links() -> np.ndarray:
    """[t, i]; in the last round everybody is heard."""
    active = np.random.default_rng(5).random((ROUNDS, M)) < 0.6
    active[-1] = True
    return active


@pytest.mark.parametrize("strategy", ["FedPBC", "FedAU", "FedVARP"])
def test_two_lines_and_links_may_fail(framework, strategy, tmp_path):
    active = links()
    options = f"round_deadline=60, num_clients={M}, min_available_nodes={M}, directory={str(tmp_path)!r}"
    final = run(apps(framework, f"{strategy}({options})"), uplink=lambda t, name: bool(active[t, int(name)]))
    assert all(np.isfinite(array).all() for array in final)
    assert sum(np.abs(array).sum() for array in final) > 0
    heard = [json.loads(line)["clients"] for line in (tmp_path / "participation.jsonl").read_text().splitlines()]
    assert heard == [[str(i) for i in np.flatnonzero(row)] for row in active]
    evaluated = [json.loads(line)["clients"] for line in (tmp_path / "evaluation.jsonl").read_text().splitlines()]
    assert evaluated[-1]["first"] == pytest.approx(float(final[0].flat[0]), rel=1e-6)


PROJECT = """
[project]
name = "quickstart"
version = "1.0.0"
[tool.flwr.app]
publisher = "nobody"
[tool.flwr.app.components]
serverapp = "quickstart.server_app:app"
clientapp = "quickstart.client_app:app"
[tool.flwr.app.config]
rounds = 1
"""


def written(folder: Path, framework: str, strategy: str, trace: Path) -> Path:
    """The app as files."""
    client, server = texts(framework, strategy, mods=f"drop_by_trace({str(trace)!r}), fedpbc_mod")
    package = folder / "quickstart"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").touch()
    (package / "client_app.py").write_text(f"from quickstart.data import data\n{client}")
    (package / "server_app.py").write_text(f"final = []\n{server}")
    (package / "data.py").write_text(f"import numpy as np\n\n{inspect.getsource(data)}")
    return folder


@pytest.mark.release
def test_flwr_run_in_flowers_simulation_gives_the_model_of_one_process(framework, tmp_path):
    pytest.importorskip("ray", reason="flwr[simulation] is not installed")
    active, trace, out = links(), tmp_path / "trace.csv", tmp_path / "out"
    rows = [f"{t},{i},{int(up)}" for (t, i), up in np.ndenumerate(active)]
    trace.write_text("\n".join(["round,client,active", *rows]) + "\n")
    common = f"round_deadline={PATIENCE}, num_clients={M}, min_available_nodes={M}"
    app = written(tmp_path / "app", framework, f"FedPBC({common}, directory={str(out)!r})", trace)
    with superlink(tmp_path) as flwr_run:
        flwr_run(app, {"rounds": ROUNDS}, M)
    heard = [json.loads(line)["clients"] for line in (out / "participation.jsonl").read_text().splitlines()]
    assert heard == [[str(i) for i in np.flatnonzero(row)] for row in active]

    expected = run(apps(framework, f"FedPBC({common})"), uplink=lambda t, name: bool(active[t, int(name)]))
    latest = json.loads((out / "checkpoint.json").read_text())["latest"]
    stored = read_arrays(out / "arrays" / f"{latest}.npz", "")
    for i, array in enumerate(expected):
        np.testing.assert_allclose(stored[f"a{i}"], array, rtol=1e-9, atol=1e-12)
