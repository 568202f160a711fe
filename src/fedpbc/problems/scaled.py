"""Features that are stored as bytes and learnt from as numbers: turned where they are drawn, a batch at a time."""

from __future__ import annotations

from functools import cache
from typing import Any

from fedpbc.core.lazy import jnp
from fedpbc.core.types import Array
from fedpbc.data.arrays import Scaling
from fedpbc.problems.objective import STORED, Source


def scaled(scaling: Scaling, samples: tuple[Array, Array], dtype: Any) -> tuple[Array, Array]:
    """(features, labels), the features as ``factor * stored + shift``."""
    features, labels = samples
    values = features.astype(dtype) * jnp.asarray(scaling.factor, dtype)
    return values + jnp.asarray(scaling.shift, dtype) if any(scaling.shift) else values, labels


@cache
def source_of(scaling: Scaling | None) -> Source:
    """Samples as stored, or scaled; the same functions for equal scalings."""
    if scaling is None:
        return STORED

    def draw(params: dict[str, Any], client: Array, key: Array, batch_size: int) -> Any:
        return scaled(scaling, STORED.draw(params, client, key, batch_size), params["train"]["pooled"].dtype)

    def block(params: dict[str, Any], part: str, block: Array, size: int) -> dict[str, Any]:
        rows = STORED.block(params, part, block, size)
        return {**rows, "data": scaled(scaling, rows["data"], rows["pooled"].dtype)}

    return Source(draw, block, stored=True)
