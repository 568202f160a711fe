"""Read plain data from a pickle without running anything: this reader knows no classes and no functions.

``load`` walks over the opcodes (``pickletools``) with a stack of its own. Whatever is not a dict, list, tuple,
int, float, str, bytes, bool or None is refused by the name of its opcode. With ``arrays`` NumPy arrays of bytes are
read too (plainarrays.py): the names that such a pickle calls are taken for what they mean, and never looked up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pickletools import genops
from typing import Any

from fedpbc.io.plainarrays import Name, NotPlain, Unbuilt, called, named

KEY_MAX = 2**60
"""Larger integers can be chosen to share one hash, which makes a dict of them take quadratic time."""
MAX_DEPTH = 16
"""Containers within containers; one that holds itself has no end of them."""


class PickleError(Exception):
    """The file is damaged, or holds more than plain data."""


class _Mark:
    """Where a run of items begins on the stack."""


_MARK = _Mark()
_VALUES = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
}  # fmt: skip
"""Opcodes whose argument is the value."""
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


def load(data: bytes, arrays: bool = False) -> Any:
    """The value of a pickle of protocol 0 to 5. Raises PickleError, one line.

    Dict keys must be str or int below 2^60, lest a key be costly to hash. ``arrays``: NumPy arrays uint8 are allowed.
    """
    machine = _Machine(arrays)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of escapes in old strings
            for opcode, argument, position in genops(data):
                if opcode.name == "STOP":
                    return _checked(machine.pop())
                machine.run(opcode.name, argument, position)
    except PickleError:
        raise
    except NotPlain as error:
        raise PickleError(f"holds more than plain data ({error}), which is never run") from None
    except (ValueError, IndexError, KeyError, OverflowError):
        raise PickleError("is no pickle, or a damaged one") from None
    raise PickleError("is no pickle, or a damaged one")


class _Machine:
    """The stack and the memo of a pickle."""

    def __init__(self, arrays: bool = False) -> None:
        self.arrays = arrays
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, name: str, argument: Any, position: int | None) -> None:
        """One opcode. Raises PickleError when it could make anything but plain data."""
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _OPERATIONS:
            _OPERATIONS[name](self, argument)
        elif self.arrays and name in _OF_ARRAYS:
            _OF_ARRAYS[name](self, argument)
        else:
            raise PickleError(f"holds more than plain data ({name} at byte {position}), which is never run")

    def pop(self) -> Any:
        """The top of the stack, which must be a value."""
        value = self.stack.pop()
        if value is _MARK:
            raise PickleError("is no pickle, or a damaged one")
        return value

    def top(self, kind: type) -> Any:
        """The top of the stack, which must be a container of that kind."""
        if type(self.stack[-1]) is not kind:
            raise PickleError("is no pickle, or a damaged one")
        return self.stack[-1]

    def items(self) -> list[Any]:
        """Pop everything down to the last mark, and the mark."""
        taken = []
        while (value := self.stack.pop()) is not _MARK:
            taken.append(value)
        return taken[::-1]

    def pops(self, count: int) -> list[Any]:
        """Pop so many values, the lowest first."""
        return [self.pop() for _ in range(count)][::-1]

    def extend(self, values: list[Any]) -> None:
        """Put values into the list on top."""
        self.top(list).extend(values)

    def update(self, values: list[Any]) -> None:
        """Put keys and values, in turn, into the dict on top."""
        keys = values[::2]
        if any(type(key) is not str and not (type(key) is int and abs(key) < KEY_MAX) for key in keys):
            raise PickleError("has a dict whose keys are not all str or int below 2^60")
        self.top(dict).update(zip(keys, values[1::2], strict=True))

    def new_dict(self, values: list[Any]) -> None:
        """Push a dict of keys and values in turn."""
        self.stack.append({})
        self.update(values)

    def build(self) -> None:
        """Put what a pickle fills in, an array or its type, in the place of its beginning."""
        state = self.pop()
        self.stack[-1] = self.top(Unbuilt).built(state)

    def store(self, index: int) -> None:
        """Remember the top of the stack."""
        if self.stack[-1] is _MARK:
            raise PickleError("is no pickle, or a damaged one")
        self.memo[index] = self.stack[-1]

    def recall(self, index: int) -> None:
        """Push what was remembered."""
        self.stack.append(self.memo[index])


def _nothing(machine: _Machine, argument: Any) -> None:
    pass


_OPERATIONS: dict[str, Callable[[_Machine, Any], Any]] = {
    "PROTO": _nothing,
    "FRAME": _nothing,
    "MARK": lambda machine, _: machine.stack.append(_MARK),
    "POP": lambda machine, _: machine.stack.pop(),
    "POP_MARK": lambda machine, _: machine.items(),
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_TUPLE": lambda machine, _: machine.stack.append(()),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "LIST": lambda machine, _: machine.stack.append(machine.items()),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.items())),
    "TUPLE1": lambda machine, _: machine.stack.append(tuple(machine.pops(1))),
    "TUPLE2": lambda machine, _: machine.stack.append(tuple(machine.pops(2))),
    "TUPLE3": lambda machine, _: machine.stack.append(tuple(machine.pops(3))),
    "DICT": lambda machine, _: machine.new_dict(machine.items()),
    "APPEND": lambda machine, _: machine.extend(machine.pops(1)),
    "APPENDS": lambda machine, _: machine.extend(machine.items()),
    "SETITEM": lambda machine, _: machine.update(machine.pops(2)),
    "SETITEMS": lambda machine, _: machine.update(machine.items()),
    "PUT": _Machine.store,
    "BINPUT": _Machine.store,
    "LONG_BINPUT": _Machine.store,
    "MEMOIZE": lambda machine, _: machine.store(len(machine.memo)),
    "GET": _Machine.recall,
    "BINGET": _Machine.recall,
    "LONG_BINGET": _Machine.recall,
}


_OF_ARRAYS: dict[str, Callable[[_Machine, Any], Any]] = {
    "GLOBAL": lambda machine, name: machine.stack.append(named(name)),
    "STACK_GLOBAL": lambda machine, _: machine.stack.append(named(" ".join(map(str, machine.pops(2))))),
    "REDUCE": lambda machine, _: machine.stack.append(called(*machine.pops(2))),
    "BUILD": lambda machine, _: machine.build(),
}
"""Only where arrays are allowed."""


def _checked(value: Any) -> Any:
    """``value``, unless it is nested deeper than MAX_DEPTH; each distinct container of a level is seen once."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        if any(type(v) in (Unbuilt, Name) for v in level):
            raise PickleError("is no pickle, or a damaged one")
        containers = {id(v): v for v in level if type(v) in (dict, list, tuple)}
        level = [inner for v in containers.values() for inner in (v.values() if type(v) is dict else v)]
        if not containers:
            return value
    raise PickleError(f"is nested deeper than {MAX_DEPTH}, or holds itself")
