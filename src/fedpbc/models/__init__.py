"""Models: parameters and outputs. A new one is one file and one line here; from outside, ``functions``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedpbc.core.lazy import jax, jnp
from fedpbc.core.schema import Component, Context, Factory, Kind, bind_component, component
from fedpbc.models.cnn import cnn, cnn_cifar10, cnn_cinic10, cnn_svhn
from fedpbc.models.dense import logistic, mlp
from fedpbc.models.gru import gru
from fedpbc.models.model import Functions, Model
from fedpbc.models.resnet import resnet


@component
def functions(
    context: Context,
    *,
    init: Callable[..., Any],
    apply: Callable[..., Any],
    train: Callable[..., Any] | None = None,
) -> Model:
    """A model of your own: ``init(key, shape, num_outputs) -> params``, ``apply(params, features) -> [n, outputs]``.

    With buffers (batch normalisation) ``init`` gives (params, buffers), ``apply`` is given that pair, and
    ``train((params, buffers), features) -> ([n, outputs], buffers)`` is what local steps follow.
    """
    return Functions(init, apply, train)


def predict(model: Component[Model] | Model | str, params: Any, features: Any) -> Any:
    """The outputs [n, outputs] of a model for features [n, ...], by JAX.

    ``params``: what ``Run.model`` and ``fedpbc.load_model`` give, (params, buffers) where there are buffers.
    """
    built = bind_component(MODELS, model, "model", Path.cwd()).build(Context(0, np.dtype(np.float32), 1))
    return built.outputs(jax.tree.map(jnp.asarray, params), jnp.asarray(features)).T


MODELS: Kind = Kind(
    "model",
    {
        "logistic": logistic,
        "mlp": mlp,
        "cnn": cnn,
        "cnn_svhn": cnn_svhn,
        "cnn_cifar10": cnn_cifar10,
        "cnn_cinic10": cnn_cinic10,
        "resnet": resnet,
        "gru": gru,
        "functions": functions,
    },
    gives=Model,
    shorthand=lambda value: {"name": value} if isinstance(value, str) else None,
    allowed="a model: its name or a table with a name",
)
ModelOption = Annotated[Model | Component[Model] | Factory[..., Model] | str, MODELS]

__all__ = [
    "MODELS",
    "Model",
    "cnn",
    "cnn_cifar10",
    "cnn_cinic10",
    "cnn_svhn",
    "functions",
    "gru",
    "logistic",
    "mlp",
    "predict",
    "resnet",
]
