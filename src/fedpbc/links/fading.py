"""Wireless links in outage: active while the signal-to-noise ratio carries the rate."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import numpy as np

from fedpbc.core.lazy import jax, jnp
from fedpbc.core.schema import Context, NonNegative, Positive, Range, component
from fedpbc.core.types import Array, Link, LinkProcess
from fedpbc.errors import BadOption
from fedpbc.links.bernoulli import key_of_init


class _Params(NamedTuple):
    """In float32 whatever the precision of the run, so that A^t does not depend on it; ``prob`` is for the run."""

    threshold: Array
    """What a client's channel must reach, [m]."""
    line_of_sight: Array
    """Added to the first Gaussian."""
    memory: Array
    """r, the correlation of a Gaussian with that of the round before."""
    fresh: Array
    """sqrt(1 - r^2)."""
    like: Array
    """Of the shape of the state: [Gaussians of a client, m]."""
    prob: Array


@component
def fading(
    context: Context,
    *,
    model: Literal["rayleigh", "rician", "nakagami", "shadowing"] = "rayleigh",
    rate: Positive = 1.25e6,
    bandwidth: Positive = 1e6,
    power: Positive = 0.1,
    gain: Positive = 1e-4,
    exponent: NonNegative = 3.5,
    noise: Positive = 4e-21,
    radius: Positive = 500.0,
    minimum_distance: Positive = 10.0,
    k_factor: Annotated[float, Range(0, 100)] = 4.0,
    shape: Annotated[float, Range(0.5, 100)] = 2.0,
    shadowing_db: Positive = 8.0,
    doppler: NonNegative | None = None,
    round_seconds: Positive = 1.0,
) -> LinkProcess:
    """Active when the SNR of the round is at least 2^(rate / bandwidth) - 1, under one of four fading models.

    The mean SNR is power gain distance^-exponent / (noise bandwidth). "rayleigh"; "rician" with ``k_factor``
    (line of sight over scatter, a ratio); "nakagami" with ``shape`` m (2m must be an integer); "shadowing":
    lognormal with ``shadowing_db`` dB. Distances are uniform in the disk, from the seed. With ``doppler``
    (Hz) the Gaussians behind the channel are first-order autoregressive, r = J0(2 pi doppler round_seconds);
    without, rounds are independent. p_i in closed form: exp(-x), Marcum Q1(sqrt(2K), sqrt(2(K+1)x)), upper
    incomplete gamma (m, m x), Q(x in dB / shadowing_db), with x the needed over the mean SNR.
    Units: rate bit/s, bandwidth Hz, power W, gain at 1 m as a ratio, noise W/Hz, radius and minimum_distance m.
    """
    from scipy.special import gammaincc, j0, ndtr  # here, as it takes long to import

    if minimum_distance > radius:
        raise BadOption("minimum_distance", minimum_distance, f"must be at most radius, {radius:g}")
    if rate / bandwidth > 1000:
        raise BadOption("rate", rate, f"must be at most 1000 bandwidth, {1000 * bandwidth:g}")
    if model == "nakagami" and not (2 * shape).is_integer():
        raise BadOption("shape", shape, "must be a multiple of 0.5")
    distance = _distances(context, minimum_distance, radius)
    mean_db = _db(power) + _db(gain) - exponent * _db(distance) - _db(noise) - _db(bandwidth)
    excess_db = _db(np.expm1(np.log(2) * rate / bandwidth)) - mean_db
    x = 10 ** (np.clip(excess_db, -300, 300) / 10)
    num, shift, threshold, prob = {
        "rayleigh": (2, 0.0, 2 * x, np.exp(-x)),
        "rician": (2, np.sqrt(2 * k_factor), 2 * (k_factor + 1) * x, _marcum(k_factor, x) if model == "rician" else x),
        "nakagami": (round(2 * shape), 0.0, 2 * shape * x, gammaincc(shape, shape * x)),
        "shadowing": (1, 0.0, excess_db / shadowing_db, ndtr(-excess_db / shadowing_db)),
    }[model]
    r = 0.0 if doppler is None else float(j0(min(2 * np.pi * doppler * round_seconds, 1e300)))
    params = _Params(
        threshold=np.asarray(threshold, np.float32),
        line_of_sight=np.asarray(shift, np.float32),
        memory=np.asarray(r, np.float32),
        fresh=np.asarray(np.sqrt(1 - r**2), np.float32),
        like=np.zeros((num, len(distance)), bool),
        prob=np.asarray(prob, context.dtype),
    )
    return LinkProcess(params, _init, _step_shadowing if model == "shadowing" else _step_power)


def _db(ratio: np.ndarray | float) -> np.ndarray:
    return 10 * np.log10(ratio)


def _distances(context: Context, low: float, high: float) -> np.ndarray:
    """Uniform in the disk around the server, metres, [m]."""
    share = context.rng("fading distances").random(context.problem.num_clients)
    return high * np.sqrt((low / high) ** 2 * (1 - share) + share)


def _marcum(k_factor: float, x: np.ndarray) -> np.ndarray:
    """Q1(sqrt(2K), sqrt(2(K+1)x)): a noncentral chi-square with 2 degrees of freedom and noncentrality 2K."""
    from scipy.stats import ncx2

    return np.clip(ncx2.sf(np.minimum(2 * (k_factor + 1) * x, 1e6), 2, 2 * k_factor), 0, 1)


def _init(params: _Params, key: Array) -> Array:
    return _gaussian(params, key_of_init(key))


def _gaussian(params: _Params, key: Array) -> Array:
    return jax.random.normal(key, params.like.shape, jnp.float32)


def _next(params: _Params, key: Array, state: Array) -> Array:
    """h_(t+1) = r h_t + sqrt(1 - r^2) N(0, 1)."""
    return params.memory * state + params.fresh * _gaussian(params, key)


def _step_power(params: _Params, key: Array, state: Array, t: Array) -> tuple[Array, Link]:
    state = _next(params, key, state)
    power = jnp.sum(state.at[0].add(params.line_of_sight) ** 2, axis=0)
    return state, Link(power >= params.threshold, params.prob)


def _step_shadowing(params: _Params, key: Array, state: Array, t: Array) -> tuple[Array, Link]:
    state = _next(params, key, state)
    return state, Link(state[0] >= params.threshold, params.prob)
