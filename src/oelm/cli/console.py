"""Where commands print: nothing is ever cut off, neither into a pipe nor on a narrow terminal."""

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

UNLIMITED = 10_000  # columns of what is no terminal: lines are as long as they are


class PlainHelp(typer.core.TyperCommand):
    """A command whose help leaves ranges to the errors: 80 columns then hold the name of every option."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from typer import rich_utils

        rich_utils.RANGE_STRING = ""
        super().format_help(ctx, formatter)


AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


class WholeConsole(Console):
    """A console that folds the text columns of a table and prints the rest of it in full, however narrow it is."""

    def print(self, *objects: Any, **how: Any) -> None:
        known, least = self._width, [self._least_width(part) for part in objects if isinstance(part, Table)]
        self._width = max(self.width, *least, 0)  # the terminal breaks the lines; `print` would clamp a wider `width`
        try:
            super().print(*objects, **how)
        finally:
            self._width = known

    def _least_width(self, table: Table) -> int:
        """The width at which nothing of a table is lost: unwrapped columns in full, others by their longest word."""
        wide = self.options.update(max_width=UNLIMITED)
        for column in table.columns:
            if column.overflow == "ellipsis":
                column.overflow = "fold"
            if column.no_wrap:
                widths = [Measurement.get(self, wide, cell).maximum for cell in (column.header, *column.cells)]
                column.min_width = max(column.min_width or 0, *widths)
        return Measurement.get(self, wide, table).minimum


def command_console(*, stderr: bool = False, **options: Any) -> Console:
    """The console that every command prints to; in a pipe or a file its lines have no limit."""
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return WholeConsole(stderr=stderr, highlight=False, width=None if terminal else UNLIMITED, **options)


def echo_json(facts: Any, ensure_ascii: bool = True) -> None:
    typer.echo(json.dumps(facts, indent=2, ensure_ascii=ensure_ascii))
