"""Cells of a text file as 64-bit words: eight bytes a step are cut out, read as digits, and numbered.

A cell is a row of words, uint64[n, k], its bytes in the order of the file (little-endian), filled with zero bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

PAD = 8
"""Bytes that must follow the last cell in a buffer: words are read past its end."""
WORD = np.dtype("<u8")
_MASKS = np.array([(1 << (8 * k)) - 1 for k in range(9)], np.uint64)
"""The first k bytes of a word."""
_ZEROS = np.array([0x3030303030303030 >> (8 * k) if k < 8 else 0 for k in range(9)], np.uint64)
"""The digit 0 in front of k digits that stand at the word's end."""
_SHIFTS = np.array([8 * (8 - k) if k else 0 for k in range(9)], np.uint64)
_FIRST_BITS, _LAST_BITS = np.uint64(0xF0F0F0F0F0F0F0F0), np.uint64(0x0F0F0F0F0F0F0F0F)
_DIGITS, _SIX = np.uint64(0x3030303030303030), np.uint64(0x0606060606060606)


class Places(NamedTuple):
    """Where cells stand in ``buffer``, which goes on for PAD bytes: buffer[starts[i]:ends[i]]."""

    buffer: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def words(self, longest: int) -> np.ndarray:
        """The cells as uint64[n, k], k words for ``longest`` bytes; what is longer is cut."""
        at_byte = np.ndarray((len(self.buffer) - 7,), WORD, self.buffer, strides=(1,))
        lengths = self.ends - self.starts
        number = max(-(-longest // 8), 1)
        found = np.empty((len(lengths), number), np.uint64)
        for k in range(number):
            here = np.minimum(self.starts + 8 * k, len(at_byte) - 1) if k else self.starts
            rest = np.clip(lengths - 8 * k, 0, 8) if number > 1 else lengths
            np.bitwise_and(at_byte[here], _MASKS[rest], out=found[:, k])
        return found

    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """(int64[n] of decimal digits below 4 10^18, bool[n]: which cells are such); the others have no meaning."""
        lengths = self.ends - self.starts
        right = (lengths > 0) & (lengths < 20)
        words = np.ndarray((len(self.buffer) - 7,), WORD, self.buffer, strides=(1,))
        values = np.zeros(len(lengths), np.int64)
        scale, ends = 1, self.ends
        for k in range(1 + (int(lengths.max(initial=0)) > 8) + (int(lengths.max(initial=0)) > 16)):
            some = np.clip(lengths - 8 * k, 0, 8)
            part, digits = _eight_digits(words[ends - some], some)
            right &= digits
            values += part * scale
            scale, ends = scale * 10**8, ends - some
        if scale > 10**16:
            right &= (lengths < 19) | (self.buffer[self.starts] < ord("4"))
        return values, right


def _eight_digits(words: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number that the first ``lengths`` bytes of words [n] write, int64[n], and whether all of them are digits.

    All eight at once: pairs of digits, then pairs of pairs (Lemire, "Quickly parsing eight digits").
    """
    text = ((words & _MASKS[lengths]) << _SHIFTS[lengths]) | _ZEROS[lengths]
    digits = ((text & _FIRST_BITS) == _DIGITS) & (((text + _SIX) & _FIRST_BITS) == _DIGITS)
    value = ((text & _LAST_BITS) * np.uint64(10 * 2**8 + 1)) >> np.uint64(8)
    value = ((value & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(100 * 2**16 + 1)) >> np.uint64(16)
    value = ((value & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(10000 * 2**32 + 1)) >> np.uint64(32)
    return value.astype(np.int64), digits


def as_bytes(words: np.ndarray) -> list[bytes]:
    """The cells as byte strings."""
    return words.astype(WORD).view(f"S{8 * words.shape[1]}").ravel().tolist()


class Numbering:
    """Cells numbered by what they say, from block to block, in a few passes over the words.

    A hash of a cell finds the place of a value met before, which is compared in full; only cells of new values, and of
    values that share their place with another, are sorted.
    """

    def __init__(self, number_of: Callable[[list[bytes]], np.ndarray]) -> None:
        """``number_of(values)``: int32 numbers of different values; the same value may be asked for again."""
        self._number_of = number_of
        self._tables: dict[int, _Table] = {}

    def encode(self, words: np.ndarray) -> np.ndarray:
        """Numbers of cells uint64[n, k], int32[n]."""
        width = words.shape[1]
        table = self._tables[width] = self._tables.get(width) or _Table(width)
        places = table.place(words)
        numbers = table.numbers[places]
        new = np.flatnonzero(~table.holds(places, words))
        if len(new):
            values, inverse = unique(words[new])
            found = self._number_of(as_bytes(values))
            numbers[new] = found[inverse]
            table.add(values, found)
        return numbers


class _Table:
    """A value, of so many words, and its number in the place that its hash gives."""

    MOST_BITS = 20

    def __init__(self, width: int) -> None:
        self._values: list[np.ndarray] = []
        self._met = 0
        self._resize(12, width)

    def _resize(self, bits: int, width: int) -> None:
        self._shift, self._bits = np.uint64(64 - bits), bits
        self._words = np.zeros((1 << bits, width), np.uint64)
        self._filled = np.zeros(1 << bits, bool)
        self.numbers = np.zeros(1 << bits, np.int32)

    def place(self, words: np.ndarray) -> np.ndarray:
        return (hashes(words) >> self._shift).astype(np.int64)

    def holds(self, places: np.ndarray, words: np.ndarray) -> np.ndarray:
        right = self._filled[places]
        for k in range(words.shape[1]):
            right &= self._words[places, k] == words[:, k]
        return right

    def add(self, values: np.ndarray, numbers: np.ndarray) -> None:
        """Put values in their places, where those are free; a table that fills up is made larger."""
        self._met += len(values)
        if self._met > len(self.numbers) // 16 and self._bits < self.MOST_BITS:
            old = self._words[self._filled], self.numbers[self._filled]
            self._resize(min((16 * self._met).bit_length(), self.MOST_BITS), values.shape[1])
            self._put(*old)
        self._put(values, numbers)

    def _put(self, values: np.ndarray, numbers: np.ndarray) -> None:
        places = self.place(values)
        free = ~self._filled[places]
        values, numbers, places = values[free], numbers[free], places[free]
        places, first = np.unique(places, return_index=True)
        self._words[places], self.numbers[places], self._filled[places] = values[first], numbers[first], True


def hashes(words: np.ndarray) -> np.ndarray:
    """uint64[n] of cells uint64[n, k]; the upper bits are the well mixed ones."""
    found = words[:, 0] * np.uint64(0x9E3779B97F4A7C15)
    for k in range(1, words.shape[1]):
        found ^= found >> np.uint64(29)
        found += words[:, k]
        found *= np.uint64(0x9E3779B97F4A7C15)
    found ^= found >> np.uint64(32)
    found *= np.uint64(0xD6E8FEB86659FD93)
    return found


def unique(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(different cells [u, k] in the order of first appearance, the number of each [n])."""
    keys = words[:, 0] if words.shape[1] == 1 else hashes(words)
    order = np.argsort(keys, kind="stable")
    begins = np.diff(keys[order], prepend=~keys[order[:1]]) != 0
    first = order[begins]
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    inverse = np.empty(len(keys), np.int64)
    inverse[order] = rank[np.cumsum(begins) - 1]
    values = words[np.sort(first)]
    if words.shape[1] > 1 and not np.array_equal(values[inverse], words):  # two cells of the same hash
        values, inverse = np.unique(words, axis=0, return_inverse=True)
    return values, inverse.reshape(-1)
