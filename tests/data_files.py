"""Tiny data sets in the real formats, written from their specifications; each returns what a loader should give."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

RNG = np.random.default_rng(7)
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"


def pixels(*shape: int) -> np.ndarray:
    """Bytes at random."""
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    """0, 0, type 8, number of axes, lengths in big-endian 32 bits, the bytes."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(
    folder: Path, prefix: str = "", test: str = "t10k", packed: bool = False, first: int = 0
) -> dict[str, Any]:
    """12 training and 5 test images of 6 x 4."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {}
    for part, n in (("train", 12), (test, 5)):
        images, labels = pixels(n, 6, 4), ((np.arange(n) % 3) + first).astype(np.uint8)
        for what, array in (("images-idx3", images), ("labels-idx1", labels)):
            data = idx(array)
            file = folder / f"{prefix}{part}-{what}-ubyte{'.gz' if packed else ''}"
            file.write_bytes(gzip.compress(data) if packed else data)
        given["train" if part == "train" else "test"] = images, labels
    return given


def cifar_rows(n: int, hundred: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images [n, 32, 32, 3], fine labels (or those of CIFAR-10) and coarse ones."""
    return (
        pixels(n, 32, 32, 3),
        RNG.integers(0, 100 if hundred else 10, n, dtype=np.uint8),
        (np.arange(n) % 20).astype(np.uint8),
    )


