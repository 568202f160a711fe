"""fedpbc theory: its numbers against formulae and enumeration, its inputs, and how it looks."""

from __future__ import annotations

import csv
import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest


def weights_by_enumeration(p):
    """E[1{i in A}/|A|] over all non-empty A, normalised: Proposition 1 by its definition."""
    total = np.zeros(len(p))
    for subset in itertools.product([0, 1], repeat=len(p)):
        active = np.array(subset)
        if active.any():
            total += np.prod(np.where(active, p, 1 - np.array(p))) * active / active.sum()
    return total / total.sum()


def rho_by_enumeration(p):
    """The second eigenvalue of E[W]."""
    m, mean = len(p), 0
    for subset in itertools.product([0, 1], repeat=m):
        active = np.array(subset, bool)
        w = np.eye(m)
        if active.any():
            w[np.ix_(active, active)] = 1 / active.sum()
        mean = mean + np.prod(np.where(active, p, 1 - np.array(p))) * w
    return np.sort(np.linalg.eigvalsh(mean))[-2]


def found(fedpbc, *arguments):
    status, out, err = fedpbc("theory", *arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def test_weights_rho_and_cooldown_of_a_list(fedpbc):
    p = [0.1, 0.5, 0.5, 1.0]
    result = found(fedpbc, "0.1, .5x2, 1", "--tolerance", "0.01")
    np.testing.assert_allclose(result["p"], p)
    np.testing.assert_allclose(result["fedavg"]["weights"], weights_by_enumeration(p))
    half = np.abs(weights_by_enumeration(p) - 0.25).sum() / 2
    assert result["fedavg"]["total_variation"] == pytest.approx(half)
    rho = rho_by_enumeration(p)
    assert result["fedpbc"]["rho"] == pytest.approx(rho)
    assert result["fedpbc"]["cooldown_rounds_squared_distance"] == math.ceil(math.log(0.01) / math.log(rho))
    assert result["fedpbc"]["cooldown_rounds_distance"] == math.ceil(math.log(0.01**2) / math.log(rho))
    assert result["theorem_1"] is None


@pytest.mark.parametrize("name", ["p.csv", "p.npy"])
def test_vectors_and_rounds_by_clients_from_files(fedpbc, tmp_path, name):
    def write(values):
        if name == "p.npy":
            np.save(tmp_path / name, values)
        else:
            np.savetxt(tmp_path / name, values, delimiter=",")

    write(np.array([0.2, 0.9]))
    assert found(fedpbc, name)["fedpbc"]["rho"] == pytest.approx(1 - 0.2 * 0.9)  # m = 2: E[W] has 1 - p_1 p_2
    rounds = np.array([[0.2, 0.9], [0.5, 0.5], [0.2, 0.9]])
    write(rounds)
    result = found(fedpbc, name, "--tolerance", "0.7")
    assert result["rounds_of_p"] == 3
    assert result["fedpbc"]["rho"] == pytest.approx(0.82)
    expected = np.mean([weights_by_enumeration(row) for row in rounds], axis=0)
    np.testing.assert_allclose(result["fedavg"]["weights"], expected)
    assert result["fedpbc"]["cooldown_rounds_squared_distance"] == 2  # .82 > .7, .82 * .75 < .7
    assert result["fedpbc"]["cooldown_rounds_distance"] is None or result["fedpbc"]["cooldown_rounds_distance"] == 3
    status, out, _ = fedpbc("theory", name, "--tolerance", "0.1")
    assert status == 0
    assert "not within the 3 rounds of p" in " ".join(out.split())


def test_a_participation_log_gives_rates_and_says_so(fedpbc, tmp_path):
    active = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 1]], bool)
    np.save(tmp_path / "log.npy", active)
    (tmp_path / "log.csv").write_text(
        "round,client\n" + "".join(f"{t},c{i}\n" for t, i in zip(*np.nonzero(active), strict=True))
    )
    for name in ("log.npy", "log.csv"):
        result = found(fedpbc, name)
        np.testing.assert_allclose(result["p"], [1.0, 0.5, 0.25])
        np.testing.assert_allclose(result["fedavg"]["weights"], weights_by_enumeration([1.0, 0.5, 0.25]))
        assert "estimate" in result["notes"][0]
    assert result["clients"] == ["c0", "c1", "c2"]
    as_p = found(fedpbc, "log.npy", "--probabilities")
    assert as_p["rounds_of_p"] == 4
    assert as_p["fedpbc"]["rho"] == 1
    assert as_p["fedpbc"]["cooldown_rounds_squared_distance"] is None
    np.save(tmp_path / "gaps.npy", np.insert(active, 2, False, axis=0))
    np.testing.assert_allclose(
        found(fedpbc, "gaps.npy")["p"], [0.8, 0.4, 0.2], err_msg="a round without anybody counts"
    )
    more = found(fedpbc, "log.csv", "--clients", "5")
    assert sorted(more["p"]) == [0, 0, 0.25, 0.5, 1], "two clients were never seen"
    assert sum(weight == 0 for weight in more["fedavg"]["weights"]) == 2


