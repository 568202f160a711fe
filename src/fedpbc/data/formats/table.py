"""Tables: CSV and Parquet, a row for each sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpbc.core.schema import Context, PositiveInt
from fedpbc.data.arrays import Dataset, Pool
from fedpbc.data.component import loader
from fedpbc.data.dealing import Share, deal
from fedpbc.data.formats.columns import PLAIN, Roles, pool_of
from fedpbc.data.partition import PartitionOption
from fedpbc.errors import BadOption, first_line, optional


@loader
def table(
    context: Context,
    path: Path,
    *,
    label: str | None = None,
    client: str | None = None,
    features: Sequence[str] | None = None,
    test: Path | None = None,
    one_hot: bool = False,
    normalise: bool = False,
    max_rows: PositiveInt | None = None,
    partition: PartitionOption | None = None,
    test_share: Share = 0.0,
) -> Dataset:
    """A .csv (with a header; also .csv.gz) or .parquet with a row for each sample.

    ``label``: its column, by default label, target, class or y; words are classes, numbers with fractions are targets
    of ``regression``. ``client``: the column that says whose sample it is, by default client or client_id, if there is
    one. ``features``: all other columns, or those; ``one_hot``: words among them become columns of 0 and 1.
    ``normalise``: features get mean 0 and standard deviation 1. ``test``: a file of test samples. Needs pyarrow.
    """
    roles = Roles(label, client, features, one_hot, normalise)
    return deal(context, read_table(path, roles, test), partition, test_share, max_rows)


def read_table(path: Path, roles: Roles = PLAIN, test: Path | None = None) -> Pool:
    """The pool of a file, and of one with test samples. Raises BadOption, MissingPackage."""
    rows = _rows("path", path)
    return pool_of(path, rows, None if test is None else _rows("test", test), roles)


def _rows(option: str, path: Path) -> Any:
    """An Arrow table."""
    if not path.is_file():
        raise BadOption(option, path, "no such file")
    with path.open("rb") as file:
        head = file.read(4)
    if not head:
        raise BadOption(option, path, "is empty")
    try:
        if head == b"PAR1":
            found = optional("pyarrow.parquet", "data table").read_table(path)
        else:
            found = optional("pyarrow.csv", "data table").read_csv(path)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        what = "Parquet" if head == b"PAR1" else "a CSV with a header"
        raise BadOption(option, path, f"cannot be read as {what}: {first_line(error)}") from None
    if found.num_rows == 0:
        raise BadOption(option, path, "has no rows")
    _require_text(option, path, found)
    if len(set(found.column_names)) < len(found.column_names):
        raise BadOption(option, path, "has two columns of one name")
    return found


def _require_text(option: str, path: Path, table: Any) -> None:
    """Raise BadOption where names or words of a CSV are in another encoding than UTF-8: Arrow reads bytes then."""
    wrong = "is not in UTF-8 (iconv -f LATIN1 -t UTF-8 converts a file of Western Europe)"
    try:
        names = table.column_names
    except UnicodeDecodeError:
        raise BadOption(option, path, f"its header {wrong}") from None
    if path.suffix in (".csv", ".gz"):
        for name, kind in zip(names, table.schema.types, strict=True):
            if str(kind) == "binary":
                raise BadOption(option, path, f"column {name}: {wrong}")
