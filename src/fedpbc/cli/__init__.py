"""The command line: fedpbc run, tune, merge, data, links, list, report, export, audit, theory, flower."""

from __future__ import annotations

import io
import os
import sys
import warnings
from typing import Any

import click

from fedpbc import __version__
from fedpbc.cli import audit, data, export, flower, links, listing, merge, report, run, theory, tune
from fedpbc.errors import EXTRAS, ConfigError, FedpbcError, MissingPackage


def main() -> None:
    """Entry point: bad input ends with status 2, other failures with 1; one message, no traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = _show_warning
        _main()


def _main() -> None:
    try:
        _cli(standalone_mode=False)
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except SystemExit as exit_:
        if exit_.code:
            _leave(exit_.code if isinstance(exit_.code, int) else 1)
        raise
    except (KeyboardInterrupt, click.Abort):
        click.echo("error: interrupted; go on with --resume", err=True)
        os._exit(130)  # at once: a compiled round may still be running, and must not outlive the interpreter
    except ConfigError as error:
        _fail(str(error), 2)
    except FedpbcError as error:
        _fail(str(error), 1)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        _fail(str(MissingPackage("this", package)), 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        more = "; a run that had started goes on with --resume" if sys.argv[1:2] in (["run"], ["tune"]) else ""
        _fail(f"{where}{error.strerror or error}{more}", 1)
    except MemoryError:
        _fail("out of memory; what was finished is kept", 1)
    except RuntimeError as error:
        if type(error).__name__ != "JaxRuntimeError" and "initialize backend" not in str(error):
            raise
        _fail(f"{str(error).splitlines()[0]}; what was finished is kept", 1)


def _fail(message: str, status: int) -> None:
    click.echo(f"error: {message}", err=True)
    _leave(status)


def _leave(status: int) -> None:
    """End; where other processes share the run, without waiting for them."""
    module = sys.modules.get("fedpbc.runs.processes")
    if module is not None:
        module.leave(status)
    sys.exit(status)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """One line, as errors are; where in the code it came from is of no use to who reads it."""
    click.echo(f"warning: {' '.join(str(message).split())}", err=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.version_option(__version__, prog_name="fedpbc")
def _cli() -> None:
    """Federated learning over links that fail: simulate FedAvg, FedPBC and what comes between."""


for _command in (
    run.run, tune.tune, merge.merge, data.data, links.links, listing.list_, report.report, export.export, audit.audit,
    theory.theory, flower.flower,
):  # fmt: skip
    _cli.add_command(_command)
