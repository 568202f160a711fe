"""What ``fedpbc theory`` prints: plain text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

TERMS = {
    "initial_gap": "initial gap",
    "stochastic_gradient_noise": "stochastic gradient noise",
    "client_drift_error": "client drift",
    "intermittent_participation_error": "intermittent participation",
    "total": "total",
}
LONGEST_NAME = 24


def page(found: dict[str, Any], width: int) -> Iterator[str]:
    """The lines of the page, at most ``width`` columns wide unless a single word is longer."""
    p, m = found["p"], found["num_clients"]
    rounds = f" in {found['rounds_of_p']:,} rounds" if found["rounds_of_p"] else ""
    yield from _fill(
        f"p of {m:,} clients{rounds}: {min(p):.4g} to {max(p):.4g}, mean {sum(p) / m:.4g} (from {found['source']})",
        width,
    )
    for note in found["notes"]:
        yield from _fill(f"note: {note}", width)
    yield ""
    yield from _fedavg(found, width)
    yield ""
    yield from _fedpbc(found, width)
    if found["theorem_1"]:
        yield ""
        yield from _theorem(found["theorem_1"], m, width)


def _fedavg(found: dict[str, Any], width: int) -> Iterator[str]:
    weights, m = found["fedavg"]["weights"], found["num_clients"]
    yield "FedAvg over the active clients (Proposition 1)"
    if found["rounds_of_p"]:
        yield from _fill("Weights are the mean of those of each round.", width, "  ")
    yield from _fill(
        "On quadratics it minimises sum_i w_i F_i instead of the mean of F_i: w_i from "
        f"{min(weights):.4g} to {max(weights):.4g}, equal ones would be {1 / m:.4g}. "
        f"{100 * found['fedavg']['total_variation']:.3g} % of the weight is on other clients than equal weights would "
        "put it.",
        width,
        "  ",
    )
    order = sorted(range(m), key=weights.__getitem__)
    if weights[order[-1]] - weights[order[0]] < 1e-9 / m:
        return
    yield ""
    yield f"  {'client':{LONGEST_NAME}}{'p':>8}{'w':>10}{'w / (1/m)':>11}"
    shown = order if m <= 6 else [*order[:3], -1, *order[-3:]]
    for i in shown:
        if i < 0:
            yield f"  ... {m - 6:,} clients between"
            continue
        name = _short(found["clients"][i])
        yield f"  {name:{LONGEST_NAME}}{found['p'][i]:>8.4g}{weights[i]:>10.4g}{m * weights[i]:>11.3g}"


def _fedpbc(found: dict[str, Any], width: int) -> Iterator[str]:
    about = found["fedpbc"]
    yield "FedPBC: how fast the clients' models mix (Lemmas 1 and 2)"
    worst = ", of the worst round" if found["rounds_of_p"] else ""
    yield from _fill(
        f"rho = {about['rho']:.7g}{worst} (1 - rho = {about['gap']:.4g}). The mean squared distance of the models from "
        "their mean shrinks by rho in a round of mixing alone.",
        width,
        "  ",
    )
    bound = about["rho_bound_lemma_1"]
    if bound is not None:
        yield from _fill(f"Lemma 1's own bound: rho <= {bound:.7g}.", width, "  ")
    if about["gap"] == 0:
        yield from _fill("rho is 1: the models never agree, however long the cool-down.", width, "  ")
        return
    tolerance = about["tolerance"]
    squared, plain = (_rounds(about[f"cooldown_rounds_{name}"], found) for name in ("squared_distance", "distance"))
    yield from _fill(
        f"Cool-down until the squared distance is {tolerance:g} of what it was: {squared}. Until the distance itself "
        f"is: {plain}.",
        width,
        "  ",
    )


def _rounds(count: int | None, found: dict[str, Any]) -> str:
    if count is None:
        return f"not within the {found['rounds_of_p']:,} rounds of p"
    return f"{count:,} round{'s' if count != 1 else ''}"


def _theorem(about: dict[str, Any], m: int, width: int) -> Iterator[str]:
    yield from _fill(
        f"Theorem 1 at eta = {about['learning_rate']:g}, s = {about['local_steps']}, L = {about['smoothness']:g}, "
        f"sigma^2 = {about['sigma2']:g}, beta = {about['beta']:g}, zeta^2 = {about['zeta2']:g}",
        width,
    )
    yield f"  {'condition':20}{'eta at most':>14}"
    for condition in about["conditions"]:
        limit = "any" if condition["limit"] is None else f"{condition['limit']:.4g}"
        yield f"  {condition['name']:20}{limit:>14}   {'holds' if condition['holds'] else 'does not hold'}"
    broken = [condition["name"] for condition in about["conditions"] if not condition["holds"]]
    if about["bound"] is not None:
        yield ""
        what = f"(1/T) sum_t E ||grad F||^2 of the mean model over T = {about['rounds']:,} rounds, at most:"
        yield from _fill(what, width, "  ")
        for key, text in TERMS.items():
            yield f"  {text:28}{about['bound'][key]:>12.4g}"
    if broken:
        yield ""
        what = "so the bound is not promised. " if about["bound"] is not None else ""
        yield from _fill(
            f"eta is too large for {', '.join(broken)}: {what}These conditions are sufficient, far from necessary; do "
            "not choose a learning rate by them.",
            width,
            "  ",
        )


def _short(name: str) -> str:
    name = "".join(c if c.isprintable() else "?" for c in name)
    return name if len(name) < LONGEST_NAME else name[: LONGEST_NAME - 4] + "..."


def _fill(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