def write_cifar(folder: Path, hundred: bool = False) -> dict[str, Any]:
    """The binary version: a byte of label (CIFAR-100: coarse, fine), then red, green and blue planes by rows."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ["train", "test"] if hundred else [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    given: dict[str, Any] = {}
    for name in names:
        images, fine, coarse = cifar_rows(4, hundred)
        with (folder / f"{name}.bin").open("wb") as file:
            for image, label, group in zip(images, fine, coarse, strict=True):
                file.write(bytes([group, label] if hundred else [label]))
                for channel in range(3):
                    file.write(image[:, :, channel].tobytes())
        part = "test" if name.startswith("test") else "train"
        before = given.get(part, (images[:0], fine[:0], coarse[:0]))
        given[part] = tuple(np.concatenate(pair) for pair in zip(before, (images, fine, coarse), strict=True))
    if not hundred:
        (folder / "batches.meta.txt").write_text("\n".join(f"class{i}" for i in range(10)) + "\n\n")
    return given


def python2_pickle(images: np.ndarray, labels: dict[str, list[int]]) -> bytes:
    """What cPickle of Python 2 wrote, protocol 2: strings are byte strings, the array is rebuilt by three calls."""

    def short(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
    array += b"(K\x01J" + struct.pack("<i", len(planes)) + b"J" + struct.pack("<i", planes.shape[1]) + b"\x86"
    array += b"cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array += b"\x89T" + struct.pack("<i", planes.size) + planes.tobytes() + b"tb"
    body = b"\x80\x02}q\x01(" + short(b"batch_label") + short(b"training batch 1 of 5")
    for name, values in labels.items():
        body += short(name.encode()) + b"](" + b"".join(b"K" + bytes([v]) for v in values) + b"e"
    return body + short(b"data") + array + b"u."


def write_leaf(folder: Path, kind: str, test_users: tuple[str, ...] = ("u2", "u1")) -> dict[str, Any]:
    """Three users with 4, 3 and 2 training samples; the test set names its users in another order."""
    given: dict[str, Any] = {}
    for part, users in (("train", ("u1", "u2", "u3")), ("test", test_users)):
        data: dict[str, Any] = {}
        for i, user in enumerate(users):
            n = 4 - i
            if kind == "femnist":
                x: Any = (pixels(n, 784) / 255.0).tolist()
                y: Any = RNG.integers(0, 62, n).tolist()
            else:
                text = ["".join(RNG.choice(list(ALPHABET), 81)) for _ in range(n)]
                x, y = [t[:80] for t in text], [t[80] for t in text]
            data[user] = {"x": x, "y": y}
        (folder / part).mkdir(parents=True, exist_ok=True)
        table = {"users": list(users), "num_samples": [len(d["y"]) for d in data.values()], "user_data": data}
        (folder / part / f"all_data_{part}.json").write_text(json.dumps(table))
        given[part] = data
    return given


def write_pictures(
    folder: Path, parts: tuple[str, ...] = ("train", "valid", "test"), mode: str = "RGB"
) -> dict[str, Any]:
    """Classes "dog" and "ant", 3 PNGs of 5 x 4 pixels each, in every part."""
    from PIL import Image

    given: dict[str, Any] = {}
    for part in parts:
        for name in ("dog", "ant"):
            where = folder / part / name
            where.mkdir(parents=True)
            for i in range(3):
                array = pixels(4, 5, 3) if mode == "RGB" else pixels(4, 5)
                Image.fromarray(array).save(where / f"{i}.png")
                given.setdefault(part, {}).setdefault(name, []).append(array)
    return given


def write_saved(folder: Path, n: int, splits: tuple[str, ...] = (), images: bool = True) -> dict[str, Any]:
    """As ``save_to_disk`` of Hugging Face's datasets 4 writes it: Arrow streams, state.json, dataset_info.json."""
    import io

    import pyarrow as pa
    from PIL import Image

    given: dict[str, Any] = {}
    for split in splits or ("",):
        where = folder / split
        where.mkdir(parents=True)
        labels = (np.arange(n) % 3).tolist()
        pictures = pixels(n, 4, 5, 3)
        vectors = RNG.standard_normal((n, 2, 3)).astype(np.float32)
        encoded = []
        for picture in pictures:
            buffer = io.BytesIO()
            Image.fromarray(picture).save(buffer, format="PNG")
            encoded.append({"bytes": buffer.getvalue(), "path": None})
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        column = pa.array(encoded, kind) if images else pa.array(vectors.tolist(), pa.list_(pa.list_(pa.float32())))
        rows = pa.table({"img" if images else "x": column, "label": pa.array(labels, pa.int64())})
        cut = n // 2
        for i, piece in enumerate((rows.slice(0, cut), rows.slice(cut))):
            with pa.ipc.new_stream(str(where / f"data-0000{i}-of-00002.arrow"), rows.schema) as writer:
                writer.write_table(piece)
        files = [{"filename": f"data-0000{i}-of-00002.arrow"} for i in range(2)]
        (where / "state.json").write_text(json.dumps({"_data_files": files, "_split": None}))
        about = {"label": {"names": ["cat", "ant", "bee"], "_type": "ClassLabel"}, "img": {"_type": "Image"}}
        (where / "dataset_info.json").write_text(json.dumps({"features": about}))
        given[split or "train"] = (pictures if images else vectors), np.array(labels)
    if splits:
        (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    return given


def write_photos(folder: Path) -> None:
    """What docs/howto/your-images.md asks for: photos/CLASS/ of 60 PNG and JPEG files, who.csv of 12 devices.

    Sizes differ from photo to photo; devices take part in 15 % to 95 % of 300 rounds, in spells.
    """
    from PIL import Image, ImageDraw

    rng = np.random.default_rng(0)
    for name in ("dent", "fine", "rust", "scratch"):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(60):
            width, height = rng.integers(40, 65, 2)
            grey = np.clip(rng.normal(140, 25, (height, width, 3)), 0, 255).astype(np.uint8)
            image = Image.fromarray(grey)
            draw = ImageDraw.Draw(image)
            x, y = rng.uniform(0.2, 0.6, 2) * (width, height)
            if name == "dent":
                draw.ellipse([x, y, x + 16, y + 16], fill=(60, 60, 60))
            elif name == "rust":
                draw.rectangle([x, y, x + 18, y + 12], fill=(150, 70, 20))
            elif name == "scratch":
                draw.line([x, y, x + 25, y - 20], fill=(250, 250, 250), width=3)
            image.save(folder / "photos" / name / f"{i:03}.{'jpg' if i % 2 else 'png'}")
    rate = np.linspace(0.15, 0.95, 12)
    state, lines = rng.random(12) < rate, ["round,client,active"]
    for t in range(300):
        state = np.where(rng.random(12) < 0.8, state, rng.random(12) < rate)
        lines += [f"{t},device-{i:02},{int(on)}" for i, on in enumerate(state)]
    (folder / "who.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
