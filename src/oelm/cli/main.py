"""The `oelm` command. A file has the commands of one topic; each imports what it needs when it is called."""

import contextlib
import faulthandler
import signal
import sys
from typing import Any, NoReturn

import typer

from oelm.cli import bench, data, demo, doctor, inspect, models, recommend, report, run, status, train
from oelm.cli.console import PlainHelp
from oelm.cli.train import ShortHelp
from oelm.errors import OelmError, printable
from oelm.files import explain

# typer carries its own copy of click in some versions; the base class of its public exceptions is the right one.
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    help="Train Transformers whose attention never learns its queries and keys, and see exactly what that costs.",
    epilog="Start with: oelm demo. Every command has --help; those that print facts have --json.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: tuple[Any, ...] = (  # in the order of the help
    *(demo.demo, inspect.methods, inspect.inspect, train.train, train.resume, run.experiments, run.run),
    *(status.status, status.watch, report.dashboard, status.logs, status.stop),
    *(models.generate, models.evaluate, models.probe, models.export, bench.bench, inspect.estimate),
    *(report.compare, report.claims, recommend.recommend, report.report, doctor.doctor),
)
for command in _COMMANDS:
    app.command(cls=ShortHelp if command in (train.train, train.resume) else PlainHelp)(command)
app.command("audit", hidden=True)(report.claims)  # the name of `claims` until version 0.1
app.add_typer(data.app, name="data")


@app.callback(invoke_without_command=True)
def _top(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if version:
        from oelm import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> NoReturn:
    """Run the command line; what a user can mend is one line on stderr and an exit code, never a traceback."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # no such signal, or no stderr to write to
        faulthandler.register(signal.SIGUSR1)  # a process that seems to hang says where it is
    try:
        _require_values(sys.argv[1:])
        code = app(standalone_mode=False)
    except OelmError as error:
        _fail(str(error), error.exit_code)
    except _ClickException as error:
        message: str = error.format_message()  # type: ignore[attr-defined]
        context = getattr(error, "ctx", None)
        where = f" (see '{context.command_path} --help')" if context and message else ""  # else it has shown its help
        _fail(message + where, error.exit_code)  # type: ignore[attr-defined]
    except OSError as error:
        explained = explain(error)
        if explained is None:
            raise
        _fail(str(explained), explained.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _require_values(words: list[str]) -> None:
    """An empty path would be this folder; nobody means that by a variable that is not set."""
    for before, word in zip(["oelm", *words], words, strict=False):
        option, equals, value = word.partition("=")
        empty = not word.strip() or (word.startswith("--") and equals and not value.strip())
        if empty and "--prompt" not in (before, option):
            raise OelmError(f"the value of {option.strip() or before} is empty; give one, or leave it out")


def _fail(message: str, code: int) -> NoReturn:
    if message:
        print(f"error: {printable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)
