"""The numbers as a text file that Prometheus' node_exporter collects (its textfile collector)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedpbc.operation.standing import Standing

Sample = tuple[Mapping[str, str], float | None]


def text(standing: Standing, alerts: Mapping[str, int]) -> str:
    """All metrics in the text format 0.0.4; what is not known is left out. ``alerts``: raised, by code."""
    clients = standing.clients.values()
    line = standing.last
    one: list[tuple[str, str, str, float | None]] = [
        ("rounds_total", "counter", "Rounds that are closed.", standing.rounds),
        ("rounds_target", "gauge", "Rounds that there will be.", standing.target),
        ("active_clients", "gauge", "Clients heard in the last round.", line.get("active")),
        ("known_clients", "gauge", "Clients that were ever met.", line.get("known")),
        ("round_seconds", "gauge", "Seconds of the last round.", line.get("seconds")),
        ("rounds_per_day", "gauge", "Speed over the latest rounds.", standing.rounds_a_day()),
        ("remaining_seconds", "gauge", "Seconds until the target at this speed.", standing.remaining()),
        ("last_round_timestamp_seconds", "gauge", "When the last round was closed.", standing.closed()),
        ("sent_bytes_total", "counter", "Bytes to clients.", standing.bytes_down),
        ("received_bytes_total", "counter", "Bytes from clients.", standing.bytes_up),
    ]
    parts = [_metric(name, kind, what, [({}, value)]) for name, kind, what, value in one]
    each: list[tuple[str, str, str, list[Sample]]] = [
        ("client_heard_total", "counter", "Rounds in which a client was heard.",
         [({"client": c.name}, c.heard) for c in clients]),
        ("client_missed_rounds", "gauge", "Rounds since a client was heard.",
         [({"client": c.name}, standing.missed(c)) for c in clients]),
        ("client_behind_rounds", "gauge", "Missed rounds that a client has still to replay.",
         [({"client": c.name}, c.behind) for c in clients]),
        ("client_late_seconds", "gauge", "By how much the latest late reply missed its round.",
         [({"client": c.name}, c.late) for c in clients]),
        ("alerts", "gauge", "Alerts that are raised.", [({"code": code}, n) for code, n in alerts.items()]),
    ]  # fmt: skip
    parts += [_metric(name, kind, what, samples) for name, kind, what, samples in each]
    return "".join(parts)


def _metric(name: str, kind: str, what: str, samples: Iterable[Sample]) -> str:
    lines = [f"fedpbc_{name}{_labels(labels)} {float(value)!r}\n" for labels, value in samples if value is not None]
    return "".join([f"# HELP fedpbc_{name} {what}\n# TYPE fedpbc_{name} {kind}\n", *lines]) if lines else ""


ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def _labels(labels: Mapping[str, str]) -> str:
    quoted = [f'{key}="{value.translate(ESCAPES)}"' for key, value in labels.items()]
    return f"{{{','.join(quoted)}}}" if quoted else ""