def test_theorem_1_with_its_conditions_term_by_term(fedpbc):
    setting = ["--local-steps", "2", "--learning-rate", "1e-3", "--smoothness", "2", "--sigma2", "3", "--zeta2", "5"]
    result = found(fedpbc, "0.5x4", *setting, "--rounds", "100", "--initial-gap", "7")["theorem_1"]
    limits = {condition["name"]: condition["limit"] for condition in result["conditions"]}
    rho = rho_by_enumeration([0.5] * 4)
    assert limits["half step"] == 1 / 4
    assert limits["cubic"] == pytest.approx(1 / (rho * 8))
    assert limits["consensus"] == pytest.approx((1 - rho**0.5) / (6 * (2 * rho) ** 0.5 * 2 * 4))
    assert {c["name"] for c in result["conditions"] if c["holds"]} >= {"half step", "cubic"}
    assert result["bound"]["initial_gap"] == pytest.approx(8 * 7 / (2 * 1e-3 * 100))
    terms = [value for name, value in result["bound"].items() if name != "total"]
    assert result["bound"]["total"] == pytest.approx(sum(terms))
    assert all(value > 0 for value in terms)
    without = found(fedpbc, "0.5x4", *setting)["theorem_1"]
    assert without["bound"] is None
    assert without["conditions"] == result["conditions"]


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize(
    "arguments",
    [
        ["0.1,0.5,0.9"],
        ["0.1x500,0.9x500", "--local-steps", "30", "--learning-rate", "3e-4", "--smoothness", "1", "--rounds", "2000",
         "--initial-gap", "1e9", "--sigma2", "3.25", "--beta", "0.5", "--zeta2", "1e6"],
        ["0,0.5,1"],
        ["log.csv"],
    ],
)  # fmt: skip
def test_the_page_fits_the_terminal(fedpbc, tmp_path, monkeypatch, width, arguments):
    (tmp_path / "log.csv").write_text("round,client\n0,a-very-long-name-of-a-client-that-nobody-would-type\n0,b\n1,b\n")
    monkeypatch.setenv("COLUMNS", str(width))
    status, out, err = fedpbc("theory", *arguments)
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= width
    words = " ".join(out.split())
    assert "squared distance" in words or "rho is 1" in words
    if "--rounds" in arguments:
        assert "does not hold" in words
        assert "the bound is not promised" in words


def test_weights_can_be_written_to_a_file(fedpbc, tmp_path):
    assert fedpbc("theory", "0.5,1", "--out", "w.csv")[0] == 0
    rows = list(csv.DictReader((tmp_path / "w.csv").read_text().splitlines()))
    assert [(row["client"], float(row["p"])) for row in rows] == [("0", 0.5), ("1", 1.0)]
    assert [float(row["weight"]) for row in rows] == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["0.1,1.5"], 'P = "0.1,1.5": client 1 has 1.5, must be in [0, 1]'),
        (["0.1,,2"], '"" is no number'),
        (["half"], '"half" is no number; must be a file, or numbers with commas between'),
        (["0.1x99999999999"], "at most 10,000,000 clients"),
        (["0,0"], "every probability is 0"),
        (["no.csv"], "P = no.csv: no such file"),
        (["empty.csv"], "P = empty.csv: "),
        (["bad.csv"], "P = bad.csv: client 1 in round 1 has 7, must be in [0, 1]"),
        (["0.5,0.5", "--clients", "3"], "--clients 3: is for participation logs"),
        (["0.5,0.5", "--tolerance", "2"], "--tolerance 2: must be in (0, 1)"),
        (["0.5,0.5", "--local-steps", "3"], "Theorem 1 needs --learning-rate, --smoothness too"),
        (["0.5,0.5", "--rounds", "3"], "Theorem 1 needs --local-steps, --learning-rate, --smoothness, --initial-gap"),
        (["0.5,0.5", "--local-steps", "3", "--learning-rate", "-1", "--smoothness", "1"], "--learning-rate -1: must"),
        (["0.5,0.5", "--local-steps", "3", "--learning-rate", "1", "--smoothness", "1", "--beta", "-1"], "--beta -1"),
        (["0.5,0.5", "--out", "w.txt"], "--out w.txt: must end in .csv"),
    ],
)
def test_mistakes_are_one_line(fedpbc, tmp_path, arguments, message):
    (tmp_path / "bad.csv").write_text("0.1,0.2\n0.3,7\n")
    (tmp_path / "empty.csv").write_text("")
    status, out, err = fedpbc("theory", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


def test_it_needs_no_jax():
    code = (
        "import sys; sys.modules['jax'] = None; sys.argv[1:] = ['theory', '0.5,1'];from fedpbc.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    code = "import sys, fedpbc; print(fedpbc.theory.mixing_rate([0.5, 0.5])); assert 'jax' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(0.75)
