"""Data sets that Hugging Face's ``datasets`` saved to disk, and partitions of Flower Datasets, saved alike."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.core.schema import Context, PositiveInt
from fedpbc.data.arrays import Dataset, Pool
from fedpbc.data.component import loader
from fedpbc.data.dealing import Share, deal
from fedpbc.data.formats.columns import LABELS, PLAIN, Roles, pool_of
from fedpbc.data.formats.common import bytes_scaling, refuse, require_folder
from fedpbc.data.formats.images import Decoder
from fedpbc.data.partition import PartitionOption
from fedpbc.errors import BadOption, first_line, optional

TESTS = ("test", "validation", "valid")
PARTITION = re.compile(r"(.*?)(\d+)(\D*)")


@loader
def huggingface(
    context: Context,
    path: Path,
    *,
    label: str | None = None,
    client: str | None = None,
    features: Sequence[str] | None = None,
    train: str = "train",
    test: str | None = None,
    size: PositiveInt | None = None,
    one_hot: bool = False,
    normalise: bool = False,
    max_rows: PositiveInt | None = None,
    partition: PartitionOption | None = None,
    test_share: Share = 0.0,
) -> Dataset:
    """A folder that ``dataset.save_to_disk`` of Hugging Face's ``datasets`` wrote, of one data set or of its splits.

    ``train``, ``test``: names of splits; by default train and, if there is one, test or validation. ``label``,
    ``client``, ``features``, ``one_hot``, ``normalise``: as in ``table``; a column of images is decoded (needs Pillow),
    ``size`` makes them size x size pixels. Read with pyarrow alone.
    """
    roles = Roles(label, client, features, one_hot, normalise)
    pool = read_huggingface(path, roles, train, test, size)
    return deal(context, pool, partition, test_share, max_rows)


@loader
def flower_datasets(
    context: Context,
    path: Path,
    *,
    label: str | None = None,
    features: Sequence[str] | None = None,
    train: str = "train",
    test: str | None = None,
    size: PositiveInt | None = None,
    one_hot: bool = False,
    normalise: bool = False,
    max_rows: PositiveInt | None = None,
    partition: PartitionOption | None = None,
    test_share: Share = 0.0,
) -> Dataset:
    """A folder of saved partitions, partition_0, ..., as ``flwr-datasets create`` writes it: a client for each.

    Any names that end in the number of a client will do. A partition may have splits, as after ``train_test_split``:
    then test samples belong to clients. Options as in ``huggingface``.
    """
    roles = Roles(label, None, features, one_hot, normalise)
    pool = read_partitions(path, roles, train, test, size)
    return deal(context, pool, partition, test_share, max_rows)


def read_huggingface(
    path: Path,
    roles: Roles = PLAIN,
    train: str = "train",
    test: str | None = None,
    size: int | None = None,
) -> Pool:
    """The pool of a saved data set. Raises BadOption, MissingPackage."""
    require_folder(path, "a data set that was saved to disk")
    first, second = _splits(path, path, train, test)
    return _pool(path, _table(path, first), None if second is None else _table(path, second), roles, first, size)


def read_partitions(
    path: Path,
    roles: Roles = PLAIN,
    train: str = "train",
    test: str | None = None,
    size: int | None = None,
) -> Pool:
    """The pool of a folder of saved partitions. Raises BadOption, MissingPackage."""
    require_folder(path, "saved partitions")
    folders = partitions_of(path)
    if not folders:
        raise BadOption("path", path, "holds no saved partitions: folders like partition_0, each with a state.json")
    pa = optional("pyarrow", "data flower_datasets")
    trained: list[Any] = []
    tested: list[Any] = []
    for i, folder in enumerate(folders):
        for found, split in zip((trained, tested), _splits(path, folder, train, test), strict=True):
            if split is not None:
                rows = _table(path, split).replace_schema_metadata()
                if found and rows.schema != found[0].schema.remove(len(found[0].schema) - 1):
                    raise refuse(path, split, "has other columns than the partitions before it")
                found.append(rows.append_column(CLIENT, pa.array(np.full(len(rows), i))))
    first, _ = _splits(path, folders[0], train, test)
    roles = replace(roles, client=CLIENT)
    pool = _pool(path, pa.concat_tables(trained), pa.concat_tables(tested) if tested else None, roles, first, size)
    return replace(pool, clients=np.array([folder.name for folder in folders]), notes=("a partition is a client",))


CLIENT = "client of the partition"
"""A column that is added: no column of others is called so."""


def is_saved(path: Path) -> bool:
    """A data set, or its splits, saved to disk."""
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def partitions_of(path: Path) -> list[Path]:
    """Folders of saved partitions, in the order of their numbers."""
    found = []
    for folder in path.iterdir():
        match = PARTITION.fullmatch(folder.name)
        if match and folder.is_dir() and is_saved(folder):
            found.append((match[1], int(match[2]), folder))
    return [folder for _, _, folder in sorted(found)]


def _splits(path: Path, folder: Path, train: str, test: str | None) -> tuple[Path, Path | None]:
    """The folders of training and of test samples."""
    if not (folder / "dataset_dict.json").is_file():
        if not (folder / "state.json").is_file():
            raise refuse(path, folder, "is no saved data set: there is neither state.json nor dataset_dict.json")
        if test is not None:
            raise BadOption("test", test, "the data set was saved without splits")
        return folder, None
    splits = _json(path, folder / "dataset_dict.json").get("splits")
    names = splits if isinstance(splits, list) else []
    for option, name in (("train", train), ("test", test)):
        if name is not None and name not in names:
            raise BadOption(option, name, f"no such split; there are {', '.join(map(str, names)) or 'none'}")
    found = test or next((name for name in TESTS if name in names and name != train), None)
    return folder / train, None if found is None else folder / str(found)


def _json(path: Path, file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise refuse(path, file, f"cannot be read: {first_line(error)}") from None
    if not isinstance(found, dict):
        raise refuse(path, file, "is no table")
    return found


def _table(path: Path, folder: Path) -> Any:
    """All rows of a split, mapped into memory: nothing is read before it is used."""
    pa = optional("pyarrow", "data huggingface")
    listed = _json(path, folder / "state.json").get("_data_files")
    entries = listed if isinstance(listed, list) else []
    names: list[Any] = [entry.get("filename") for entry in entries if isinstance(entry, dict)]
    if not names or not all(isinstance(name, str) and name == Path(name).name for name in names):
        raise refuse(path, folder / "state.json", "names no data files")
    tables = []
    for name in names:
        file = folder / name
        if not file.is_file():
            raise refuse(path, file, "is missing, state.json names it")
        try:
            tables.append(pa.ipc.open_stream(pa.memory_map(str(file))).read_all())
        except Exception as error:
            raise refuse(path, file, f"is no Arrow stream, or truncated: {first_line(error)}") from None
    found = pa.concat_tables(tables)
    if found.num_rows == 0:
        raise refuse(path, folder, "has no rows")
    return found


def _pool(path: Path, train: Any, test: Any, roles: Roles, folder: Path, size: int | None) -> Pool:
    """With images decoded, and the names of classes from dataset_info.json."""
    about = (
        _json(path, folder / "dataset_info.json").get("features") if (folder / "dataset_info.json").is_file() else {}
    )
    about = about if isinstance(about, dict) else {}
    pictures = [name for name in train.column_names if _is_image(train.schema.field(name).type)]
    if roles.features is None and pictures:
        if len(pictures) > 1:
            raise BadOption("features", "none", f"several columns hold images, choose one: {', '.join(pictures)}")
        roles = replace(roles, features=pictures)
    if roles.label is None and not any(name.lower() in LABELS for name in train.column_names):
        named = [name for name, feature in about.items() if _class_names(feature) is not None]
        if named:  # as fine_label of CIFAR-100
            roles = replace(roles, label=named[0])
    label = roles.label or next((n for n in train.column_names for word in LABELS if n.lower() == word), None)
    decoder = Decoder(path, size) if pictures else None

    def decoded(rows: Any, name: str) -> np.ndarray | None:
        if decoder is None or name not in pictures:
            return None
        raw = rows.column(name).combine_chunks().field("bytes").to_pylist()
        if any(one is None for one in raw):
            raise BadOption(
                "path", path, f"column {name}, row {raw.index(None)}: the image is not in the file, only its name"
            )
        return decoder.all(raw, [f"column {name}, row {i}" for i in range(len(raw))])

    classes = _class_names(about.get(label))
    pool = pool_of(path, train, test, roles, None if classes is None else np.array(classes), decoded)
    if not pictures or roles.features != pictures:
        return pool
    return replace(pool, scaling=bytes_scaling(pool.train[0], roles.normalise))


def _is_image(kind: Any) -> bool:
    """struct<bytes: binary, path: string>."""
    return str(kind).startswith("struct<") and {field.name for field in kind} == {"bytes", "path"}


def _class_names(feature: Any) -> list[str] | None:
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    return names if isinstance(names, list) and names and all(isinstance(name, str) for name in names) else None
