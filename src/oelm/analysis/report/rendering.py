"""A table of records, and its renderings: text rows, CSV, markdown, the terminal."""

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from oelm.analysis.compare.arms import flatten
from oelm.analysis.report.texts import NONE, Texts, texts

if TYPE_CHECKING:
    from rich.table import Table as RichTable

FOLD = "\n"  # where a cell may be broken into lines on a narrow terminal
PADDING = 2


@dataclass(frozen=True)
class Column:
    key: str  # names its heading in `texts`
    cell: Callable[..., str | None]  # of a record and the texts; None where nothing is known
    right: bool = True
    heading: str | None = None


@dataclass(frozen=True)
class Table:
    name: str
    columns: list[Column]
    records: Sequence[Any]  # dictionaries, or typed records with a `to_dict`
    texts: Texts = field(default_factory=lambda: texts("en"))
    section: Callable[[Any], str] | None = None  # of a record; where there are several, each has a heading

    @property
    def title(self) -> str:
        return self.texts(f"table_{self.name}")

    def header(self) -> list[str]:
        return [column.heading or self.texts(f"column_{column.key}") for column in self.columns]

    def rows(self, folded: bool = False) -> list[list[str]]:
        """The cells as text; folded, long ones take several lines."""
        cells = [[column.cell(record, self.texts) or NONE for column in self.columns] for record in self.records]
        return cells if folded else [[cell.replace(FOLD, " ") for cell in row] for row in cells]

    def sections(self) -> list[tuple[str, list[tuple[Any, list[str]]]]]:
        """Heading, and the records with their rows; the heading is empty where all are of one section."""
        found: dict[str, list[tuple[Any, list[str]]]] = {}
        for record, row in zip(self.records, self.rows(folded=True), strict=True):
            found.setdefault(self.section(record) if self.section else "", []).append((record, row))
        return list(found.items()) if len(found) > 1 else [("", rows) for rows in found.values()]

    def facts(self) -> list[dict[str, Any]]:
        """The records as plain dictionaries."""
        return [record if isinstance(record, dict) else record.to_dict() for record in self.records]

    def csv(self) -> str:
        """All fields of the records by dotted name, as numbers; an unknown value is an empty cell."""
        out, rows = io.StringIO(), [flatten(record) for record in self.facts()]
        writer = csv.DictWriter(out, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows([{key: _safe(value) for key, value in row.items()} for row in rows])
        return out.getvalue()

    def markdown(self) -> str:
        rule = ["--:" if column.right else ":--" for column in self.columns]
        rows = [list(map(escape_markdown, self.header())), rule]
        for heading, found in self.sections():
            rows += [[f"**{escape_markdown(heading)}**", *[""] * (len(rule) - 1)]] if heading else []
            rows += [[escape_markdown(cell.replace(FOLD, " ")) for cell in row] for _, row in found]
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)

    def rich(self, width: int) -> "list[RichTable]":
        """One table where it fits; else cells are folded and the columns dealt out to several tables."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        header = self.header()
        widths, parts = _widths(header, self.rows()), [list(range(1, len(header)))]
        if fold := sum(widths) > width:
            widths = _widths([max(name.split(" "), key=len) for name in header], self.rows(folded=True))
            parts = _deal(widths, width)
        tables: list[RichTable] = []
        for heading, found in self.sections():
            for part in parts:
                table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
                table.title, table.title_justify = Text(heading, style="bold") if heading else None, "left"
                for i in (0, *part):
                    justify: Literal["left", "right"] = "right" if self.columns[i].right else "left"
                    table.add_column(header[i], justify=justify, max_width=widths[i] - PADDING, overflow="fold")
                for _, row in found:
                    table.add_row(*(Text(row[i] if fold else row[i].replace(FOLD, " ")) for i in (0, *part)))
                tables.append(table)
        return tables


def escape_markdown(text: str) -> str:
    """Names and texts of others, so that they are neither markup nor HTML nor the end of a cell.

    >>> print(escape_markdown("a|b *c* <b>"))
    a\\|b \\*c\\* &lt;b&gt;
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\|*`\[\]])", r"\\\1", text)


def _safe(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets an apostrophe; numbers stay numbers."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


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
