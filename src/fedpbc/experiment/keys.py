"""The keys of an experiment beside its components: the keyword arguments of these functions are the keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from fedpbc.core.schedules import Schedule
from fedpbc.core.schema import NonNegative, NonNegativeInt, Positive, PositiveInt, Range


def figure(
    *,
    metrics: list[str] | None = None,
    models: list[Literal["server", "mean"]] = ["server", "mean"],  # noqa: B006
    from_round: NonNegativeInt = 0,
    spread: Literal["sd", "ci", "range"] = "sd",
) -> dict[str, Any]:
    """What figure and tables of a run show: metric names without their model, which models, the first round drawn.

    spread: over the seeds, of table and band alike: mean and standard deviation, 95 % confidence interval or range.
    """
    return {"metrics": metrics, "models": models, "from_round": from_round, "spread": spread}


def state_loss(*, round: NonNegativeInt, share: Annotated[float, Range(high=1, above=0)] = 0.1) -> dict[str, Any]:
    """A random share of the clients (at least one) loses all it keeps, before the local steps of a round."""
    return {"round": round, "share": share}


def tune(
    *,
    seeds: list[NonNegativeInt] | None = None,
    metric: str = "train_loss",
    per: Literal["links", "all"] = "links",
    budget: PositiveInt = 20,
    lengths: Annotated[int, Range(1, 10)] = 4,
    halving: Annotated[int, Range(2, 10)] = 3,
    learning_rate: list[Schedule] | None = None,
    server: list[Positive] = [0.3, 1.0, 3.0],  # noqa: B006
    grid: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """How ``fedpbc tune`` chooses the settings of every method.

    seeds: other ones than those reported; by default the two that follow the largest of those. metric: of the server's
    model, after the last round, without ``server_``. per: choose for each link setting, or one for all of them, by the
    mean. budget: of each method (and link setting), as so many settings run to the end on every seed. lengths: at most
    so many, T, T/3, T/9, ... for a ``halving`` of 3, of which the best third goes on to the next. learning_rate: by
    default .1, .3, 1, 3 and 10 times the method's own, constant and decaying. server: multiples of the server's step
    size, where a method has one. grid: by label or name of a method, a list of values for each of its options.
    """
    return {
        "seeds": seeds, "metric": metric, "per": per, "budget": budget, "lengths": lengths, "halving": halving,
        "learning_rate": learning_rate, "server": server, "grid": grid,
    }  # fmt: skip


def tuned(*, seeds: list[NonNegativeInt], metric: str, budget: PositiveInt, choices: list[Any]) -> dict[str, Any]:
    """What ``fedpbc tune`` found: on which seeds, by which metric, at which budget, and its choices.

    A choice names an ``algorithm`` by its label, the ``links`` it is for (none: all), and its settings and options.
    """
    return {"seeds": seeds, "metric": metric, "budget": budget, "choices": choices}


def settings(
    *,
    name: str,
    rounds: PositiveInt,
    local_steps: PositiveInt,
    learning_rate: Schedule,
    seeds: list[NonNegativeInt],
    batch_size: PositiveInt = 32,
    minibatch: Literal["round", "step"] = "round",
    weight_decay: NonNegative = 0.0,
    clip_norm: Positive | None = None,
    momentum: Annotated[float, Range(0, 0.999)] = 0.0,
    compute: list[Literal["all", "active"]] = ["all"],  # noqa: B006
    cooldown_rounds: NonNegativeInt = 0,
    eval_every: PositiveInt = 1,
    chunk_size: PositiveInt | None = None,
    precision: Literal["float32", "float64"] = "float32",
    metrics: list[Literal["server", "mean", "clients"]] = ["server", "mean"],  # noqa: B006
    imports: list[Path] | None = None,
) -> None:
    """The keys of an experiment file, beside [problem], [[links]], [[algorithms]] and the other tables.

    rounds: T, the cool-down included. local_steps: s. minibatch: "round" reuses one minibatch for all local
    steps of a round, "step" draws a fresh one each. weight_decay, clip_norm, momentum: of the local steps, for every
    method. compute: who computes, "all" or only the "active" clients.
    cooldown_rounds: the last rounds, without local steps. eval_every: rounds between two rows of metrics.
    chunk_size: clients that are computed side by side, by default what suits the model; other sizes change results by
    rounding only. metrics: whose
    metrics are taken, of the server's model and of the mean of all client models (with it, the consensus distance);
    without "mean", clients whose steps no method would use are not computed; with "clients", over the worst tenth of
    the clients and over the active ones too. imports: Python
    files that call ``fedpbc.register``; they are run. learning_rate, local_steps and batch_size of an algorithm stand
    before these; a list of values there is a sweep.
    """


TABLES = ("problem", "links", "algorithms", "figure", "state_loss", "tune", "tuned")
