"""Models as Flower sends them and as NumPy computes with them: read without copying, checked, written back."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from math import isfinite
from typing import Literal

import numpy as np
from flwr.app import Array, ArrayRecord

from fedpbc.errors import ConfigError, shorten

Model = dict[str, np.ndarray]
"""A model by the names of its arrays."""

DOT = 1 << 16
"""Entries whose squares are summed at once."""
TINY = 1e-18
"""More than entries whose squares are 0."""
BLOCK = 1 << 13
"""Columns that a rule over [m, d] is given at once: its temporaries stay in the cache, and small beside the table."""


class Refused(Exception):
    """A reply that cannot be used, and why; its sender counts as inactive in this round."""


@dataclass(frozen=True)
class Layout:
    """Names, shapes and types of the arrays of a model, in their order."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype]
    buffers: tuple[str, ...] = ()
    """Arrays that local training changes without a gradient, as the running statistics of batch normalisation: they
    are averaged, whatever the method makes of the others."""

    @classmethod
    def of(cls, model: Mapping[str, np.ndarray], patterns: Sequence[str] | None = None) -> Layout:
        """The layout of ``model``; buffers are those with a name like a pattern, and all that are no floats.

        None for no buffers. Raises ConfigError for what cannot be averaged.
        """
        if not model:
            raise ConfigError("initial_arrays: holds no arrays")
        for name, array in model.items():
            if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
                where = f"initial_arrays[{shorten(name)}]"
                raise ConfigError(f"{where}: must be floats of up to 64 bits, integers or booleans, is {array.dtype}")
        buffers = tuple(
            name
            for name, array in model.items()
            if patterns is not None
            and (array.dtype.kind != "f" or any(fnmatchcase(name, pattern) for pattern in patterns))
        )
        shapes, dtypes = {name: a.shape for name, a in model.items()}, {name: a.dtype for name, a in model.items()}
        return cls(shapes, dtypes, buffers)

    @cached_property
    def learnt(self) -> Layout:
        """Of the arrays that are no buffers: what a method works on."""
        return self._of(name for name in self.shapes if name not in self.buffers)

    @cached_property
    def averaged(self) -> Layout:
        """Of the buffers."""
        return self._of(self.buffers)

    def _of(self, names: Iterable[str]) -> Layout:
        chosen = list(names)
        return Layout({name: self.shapes[name] for name in chosen}, {name: self.dtypes[name] for name in chosen})

    def read(self, record: ArrayRecord) -> Model:
        """The arrays of ``record`` as read-only views into its bytes. Raises Refused unless they have this layout."""
        if record.keys() != self.shapes.keys():
            missing, extra = self.shapes.keys() - record.keys(), record.keys() - self.shapes.keys()
            found = [f"{word} {', '.join(sorted(map(shorten, names))[:3])}" for word, names in
                     (("missing", missing), ("unknown", extra)) if names]  # fmt: skip
            raise Refused(f"arrays differ from the model's: {'; '.join(found)}")
        model = {name: view(name, record[name]) for name in self.shapes}
        self.check(model)
        return model

    def check(self, model: Mapping[str, np.ndarray]) -> None:
        """Raise Refused unless ``model``, which has the right names, has these shapes and types."""
        for name, array in model.items():
            if array.shape != self.shapes[name]:
                raise Refused(f"array {shorten(name)} has shape {array.shape}, the model's is {self.shapes[name]}")
            if array.dtype != self.dtypes[name]:
                raise Refused(f"array {shorten(name)} has type {array.dtype}, the model's is {self.dtypes[name]}")

    def working(self, name: str) -> np.dtype:
        """The type to compute in: the array's own, float32 for shorter floats, float64 for integers and booleans."""
        dtype = self.dtypes[name]
        return np.result_type(dtype, np.float32) if dtype.kind == "f" else np.dtype(np.float64)

    @property
    def narrows(self) -> bool:
        """Whether an array's own type holds less than what is computed in."""
        return any(self.working(name) != dtype for name, dtype in self.dtypes.items())

    def blocks(self, entries: int = BLOCK) -> Iterator[tuple[str, slice]]:
        """Every array, flattened, in pieces of so many entries."""
        for name, shape in self.shapes.items():
            size = int(np.prod(shape))
            for first in range(0, size, entries):
                yield name, slice(first, min(first + entries, size))

    def empty(self, *rows: int) -> Model:
        """Zeros [*rows, size] of every array flattened, in the type to compute in."""
        return {name: np.zeros((*rows, int(np.prod(s))), self.working(name)) for name, s in self.shapes.items()}

    def flatten(self, model: Mapping[str, np.ndarray]) -> Model:
        """Every array flattened, in the type to compute in; views where that is the array's own."""
        return {name: model[name].reshape(-1).astype(self.working(name), copy=False) for name in self.shapes}

    @cached_property
    def limits(self) -> np.ndarray:
        """What entries may be at most for ``sane``, of every array, in its own type and in that to compute in."""
        return np.array([min(limit(dtype), limit(self.working(name))) for name, dtype in self.dtypes.items()])

    @cached_property
    def working_limits(self) -> np.ndarray:
        """The same in the type to compute in alone."""
        return np.array([limit(self.working(name)) for name in self.dtypes])

    def computing(self) -> Layout:
        """The same in the types to compute in: the layout of what is as large as a model but is none (a correction)."""
        return Layout(self.shapes, {name: self.working(name) for name in self.shapes})

    def record(self, flat: Mapping[str, np.ndarray]) -> ArrayRecord:
        """What is sent of a flattened model: shapes and types restored, means of integers rounded and in range."""
        return to_record(self.restore(flat))

    def restore(self, flat: Mapping[str, np.ndarray]) -> Model:
        """A flattened model in its own shapes and types: views where that is the type to compute in."""
        return {name: self._restore(name, flat[name]) for name in self.shapes}

    def _restore(self, name: str, values: np.ndarray) -> np.ndarray:
        dtype = self.dtypes[name]
        rounded = values
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            rounded = np.clip(np.rint(values), info.min, info.max)
        elif dtype.kind == "b":
            rounded = values >= 0.5
        with np.errstate(over="ignore", invalid="ignore"):  # whoever uses it asks ``sane``
            return rounded.astype(dtype, copy=False).reshape(self.shapes[name])


