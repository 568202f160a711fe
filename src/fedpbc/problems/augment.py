"""Augmentation of the images of a minibatch: random crops and mirror images, drawn anew for each sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpbc.core.lazy import jax, jnp
from fedpbc.core.types import Array
from fedpbc.errors import BadOption

PURPOSE = 0x617567
"""Folded into the key of a minibatch: what is drawn of its rows stays as it is without augmentation."""


@dataclass(frozen=True)
class Augment:
    """What is done to images [n, height, width(, channels)]."""

    crop: int = 0
    """Pixels of zeros around an image, of which a window of its own size is taken, all places alike likely."""
    flip: bool = False
    """Left and right exchanged, in half of the cases."""

    @classmethod
    def asked(cls, crop: int, flip: bool, features: np.ndarray) -> Augment | None:
        """As two options say; None for none. Raises BadOption where samples are no images, or smaller than a crop."""
        if not crop and not flip:
            return None
        if features.ndim not in (3, 4):
            text = f"needs images [height, width(, channels)], the samples have shape {features.shape[1:]}"
            raise BadOption("crop" if crop else "flip", crop or flip, text)
        if crop > min(features.shape[1:3]):
            raise BadOption("crop", crop, f"must be at most the size of the images, {min(features.shape[1:3])} pixels")
        return cls(crop, flip)

    def of(self, key: Array, images: Array) -> Array:
        """Of the minibatch of that ``key``, which is one of seed, round, client and, where it is drawn anew, step."""
        places, mirror = jax.random.split(jax.random.fold_in(key, PURPOSE))
        n, *shape = images.shape
        if self.crop:
            pads = ((0, 0), (self.crop, self.crop), (self.crop, self.crop), *((0, 0),) * (images.ndim - 3))
            first = jax.random.randint(places, (n, 2), 0, 2 * self.crop + 1, jnp.int32)

            def window(image: Array, place: Array) -> Any:
                return jax.lax.dynamic_slice(image, (*place, *(jnp.int32(0),) * (len(shape) - 2)), shape)

            images = jax.vmap(window)(jnp.pad(images, pads), first)
        if self.flip:
            chosen = jax.random.bernoulli(mirror, 0.5, (n, *(1,) * len(shape)))
            images = jnp.where(chosen, images[:, :, ::-1], images)
        return images
