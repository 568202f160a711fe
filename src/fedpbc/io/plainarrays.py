"""NumPy arrays of bytes inside a pickle, by what a pickle says of them: no name of it is looked up or called.

numpy.core.multiarray._reconstruct(numpy.ndarray, (0,), b"b"), filled in with (1, shape, dtype, fortran, bytes)
numpy.dtype("u1", align, copy), filled in with (3, "|", ...)
_codecs.encode(text, "latin1"): bytes, as Python 3 writes them for Python 2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


class NotPlain(Exception):
    """What a pickle asks for that is no array of bytes."""


@dataclass(frozen=True)
class Name:
    """A name that such a pickle calls."""

    name: str


@dataclass(frozen=True)
class Unbuilt:
    """An array or its type, before it is filled in."""

    what: str

    def built(self, state: Any) -> Any:
        """Filled in. Raises NotPlain for other arrays than of bytes, ValueError for a damaged one."""
        if self.what == "dtype":
            return self
        if type(state) is not tuple or len(state) != 5 or type(state[1]) is not tuple:
            raise ValueError("is no array")
        _, shape, dtype, fortran, content = state
        if type(dtype) is not Unbuilt or dtype.what != "dtype" or type(fortran) not in (bool, int) or fortran:
            raise NotPlain("an array that is not of bytes in the usual order")
        if isinstance(content, str):  # of Python 2
            content = content.encode("latin-1")
        if not isinstance(content, bytes) or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError("is no array")
        return np.frombuffer(content, np.uint8).reshape(shape)


_NAMES = {
    "numpy.core.multiarray _reconstruct": "reconstruct",
    "numpy._core.multiarray _reconstruct": "reconstruct",
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    "_codecs encode": "encode",
}


def named(name: str) -> Name:
    """The name "module attribute". Raises NotPlain for any that arrays of bytes do not need."""
    if name not in _NAMES:
        raise NotPlain(name.replace(" ", "."))
    return Name(_NAMES[name])


def called(function: Any, arguments: Any) -> Any:
    """What a call of such a name means. Raises NotPlain for other calls."""
    if type(function) is Name and type(arguments) is tuple and arguments:
        first = arguments[0]
        if function.name == "reconstruct" and first == Name("ndarray"):
            return Unbuilt("ndarray")
        if function.name == "dtype" and first == "u1":
            return Unbuilt("dtype")
        if function.name == "dtype":
            raise NotPlain(f"an array of {first}")
        if function.name == "encode" and type(first) is str and arguments[1:] == ("latin1",):
            return first.encode("latin-1")
    raise NotPlain("a call")
