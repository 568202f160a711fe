"""Facts about clients that link probabilities may depend on: numbers [m], computed when one is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from fedpbc.data.arrays import Dataset
from fedpbc.problems.samples import Samples, pieces


class Traits(Mapping[str, np.ndarray]):
    """Traits of the clients of a data set, by name.

    num_samples; where samples have labels, num_labels (how many occur), mean_label, label_entropy (in nats),
    "share:LABEL" for each label, by number or name, and label_distribution [m, classes]; "feature:J", the client's mean
    of feature j; "column:NAME", its mean of another column of the data.
    """

    def __init__(
        self,
        data: Dataset,
        sizes: np.ndarray,
        counts: np.ndarray | None = None,
        samples: Samples | None = None,
    ) -> None:
        """``sizes`` [m]; ``counts`` [m, classes], samples of each label; ``samples``: of clients, in order."""
        self.sizes, self.counts, self.classes = sizes, counts, data.classes
        self._features = None if samples is None else samples.data[0] if isinstance(samples.data, tuple) else None
        self._scaling = data.scaling
        self._columns = {
            name: np.bincount(data.client, weights=values.astype(np.float64), minlength=len(sizes)) / sizes
            for name, values in data.columns.items()
        }
        self._fixed: dict[str, Callable[[], np.ndarray]] = {"num_samples": lambda: self.sizes.astype(np.float64)}
        if counts is not None:
            share = counts / sizes[:, None]
            self._fixed["mean_label"] = lambda: counts @ np.arange(counts.shape[1]) / sizes
            self._fixed["label_distribution"] = lambda: share
            self._fixed["num_labels"] = lambda: np.count_nonzero(counts, axis=1).astype(np.float64)
            self._fixed["label_entropy"] = lambda: -(share * np.log(np.where(share > 0, share, 1))).sum(axis=1)

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._fixed:
            return self._fixed[name]()
        family, _, member = name.partition(":")
        if family == "column" and member in self._columns:
            return self._columns[member]
        if family == "share" and self.counts is not None and member in (labels := self._labels()):
            return self.counts[:, labels[member]] / self.sizes
        if family == "feature" and member.isdecimal() and int(member) < self.num_features:
            return self._mean_of_feature(int(member))
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        """The names of a client's numbers; features are too many, and left out."""
        yield from self._fixed
        yield from (f"share:{label}" for label in self.shown_labels())
        yield from (f"column:{name}" for name in self._columns)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def num_features(self) -> int:
        """Numbers that a sample has."""
        return 0 if self._features is None else int(np.prod(self._features.shape[1:]))

    @property
    def known(self) -> str:
        """What may be asked for, in a line."""
        names = [name for name in self._fixed if name != "label_distribution"]
        labels = self.shown_labels()
        if labels:
            names.append(f"share:LABEL ({labels[0]} to {labels[-1]})" if len(labels) > 1 else f"share:{labels[0]}")
        if self.num_features:
            names.append(f"feature:J (0 to {self.num_features - 1})")
        columns = list(self._columns)
        more = f" and {len(columns) - 8} more" if len(columns) > 8 else ""
        return ", ".join(names) + (f", column:NAME ({', '.join(columns[:8])}{more})" if columns else "")

    def shown_labels(self) -> list[str]:
        """The name of each label; its number where it has none."""
        if self.counts is None:
            return []
        numbers = [str(label) for label in range(self.counts.shape[1])]
        return numbers if self.classes is None else [*map(str, self.classes), *numbers[len(self.classes) :]]

    def _labels(self) -> dict[str, int]:
        """Number and name of each label; a name that is a number of its own counts as the name."""
        numbers = {str(i): i for i in range(0 if self.counts is None else self.counts.shape[1])}
        return numbers | {name: i for i, name in enumerate(self.shown_labels())}

    def _mean_of_feature(self, j: int) -> np.ndarray:
        assert self._features is not None
        place = np.unravel_index(j, self._features.shape[1:]) if self._features.ndim > 1 else ()
        n = int(self.sizes.sum())
        client = np.repeat(np.arange(len(self.sizes)), self.sizes)
        total = np.zeros(len(self.sizes))
        for piece in pieces(n):
            values = np.asarray(self._features[(piece, *place)], np.float64)
            total += np.bincount(client[piece], weights=values, minlength=len(total))
        mean: np.ndarray = total / self.sizes
        if self._scaling is None:
            return mean
        channel = int(place[-1]) if place else 0
        factor, shift = (values[channel if len(values) > 1 else 0] for values in self._scaling)
        return factor * mean + shift


def counts_of(traits: Any) -> tuple[np.ndarray, np.ndarray | None, tuple[str, ...] | None] | None:
    """(sizes [m], counts [m, classes], names of all classes) of a problem that was made of data; else None."""
    if not isinstance(traits, Traits):
        return None
    return traits.sizes, traits.counts, None if traits.classes is None else tuple(traits.shown_labels())
