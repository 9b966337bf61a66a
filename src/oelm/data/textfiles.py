"""The documents of one file, streamed: bytes, then lines, then documents."""

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from oelm.data import rows
from oelm.errors import OelmError

SUFFIXES = (".txt", *rows.SUFFIXES)  # each also with .gz or .zst
SEPARATOR = "<|endoftext|>"


def file_documents(path: Path, field: str = "text", keep_blank: bool = False) -> Iterator[str]:
    """Stream the documents of one file; what is wrong with it is told with its name and line.

    Files with columns hold one document per row in `field`; rows without text are left out unless `keep_blank`. In
    `.txt`, documents end at a line `<|endoftext|>`; a file that begins with a WikiText heading (` = Title = `) has one
    document per article; any other text is cut at blank lines into documents of about 64 kB, so that a book of any
    length streams.
    """
    empty = True
    try:
        for text in _text_documents(path) if rows.text_format(path) == ".txt" else row_texts(path, field):
            blank = not text or text.isspace()
            empty = empty and blank
            if keep_blank or not blank:
                yield text
    except (OSError, EOFError) as error:  # missing, unreadable, truncated or not compressed at all
        raise OelmError(f"{path} cannot be read ({error}); is it complete?") from error
    if empty:
        raise OelmError(f"{path} holds no text; remove it or give another file")


def row_texts(path: Path, field: str) -> Iterator[str]:
    return checked_texts((text for (text,) in rows.read_columns(path, (field,))), str(path), field)


def checked_texts(values: Iterable[Any], where: str, field: str) -> Iterator[str]:
    """Values of a column, each a text; nothing at all is an empty one."""
    for number, text in enumerate(values, start=1):
        if not isinstance(text, str | None):
            raise OelmError(f"{where}, row {number} has no text in column {field!r} but {text!r}; choose with --field")
        if text and not rows.is_unicode(text):
            raise OelmError(f"{where}, row {number} has half a surrogate pair; mend or remove that row")
        yield text or ""


def _text_documents(path: Path) -> Iterator[str]:
    lines = rows.lines_of(path, limit=1 << 20)
    head = list(_up_to(lines, 1 << 20))
    lines = itertools.chain(head, lines)
    title = next((line for line in head if not line.isspace()), "")
    if _HEADING.fullmatch(title):
        return articles(lines)
    separated = any(line.strip() == SEPARATOR for line in head)
    return _passages(lines, longest=(8 << 20) if separated else (64 << 10))


def _passages(lines: Iterator[str], longest: int) -> Iterator[str]:
    passage: list[str] = []
    size = 0
    for line in lines:
        size += len(line)
        ends = line.strip() == SEPARATOR
        if not ends:
            passage.append(line)
        if ends or size >= 2 * longest or (size >= longest and line.isspace()):
            yield "".join(passage).strip("\r\n")
            passage, size = [], 0
    yield "".join(passage).strip("\r\n")


_HEADING = re.compile(r" = (?!= ).*(?<! =) = *\r?\n?")


def articles(lines: Iterator[str]) -> Iterator[str]:
    """Join WikiText lines into articles. A heading stands between blank lines; the same form inside a table does not.

    >>> list(articles(iter([" = A = \\n", " \\n", "x\\n", " \\n", " = B = \\n", " \\n", "y\\n"])))
    [' = A = \\n \\nx\\n \\n', ' = B = \\n \\ny\\n']
    """
    article: list[str] = []
    heading = None  # seen after a blank line; it counts if a blank line follows
    after_blank = True
    for line in lines:
        blank = line.isspace()
        if heading is not None:
            if blank and not all(part.isspace() for part in article):
                yield "".join(article)
                article = []
            article.append(heading)
            heading = None
        if after_blank and _HEADING.fullmatch(line):
            heading = line
        else:
            article.append(line)
        after_blank = blank
    yield "".join(article) + (heading or "")


def joined_rows(rows: Iterator[str]) -> Iterator[str]:
    """Articles from rows that are lines; where the raw file has the line " \\n", the hub stores an empty string."""
    return articles(row or " \n" for row in rows)


def wikitext_documents(rows: Iterator[str]) -> Iterator[str]:
    """Articles from rows of WikiText, blank ones included. Rows that are lines begin with a heading; others stay."""
    head: list[str] = []
    for row in rows:
        head.append(row)
        if row and not row.isspace():
            break
    all_rows = itertools.chain(head, rows)
    lines = bool(head) and _HEADING.fullmatch(head[-1])
    return (text for text in (joined_rows(all_rows) if lines else all_rows) if text and not text.isspace())


def _up_to(lines: Iterator[str], size: int) -> Iterator[str]:
    for line in lines:
        yield line
        size -= len(line)
        if size <= 0:
            return