def view(name: str, array: Array) -> np.ndarray:
    """A serialised NumPy array, read where it lies, without a copy. Raises Refused when it is damaged."""
    if array.stype != "numpy.ndarray":
        raise Refused(f"array {shorten(name)} is serialised as {shorten(array.stype)}, not as numpy.ndarray")
    try:
        shape, order, dtype, offset = _header(array.data[: 10 + int.from_bytes(array.data[8:10], "little")])
        return np.frombuffer(array.data, dtype, offset=offset).reshape(shape, order=order)
    except Exception as error:  # a damaged header raises whatever the parser of its text raises
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Refused(f"array {shorten(name)} cannot be read: {why[:200]}") from None


@lru_cache(maxsize=256)
def _header(start: bytes) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype, int]:
    """(shape, order, type, offset of the data) from the header of the .npy format 1.0, which every model has."""
    file = io.BytesIO(start)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("it is not in version 1.0 of the .npy format")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers that Python 2 would have written
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return shape, "F" if fortran_order else "C", dtype, file.tell()


def to_record(model: Mapping[str, np.ndarray]) -> ArrayRecord:
    """A model as it is sent; the same bytes as Flower's own, with one copy instead of three."""
    return ArrayRecord({name: _serialise(np.asarray(array, order="C")) for name, array in model.items()})


def _serialise(array: np.ndarray) -> Array:
    data = b"".join([_written_header(array.dtype, array.shape), array.reshape(-1).view(np.uint8).data])
    return Array(str(array.dtype), array.shape, "numpy.ndarray", data)


@lru_cache(maxsize=256)
def _written_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """The header of the .npy format 1.0, for an array in C order."""
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    return header.getvalue()


def read_initial(record: object) -> Model:
    """x^0 as the app gives it. Raises ConfigError."""
    if not isinstance(record, ArrayRecord):
        raise ConfigError(f"initial_arrays: must be an ArrayRecord, is {type(record).__name__}")
    try:
        model = models_of(record)
    except Refused as error:
        raise ConfigError(f"initial_arrays: {error}") from None
    if not sane(model):
        raise ConfigError("initial_arrays: hold a value that is not finite, or huge")
    return model


def models_of(record: ArrayRecord) -> Model:
    """The arrays of a record we trust, as read-only views."""
    return {name: view(name, array) for name, array in record.items()}


def largest(array: np.ndarray) -> float:
    """A bound of |entries|, inf where one is not finite.

    In one pass where it can: no entry is larger than the root of a sum of squares, which is not finite if one is not.
    The bound is exact where that overflows, and for other types than float32 and float64.
    """
    flat = array.ravel(order="K")
    if flat.dtype in (np.float32, np.float64):
        parts = (flat[first : first + DOT] for first in range(0, flat.size, DOT))
        with np.errstate(over="ignore", invalid="ignore"):
            sums = [float(np.dot(part, part)) for part in parts]
        if all(map(isfinite, sums)):
            return 1.01 * max(sums, default=0.0) ** 0.5 + TINY  # 1 %: more than 65 536 roundings make of it
    if not flat.size or flat.dtype.kind == "b":
        return float(flat.size > 0)
    found = max(-float(flat.min()), float(flat.max()))
    return found if found == found else np.inf


@lru_cache(maxsize=64)
def limit(dtype: np.dtype) -> float:
    """What entries of this type may be at most: see ``sane``."""
    if dtype.kind in "iub":
        return 2.0**53
    return float(float(np.finfo(dtype).max) ** (0.75 if dtype.itemsize > 2 else 1))


def sane(model: Mapping[str, np.ndarray]) -> bool:
    """Whether all values are numbers that can be computed with: sums and products of a few do not overflow.

    Floats up to the 3/4th power of the largest number of their type (6e28 in float32), 16-bit floats up to the largest
    itself; integers up to 2^53, which a mean in float64 keeps.
    """
    return all(largest(array) <= limit(array.dtype) for array in model.values() if array.dtype.kind in "fiu")
