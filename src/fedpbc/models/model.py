"""What a model is: parameters as a pytree, and outputs of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedpbc.core.lazy import jax
from fedpbc.core.types import Array


class Model(ABC):
    """A function of parameters and features. Models that compare equal share compiled programs: sizes, no arrays.

    Outputs are class-major, [outputs, n]: on CPUs the matrix products of the gradient are then several times faster.
    """

    one_by_one: ClassVar[bool] = False
    """Evaluate the server's and the mean model one after the other: a convolution over several weights is slow."""

    @property
    def trains(self) -> bool:
        """It has buffers: ``init`` gives (params, buffers), ``outputs`` is given both, ``train`` makes new ones."""
        return False

    @abstractmethod
    def init(self, rng: np.random.Generator, shape: tuple[int, ...], num_outputs: int) -> Any:
        """Initial parameters, a pytree of arrays, for samples of this shape."""

    def check(self, features: np.ndarray) -> None:  # noqa: B027
        """Raise ConfigError for features [n, ...] that it cannot read; any numbers will do, if nothing else is said."""

    @abstractmethod
    def outputs(self, params: Any, features: Array) -> Array:
        """features [n, ...] -> [outputs, n]."""

    def train(self, params: Any, features: Array) -> tuple[Array, Any]:
        """In local steps, where there are buffers: (outputs [outputs, n], buffers after this minibatch)."""
        raise NotImplementedError


@dataclass(frozen=True)
class Functions(Model):
    """A model from outside: ``init(key, shape, num_outputs)`` and ``apply(params, features) -> [n, outputs]``."""

    start: Callable[..., Any]
    apply: Callable[..., Any]
    train_apply: Callable[..., Any] | None = None
    """``train((params, buffers), features) -> ([n, outputs], buffers)``; then ``init`` gives (params, buffers)."""
    one_by_one: ClassVar[bool] = True

    def init(self, rng: np.random.Generator, shape: tuple[int, ...], num_outputs: int) -> Any:
        """``start`` with a key that ``rng`` draws."""
        return self.start(jax.random.key(int(rng.integers(2**32))), shape, num_outputs)

    def outputs(self, params: Any, features: Array) -> Array:
        """``apply``, turned class-major."""
        return self.apply(params, features).T

    @property
    def trains(self) -> bool:
        """There is a function for local steps."""
        return self.train_apply is not None

    def train(self, params: Any, features: Array) -> tuple[Array, Any]:
        """``train``, turned class-major."""
        assert self.train_apply is not None
        outputs, buffers = self.train_apply(params, features)
        return outputs.T, buffers
