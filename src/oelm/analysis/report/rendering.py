"""A table of records, and its renderings: text rows, CSV, markdown, the terminal."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from oelm.analysis.report.texts import Texts, texts

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Record = dict[str, Any]
FOLD = "\n"
"""Where a cell may be broken into lines on a narrow terminal."""
PADDING = 2


@dataclass(frozen=True)
class Column:
    key: str
    """Names its heading in `texts`."""
    cell: Callable[..., str]
    """Of a record and the texts."""
    right: bool = True
    heading: str | None = None


@dataclass(frozen=True)
class Table:
    name: str
    columns: list[Column]
    records: list[Record]
    texts: Texts = field(default_factory=lambda: texts("en"))

    @property
    def title(self) -> str:
        return self.texts(f"table_{self.name}")

    def header(self) -> list[str]:
        return [column.heading or self.texts(f"column_{column.key}") for column in self.columns]

    def rows(self, folded: bool = False) -> list[list[str]]:
        """The cells as text; folded, long ones take several lines."""
        cells = [[column.cell(record, self.texts) for column in self.columns] for record in self.records]
        return cells if folded else [[cell.replace(FOLD, " ") for cell in row] for row in cells]

    def csv(self) -> str:
        """All fields of the records, as numbers; an unknown value is an empty cell."""
        out = io.StringIO()
        fields = list(dict.fromkeys(key for record in self.records for key in record))
        writer = csv.DictWriter(out, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records)
        return out.getvalue()

    def markdown(self) -> str:
        rows = [[cell.replace("|", r"\|") for cell in row] for row in [self.header(), *self.rows()]]
        rule = ["--:" if column.right else ":--" for column in self.columns]
        return "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], rule, *rows[1:]])

    def rich(self, width: int) -> "list[RichTable]":
        """One table where it fits; else cells are folded and the columns dealt out to several tables."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        header, rows = self.header(), self.rows(folded=False)
        widths = _widths(header, rows)
        parts = [list(range(1, len(header)))]
        if sum(widths) > width:
            rows = self.rows(folded=True)
            widths = _widths([max(name.split(" "), key=len) for name in header], rows)
            parts = _deal(widths, width)
        tables: list[RichTable] = []
        for part in parts:
            table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
            for i in (0, *part):
                justify: Literal["left", "right"] = "right" if self.columns[i].right else "left"
                table.add_column(header[i], justify=justify, max_width=widths[i] - PADDING, overflow="fold")
            for row in rows:
                table.add_row(*(Text(row[i]) for i in (0, *part)))
            tables.append(table)
        return tables


def _widths(header: list[str], rows: list[list[str]]) -> list[int]:
    from rich.cells import cell_len

    columns = zip(header, *rows, strict=True)
    return [PADDING + max(cell_len(line) for cell in column for line in cell.split(FOLD)) for column in columns]


def _deal(widths: list[int], width: int) -> list[list[int]]:
    """Columns after the first, into as few tables as fit."""
    parts: list[list[int]] = [[]]
    for i in range(1, len(widths)):
        if parts[-1] and widths[0] + sum(widths[j] for j in parts[-1]) + widths[i] > width:
            parts.append([])
        parts[-1].append(i)
    return parts
