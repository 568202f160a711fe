"""LEAF (Caldas et al. 2018): JSON in which every user has samples; FEMNIST, Shakespeare, Synthetic and their like."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.core.schema import Context, PositiveInt
from fedpbc.data.arrays import Dataset, Pool, Scaling
from fedpbc.data.component import loader
from fedpbc.data.dealing import Share, deal
from fedpbc.data.formats.common import opened, refuse
from fedpbc.data.partition import PartitionOption
from fedpbc.errors import BadOption

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's alphabet, 80 characters: the integer of a character is its place."""
_CODES = np.full(0x110000, 255, np.uint8)
_CODES[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))


@loader
def leaf(
    context: Context,
    path: Path,
    *,
    max_rows: PositiveInt | None = None,
    partition: PartitionOption | None = None,
    test_share: Share = 0.0,
) -> Dataset:
    """LEAF's JSON: a folder with train/ and test/, a folder of files, or one file. Its users are the clients.

    FEMNIST: images [28, 28, 1] in [0, 1], kept as bytes. Shakespeare: the 80 characters before as integers, the next
    one as label, their places in LEAF's alphabet. Other sets: vectors of numbers. Users of the test set that the
    training set lacks: then test samples belong to nobody. ``own`` with ``max_clients`` takes some users.
    """
    return deal(context, read_leaf(path), partition, test_share, max_rows)


@dataclass
class _Part:
    users: dict[str, int]
    features: np.ndarray
    labels: np.ndarray
    client: np.ndarray


def read_leaf(path: Path) -> Pool:
    """The pool of a folder or file. Raises BadOption."""
    if not path.exists():
        raise BadOption("path", path, "no such file or folder")
    train = _read(path, json_files(path, "train"))
    files = json_files(path, "test") if path.is_dir() else []
    test, test_client, classes = None, None, None
    notes: list[str] = []
    parts = [train]
    if files:
        part = _read(path, files)
        if part.features.shape[1:] != train.features.shape[1:]:
            shapes = f"{list(part.features.shape[1:])}, those of training {list(train.features.shape[1:])}"
            raise BadOption("path", path, f"test samples have shape {shapes}")
        if part.users.keys() <= train.users.keys():
            test_client = np.array([train.users[user] for user in part.users])[part.client]
        else:
            strangers = len(part.users.keys() - train.users.keys())
            notes.append(f"{strangers} users have test samples alone: test samples belong to nobody")
        parts.append(part)
    scaling = _images(parts)
    if train.features.dtype == np.uint8 and scaling is None:
        classes = np.array(list(LETTERS))
        notes.append("characters are their places in LEAF's alphabet of 80")
    if files:
        test = parts[1].features, parts[1].labels
    names = np.array(list(train.users))
    pair = train.features, train.labels
    return Pool(pair, test, train.client, test_client, classes, names, scaling, notes=tuple(notes))


def json_files(path: Path, part: str) -> list[Path]:
    """The files of a part, in the order of their names."""
    if path.is_file():
        return [path]
    for folder in (path / part, path / "data" / part):
        if folder.is_dir():
            return sorted(folder.glob("*.json"))
    return sorted(path.glob("*.json")) if part == "train" else []


def _read(path: Path, files: list[Path]) -> _Part:
    if not files:
        raise BadOption("path", path, "holds no .json of LEAF, nor a folder train/ with some")
    users: dict[str, int] = {}
    features: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    client: list[np.ndarray] = []
    for file in files:
        for user, x, y in _users(path, file):
            client.append(np.full(len(y), users.setdefault(user, len(users)), np.int64))
            if features and x.shape[1:] != features[0].shape[1:]:
                what = (
                    f"samples of user {user} have shape {list(x.shape[1:])}, before them {list(features[0].shape[1:])}"
                )
                raise refuse(path, file, what)
            features.append(x)
            labels.append(y)
    if not labels:
        raise BadOption("path", path, "no user has a sample")
    return _Part(users, _joined(features), np.concatenate(labels), np.concatenate(client))


