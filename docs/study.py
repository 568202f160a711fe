"""The study of docs/comparison.md: which experiments, as the files in experiments/study/, and what they were made of.

Usage: python docs/study.py writes the files anew. Each is an experiment as anybody may write one, with a table [tune]:
`fedpbc tune FILE`, then `fedpbc run` of the tuned.toml that it leaves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

FILES = Path(__file__).resolve().parents[1] / "experiments" / "study"

Table = dict[str, Any]

METHODS: dict[str, Table] = {
    "FedAvg": {"name": "fedavg"},
    "FedAvg, all": {"name": "fedavg_all"},
    "FedAvg, known p": {"name": "fedavg_known"},
    "FedProx": {"name": "fedprox"},
    "Amplified FedAvg": {"name": "amplified_fedavg"},
    "FedAU": {"name": "fedau"},
    "debiased FedAvg": {"name": "debiased_fedavg"},
    "F3AST": {"name": "f3ast"},
    "FedAWE": {"name": "fedawe"},
    "MIFA": {"name": "mifa"},
    "FedVARP": {"name": "fedvarp"},
    "FedStale": {"name": "fedstale"},
    "AREA": {"name": "area"},
    "FOCUS": {"name": "focus"},
    "SCAFFOLD": {"name": "scaffold"},
    "FedFade": {"name": "fedfade"},
    "FedFade, black box": {"name": "fedfade", "apply": "around"},
    "FedPBC": {"name": "fedpbc"},
    "corrected FedPBC": {"name": "fedpbc_corrected", "correction": "light", "apply": "around"},
}
"""One entry per method; where the literature leaves a choice that changes who may use it, one per choice."""
MIXING = ("FedPBC", "corrected FedPBC")
"""Methods for which clients that nobody hears may train on: also run with everybody computing."""
ORACLES = ("FedAvg, known p",)
"""Methods that are told what nobody knows."""
OURS = ("FedFade", "FedFade, black box", "corrected FedPBC")

OWN_GRIDS: Table = {
    "fedavg": {"server": [1.0]},
    "fedavg_all": {"server": [1.0, 2.0]},
    "fedavg_known": {"server": [0.5, 1.0]},
    "fedprox": {"mu": [0.01, 0.1], "server": [1.0]},
    "amplified_fedavg": {"gamma": [1.2, 2.0], "server": [1.0]},
    "fedau": {"cutoff": [10, 50], "server": [1.0]},
    "debiased_fedavg": {"server": [0.5, 1.0]},
    "f3ast": {"beta": [0.01, 0.1], "server": [1.0]},
    "fedawe": {"norm_limit": [0.0, 0.5], "server_learning_rate": [1.0]},
    "mifa": {},
    "fedvarp": {"server_learning_rate": [0.5, 1.0]},
    "fedstale": {"beta": [0.2, 0.8], "server_learning_rate": [1.0]},
    "area": {},
    "focus": {"server_learning_rate": [0.02, 0.1]},
    "scaffold": {"server_learning_rate": [0.5, 1.0]},
    "fedfade": {"fading": ["learnt"], "cutoff": [10, 50], "server": [1.0]},
    "fedpbc": {},
    "fedpbc_corrected": {},
}
"""At most two values of one option of each method, beside the learning rates: every grid has 6 or 12 settings."""

CERTAIN, REFERENCE, LOST = "p = 1", ".1 / .9", "state lost"


def links(trait: str, rounds: int) -> list[Table]:
    """Eleven link settings; in all but p = 1, fading and LEO who is heard depends on what is learnt."""
    prob = {"name": "by_trait", "trait": trait, "low": 0.1, "high": 0.9}
    rates = {"name": "spread", "low": 0.04, "high": 0.98, "trait": trait}
    day = {"name": "diurnal", "round_seconds": 1800.0}
    absence = {"name": "absence", "first": rounds // 2, "rounds": 200, "share": 0.1}
    return [
        {"label": CERTAIN, "name": "bernoulli", "prob": 1.0},
        {"label": REFERENCE, "name": "bernoulli", "prob": prob},
        {"label": "sine", "name": "bernoulli", "prob": prob, "varying": {"name": "sine"}},
        {"label": "Markov .9", "name": "markov", "prob": prob, "memory": 0.9},
        {"label": "Markov .97", "name": "markov", "prob": prob, "memory": 0.97},
        {"label": "cyclic", "name": "cyclic", "prob": prob, "period": 20},
        {"label": "fading", "name": "fading"},
        {
            "label": "diurnal",
            "name": "bernoulli",
            "prob": prob,
            "varying": day,
        },
        {"label": "LEO", "name": "leo", "satellites": 2},
        {"label": "absent", "name": "bernoulli", "prob": prob, "varying": absence},
        {"label": "spot", "name": "markov", "prob": rates, "memory": {"name": "spread", "low": 0.5, "high": 0.93}},
    ]


def link_labels() -> list[str]:
    """Of the eleven, in their order."""
    return [setting["label"] for setting in links("", 1)]


SMALL: Table = {
    "rounds": 600,
    "local_steps": 5,
    "seeds": [0, 1, 2, 3, 4],
    "eval_every": 20,
    "metrics": ["server", "clients"],
}
TUNING: Table = {"seeds": [100], "budget": 5, "lengths": 3, "halving": 3}
PROBLEMS: dict[str, tuple[str, Table, Table]] = {
    "digits": (
        "mean_label",
        {
            **SMALL,
            "batch_size": 16,
            "learning_rate": 0.1,
            "problem": {
                "name": "classification",
                "model": {"name": "mlp", "hidden": [32]},
                "data": {"name": "digits", "partition": {"name": "dirichlet", "num_clients": 50, "alpha": 0.1}},
            },
        },
        {**TUNING, "learning_rate": [0.03, 0.1, 0.3, (0.1, 60), (0.3, 60), (1.0, 60)]},
    ),
    "synthetic": (
        "mean_label",
        {**SMALL, "learning_rate": 0.03, "problem": {"name": "synthetic", "num_clients": 50}},
        {**TUNING, "learning_rate": [0.01, 0.03, 0.1, (0.03, 60), (0.1, 60), (0.3, 60)]},
    ),
    "quadratic": (
        "center_mean",
        {
            **SMALL,
            "learning_rate": 0.05,
            "precision": "float64",
            "problem": {"name": "quadratic", "num_clients": 50, "dim": 20, "condition": 10.0},
        },
        {**TUNING, "metric": "distance", "learning_rate": [0.003, 0.01, 0.03, (0.01, 60), (0.03, 60), (0.1, 60)]},
    ),
}
"""Trait that links go by, the experiment without links and methods, and [tune]; a pair is (initial, period)."""

NETWORK: Table = {
    "rounds": 100,
    "local_steps": 5,
    "batch_size": 8,
    "learning_rate": 0.1,
    "seeds": [0, 1, 2],
    "eval_every": 10,
    "metrics": ["server", "clients"],
}
NETWORK_TUNING: Table = {
    "seeds": [100],
    "budget": 4,
    "lengths": 1,
    "learning_rate": [0.01, 0.03, 0.1, (0.1, 25)],
}
NETWORK_GRIDS: Table = {
    "fedavg": {"server": [1.0]},
    "fedau": {"cutoff": [50], "server": [1.0]},
    "fedvarp": {"server_learning_rate": [1.0]},
    "fedstale": {"beta": [0.2], "server_learning_rate": [1.0]},
    "scaffold": {"server_learning_rate": [1.0]},
    "fedfade": {"fading": ["learnt"], "cutoff": [50], "server": [1.0]},
}
"""Of each method what was chosen most often on digits."""
NETWORK_METHODS = ("FedAvg", "FedAU", "MIFA", "FedVARP", "FedStale", "SCAFFOLD", "FedFade", "FedPBC")
NETWORK_LINKS = (".1 / .9", "Markov .9", "cyclic", "LEO", "spot")
NETWORK_SIZES = (20, 100)
"""Numbers of clients of the convolutional network on images of MNIST."""


SWEPT = ("FedAvg", "FedAU", "FedAWE", "MIFA", "SCAFFOLD", "FedFade", "FedPBC")
RATES = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0)
"""Of the curves of sensitivity."""


def tables() -> dict[str, Table]:
    """Every experiment of the study as a table of TOML, by the name of its file."""
    found = {}
    for problem, (trait, common, tuning) in PROBLEMS.items():
        settings = links(trait, common["rounds"])
        lost = {"label": LOST, **{k: v for k, v in settings[1].items() if k != "label"}}
        some = {label: METHODS[label] for label in MIXING}
        found[problem] = _table(problem, common, tuning, settings, METHODS, "active")
        found[f"{problem}_everybody"] = _table(f"{problem}_everybody", common, tuning, settings, some, "all")
        half = {**common, "state_loss": {"round": common["rounds"] // 2, "share": 0.1}}
        found[f"{problem}_lost"] = _table(f"{problem}_lost", half, tuning, [lost], METHODS, "active")
    found["digits_rates"] = _rates()
    return found | {f"mnist_{size}": _network(size) for size in NETWORK_SIZES}


def _network(size: int) -> Table:
    """Some methods and links with a convolutional network; nothing but the learning rate is tuned."""
    data = {"name": "mnist_5k", "partition": {"name": "dirichlet", "num_clients": size, "alpha": 0.1}}
    model = {"name": "cnn", "channels": [8, 16], "hidden": [32]}
    problem = {"name": "classification", "model": model, "data": data}
    settings = [link for link in links("mean_label", NETWORK["rounds"]) if link["label"] in NETWORK_LINKS]
    some = {label: METHODS[label] for label in NETWORK_METHODS}
    common = {**NETWORK, "problem": problem}
    return _table(f"mnist_{size}", common, NETWORK_TUNING, settings, some, "active", NETWORK_GRIDS)


def _rates() -> Table:
    """Some methods over the learning rate, with defaults for all else; nothing is chosen, so nothing is tuned."""
    trait, common, _ = PROBLEMS["digits"]
    some = [link for link in links(trait, common["rounds"]) if link["label"] in (REFERENCE, "Markov .97")]
    swept = {f"{a}, eta {rate}": {**METHODS[a], "learning_rate": rate} for a in SWEPT for rate in RATES}
    common = {**common, "seeds": [0, 1, 2], "eval_every": 100, "metrics": ["server"]}
    table = _table("digits_rates", common, {"learning_rate": []}, some, swept, "active")
    del table["tune"]
    return table


def _table(
    name: str,
    common: Table,
    tuning: Table,
    links: list[Table],
    methods: dict[str, Table],
    compute: str,
    grids: Table = OWN_GRIDS,
) -> Table:
    rates = [_rate(rate) for rate in tuning["learning_rate"]]
    names = {method["name"] for method in methods.values()}
    grid = {method: own for method, own in grids.items() if method in names and own}
    plain = {key: value for key, value in common.items() if not isinstance(value, dict)}
    nested = {key: value for key, value in common.items() if isinstance(value, dict)}
    algorithms = [{"label": label, **method} for label, method in methods.items()]
    tune = {**tuning, "learning_rate": rates, "grid": grid}
    return {
        "name": name, **plain, "compute": [compute], **nested, "links": links, "algorithms": algorithms, "tune": tune,
    }  # fmt: skip


def _rate(rate: float | tuple[float, float]) -> float | Table:
    if isinstance(rate, tuple):
        return {"name": "inverse_sqrt", "initial": rate[0], "period": rate[1]}
    return rate


def text(name: str, table: Table) -> str:
    """The file of a table."""
    file = f"experiments/study/{name}.toml"
    how = (
        [f"fedpbc tune {file}", f"fedpbc run runs/{name}.tuning/tuned.toml"]
        if "tune" in table
        else [f"fedpbc run {file}"]
    )
    head = ["# Of the study in docs/comparison.md; written by docs/study.py.", *(f"#     {line}" for line in how)]
    return "\n".join([*head, "", tomli_w.dumps(table)])


def main() -> None:
    """Write every file."""
    FILES.mkdir(parents=True, exist_ok=True)
    for name, table in tables().items():
        (FILES / f"{name}.toml").write_text(text(name, table), encoding="utf-8")
        print(FILES / f"{name}.toml")


if __name__ == "__main__":
    main()
