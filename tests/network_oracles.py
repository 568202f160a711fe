"""Networks in plain NumPy, sample by sample or gate by gate, from their definitions; outputs are [n, outputs]."""

from __future__ import annotations

import numpy as np


def relu(z: np.ndarray) -> np.ndarray:
    return np.maximum(z, 0)


def convolved(images: np.ndarray, kernel: np.ndarray, stride: int = 1) -> np.ndarray:
    """Zero-padded 3x3 correlation, pixel by pixel: [n, h, w, in] -> [n, h', w', out]; kernel [out, 9 in]."""
    n, height, width, depth = images.shape
    padded = np.zeros((n, height + 2, width + 2, depth))
    padded[:, 1:-1, 1:-1] = images
    rows, columns = range(0, height, stride), range(0, width, stride)
    out = np.empty((n, len(rows), len(columns), len(kernel)))
    for a, i in enumerate(rows):
        for b, j in enumerate(columns):
            out[:, a, b] = padded[:, i : i + 3, j : j + 3].reshape(n, -1) @ kernel.T
    return out


def pooled(images: np.ndarray) -> np.ndarray:
    """2x2 maxima; an odd last row or column is left out."""
    n, height, width, depth = images.shape
    out = np.empty((n, height // 2, width // 2, depth))
    for i in range(height // 2):
        for j in range(width // 2):
            out[:, i, j] = images[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max(axis=(1, 2))
    return out


def dense(layers: list[np.ndarray], values: np.ndarray) -> np.ndarray:
    for k, layer in enumerate(layers):
        values = (relu(values) if k else values) @ layer[:, :-1].T + layer[:, -1]
    return values


def cnn(params: dict, images: np.ndarray) -> np.ndarray:
    for layer in params["conv"]:
        images = pooled(relu(convolved(images, layer[:, :-1]) + layer[:, -1]))
    return dense(params["dense"], images.reshape(len(images), -1))


def group_norm(images: np.ndarray, norm: np.ndarray, groups: int) -> np.ndarray:
    out, size = np.empty_like(images), images.shape[3] // groups
    for sample in range(len(images)):
        for group in range(groups):
            part = images[sample, :, :, group * size : (group + 1) * size]
            out[sample, :, :, group * size : (group + 1) * size] = (part - part.mean()) / np.sqrt(part.var() + 1e-5)
    return out * norm[0] + norm[1]


def resnet(params: dict, images: np.ndarray, groups: int) -> np.ndarray:
    values = relu(group_norm(convolved(images, params["stem"]["conv"]), params["stem"]["norm"], groups))
    for stage, blocks in enumerate(params["stages"]):
        for k, block in enumerate(blocks):
            stride = 2 if stage > 0 and k == 0 else 1
            inner = relu(group_norm(convolved(values, block["conv1"], stride), block["norm1"], groups))
            inner = group_norm(convolved(inner, block["conv2"]), block["norm2"], groups)
            if "project" in block:
                values = group_norm(values[:, ::stride, ::stride] @ block["project"].T, block["norm3"], groups)
            values = relu(inner + values)
    return dense([params["dense"]], values.mean(axis=(1, 2)))


def batch_norm(images: np.ndarray, norm: np.ndarray, running: dict, training: bool) -> tuple[np.ndarray, dict]:
    """PyTorch's BatchNorm2d, channel by channel: normalised by the biased variance, the unbiased one is kept."""
    out, after = np.empty_like(images), {name: values.copy() for name, values in running.items()}
    for c in range(images.shape[3]):
        mean, var = running["running_mean"][c], running["running_var"][c]
        if training:
            values = images[:, :, :, c].ravel()
            mean, var = values.mean(), values.var()
            after["running_mean"][c] += 0.1 * (mean - running["running_mean"][c])
            after["running_var"][c] += 0.1 * (values.var(ddof=1) - running["running_var"][c])
        out[:, :, :, c] = (images[:, :, :, c] - mean) / np.sqrt(var + 1e-5) * norm[0, c] + norm[1, c]
    return out, after


def resnet_with_batch_norm(both: tuple[dict, dict], images: np.ndarray, training: bool) -> tuple[np.ndarray, dict]:
    """(outputs, buffers after it)."""
    params, kept = both

    def normed(part: dict, old: dict, new: dict, name: str, values: np.ndarray) -> np.ndarray:
        values, new[name] = batch_norm(values, part[name], old[name], training)
        return values

    after: dict = {"stem": {}, "stages": tuple(tuple({} for _ in blocks) for blocks in kept["stages"])}
    values = convolved(images, params["stem"]["conv"])
    values = relu(normed(params["stem"], kept["stem"], after["stem"], "norm", values))
    for stage, blocks in enumerate(params["stages"]):
        for k, block in enumerate(blocks):
            place = block, kept["stages"][stage][k], after["stages"][stage][k]
            stride = 2 if stage > 0 and k == 0 else 1
            inner = relu(normed(*place, "norm1", convolved(values, block["conv1"], stride)))
            inner = normed(*place, "norm2", convolved(inner, block["conv2"]))
            if "project" in block:
                values = normed(*place, "norm3", values[:, ::stride, ::stride] @ block["project"].T)
            values = relu(inner + values)
    return dense([params["dense"]], values.mean(axis=(1, 2))), after


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def gru(params: dict, characters: np.ndarray) -> np.ndarray:
    values = params["embedding"].T[characters]  # [n, length, e]
    for layer in params["layers"]:
        h = len(layer["hidden"]) // 3
        state, states = np.zeros((len(values), h)), []
        for t in range(values.shape[1]):
            a = values[:, t] @ layer["input"][:, :-1].T + layer["input"][:, -1]
            b = state @ layer["hidden"][:, :-1].T + layer["hidden"][:, -1]
            r, z = sigmoid(a[:, :h] + b[:, :h]), sigmoid(a[:, h : 2 * h] + b[:, h : 2 * h])
            state = (1 - z) * np.tanh(a[:, 2 * h :] + r * b[:, 2 * h :]) + z * state
            states.append(state)
        values = np.stack(states, axis=1)
    return dense([params["dense"]], values[:, -1])