def _users(path: Path, file: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Each user of a file who has samples, with the features and the labels."""
    with opened(path, file) as stream:
        try:
            content = json.loads(stream.read())
        except (ValueError, RecursionError) as error:
            raise refuse(path, file, f"is no JSON, or truncated: {str(error).splitlines()[0]}") from None
    wanted = isinstance(content, dict) and isinstance(content.get("user_data"), dict)
    if not wanted or not isinstance(content.get("users"), list):
        raise refuse(path, file, "is not LEAF's: must be a table of users, num_samples and user_data")
    data, counts = content.pop("user_data"), content.get("num_samples")
    if isinstance(counts, list) and len(counts) != len(content["users"]):
        raise refuse(path, file, f"{len(content['users'])} users, but {len(counts)} numbers in num_samples")
    for i, user in enumerate(content["users"]):
        samples = data.pop(user, None) if isinstance(user, str) else None
        if (
            not isinstance(samples, dict)
            or not isinstance(samples.get("x"), list)
            or not isinstance(samples.get("y"), list)
        ):
            raise refuse(path, file, f"user {user} has no lists x and y in user_data")
        x, y = samples["x"], samples["y"]
        if len(x) != len(y) or (isinstance(counts, list) and counts[i] != len(y)):
            said = f" and num_samples {counts[i]}" if isinstance(counts, list) else ""
            raise refuse(path, file, f"user {user} has {len(x)} x, {len(y)} y{said}")
        if y:
            yield user, *_arrays(path, file, user, x, y)


def _arrays(path: Path, file: Path, user: str, x: list[Any], y: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(x[0], str) and isinstance(y[0], str):
        return _characters(path, file, user, x, y)
    try:
        features, labels = np.array(x, np.float32), np.array(y)
    except (ValueError, TypeError):
        raise refuse(
            path, file, f"x of user {user} must be lists of numbers of one length, or Shakespeare's text"
        ) from None
    if labels.dtype.kind not in "iufb" or labels.ndim != 1 or not np.all(np.isfinite(features)):
        raise refuse(path, file, f"user {user}: x must be finite and y a number for each sample")
    whole = labels.dtype.kind == "f" and np.array_equal(labels, np.round(labels))
    return _as_bytes(features), labels.astype(np.int64) if whole else labels


def _characters(path: Path, file: Path, user: str, x: list[str], y: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """[n, 80] places in the alphabet, and that of the character that follows."""
    for text, following in zip(x, y, strict=True):
        if len(text) != 80 or len(following) != 1:
            raise refuse(
                path, file, f"user {user} has a text of {len(text)} and {len(following)} characters, not 80 and 1"
            )
    codes = [_CODES[np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)] for texts in (x, y)]
    if any(np.any(code == 255) for code in codes):
        raise refuse(path, file, f"user {user} has a character that LEAF's alphabet lacks")
    return codes[0].reshape(len(x), 80), codes[1]


def _as_bytes(features: np.ndarray) -> np.ndarray:
    """Vectors of 784 that are k/255, as FEMNIST's are, as bytes k; others as they are."""
    if features.shape[1:] != (784,):
        return features
    scaled = features * 255
    whole = np.round(scaled)
    fits = whole.min() >= 0 and whole.max() <= 255 and np.abs(scaled - whole).max() < 1e-3
    return whole.astype(np.uint8) if fits else features


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """All users' features; bytes only where all are."""
    if len({part.dtype for part in parts}) > 1:
        parts = [part / np.float32(255) if part.dtype == np.uint8 else part for part in parts]
    return np.concatenate(parts)


def _images(parts: list[_Part]) -> Scaling | None:
    """FEMNIST's vectors become images [28, 28, 1]; of bytes only where those of all parts are."""
    if parts[0].features.shape[1:] != (784,):
        return None
    if len({part.features.dtype for part in parts}) > 1:
        for part in parts:
            part.features = part.features / np.float32(255) if part.features.dtype == np.uint8 else part.features
    for part in parts:
        part.features = part.features.reshape(-1, 28, 28, 1)
    return Scaling((1 / 255,)) if parts[0].features.dtype == np.uint8 else None
