"""Files of text, streamed: their documents, and the rows of those with columns; each also compressed (.gz, .zst)."""

import codecs
import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from oelm.errors import OelmError

TABLES = (".tsv", ".csv", ".jsonl", ".parquet")
SUFFIXES = (".txt", *TABLES)
SEPARATOR = "<|endoftext|>"
_LONE_RETURN = re.compile(r"(?<=\r)(?=[^\n])")
_HEADING = re.compile(r" = (?!= ).*(?<! =) = *\r?\n?")
_PACKINGS = {".gz": "gzip", ".zst": "zstd"}


def file_documents(path: Path, field: str = "text", keep_blank: bool = False) -> Iterator[str]:
    """Stream the documents of one file; what is wrong with it is told with its name and line.

    Rows without text are left out unless `keep_blank`. What a document is: see `oelm data prepare --help`.
    """
    empty = True
    rows = checked_texts((text for (text,) in read_columns(path, (field,))), str(path), field)
    for text in _text_documents(path) if text_format(path) == ".txt" else rows:
        blank = not text or text.isspace()
        empty = empty and blank
        if keep_blank or not blank:
            yield text
    if empty:
        raise OelmError(f"{path} holds no text; remove it or give another file")


def checked_texts(values: Iterable[Any], where: str, field: str) -> Iterator[str]:
    """Values of a column, each a text; nothing at all is an empty one."""
    for number, text in enumerate(values, start=1):
        if not isinstance(text, str | None):
            raise OelmError(f"{where}, row {number} has no text in column {field!r} but {text!r}; choose with --field")
        if text and not is_unicode(text):
            raise OelmError(f"{where}, row {number} has half a surrogate pair; mend or remove that row")
        yield text or ""


def _text_documents(path: Path) -> Iterator[str]:
    lines = lines_of(path, limit=1 << 20)
    head = list(up_to(lines, 1 << 20))
    lines = itertools.chain(head, lines)
    title = next((line for line in head if not line.isspace()), "")
    if _HEADING.fullmatch(title):
        return articles(lines)
    if any(line.strip() == SEPARATOR for line in head):
        return _passages(lines, longest=8 << 20)
    size = sum(map(len, head))  # of a small file all of it: enough documents for some of them to be held out
    return _passages(lines, longest=64 << 10 if size >= 1 << 20 else max(1 << 10, size // 100))


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


def wikitext_documents(rows: Iterator[str]) -> Iterator[str]:
    """Articles from rows of WikiText, blank ones included. Rows that are lines begin with a heading; others stay."""
    head: list[str] = []
    for row in rows:
        head.append(row)
        if row and not row.isspace():
            break
    texts: Iterator[str] = itertools.chain(head, rows)
    if head and _HEADING.fullmatch(head[-1]):
        texts = articles(row or " \n" for row in texts)  # the hub stores such a line as an empty string
    return (text for text in texts if text and not text.isspace())


def up_to(texts: Iterable[str], size: int, measure: Callable[[str], int] = len) -> Iterator[str]:
    """The first texts that together have this size; not one more is read."""
    for text in texts:
        yield text
        size -= measure(text)
        if size <= 0:
            return


def read_columns(file: Path, columns: tuple[str, ...], options: str = "--field") -> Iterator[tuple[Any, ...]]:
    """The chosen columns of every row. What is wrong is told in one line; `options` are those that choose columns."""
    reader = {".jsonl": _jsonl, ".parquet": _parquet}.get(text_format(file), _table)
    try:
        yield from reader(file, columns, options)
    except (OSError, EOFError, csv.Error) as error:  # missing, unreadable, truncated or not compressed at all
        raise OelmError(f"{file} cannot be read ({' '.join(str(error).split())}); is it complete?") from error


def text_format(path: Path) -> str:
    """The suffix that names the format, below any compression.

    >>> text_format(Path("train.jsonl.zst"))
    '.jsonl'
    """
    return Path(path.stem).suffix if path.suffix in _PACKINGS else path.suffix


def lines_of(path: Path, limit: int = -1) -> Iterator[str]:
    """Decoded lines, so that a bad byte is told with its line; `limit` cuts lines that would not fit in memory."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    number = 0
    try:
        with _open(path) as stream:
            while raw := stream.readline(limit):
                number += 1
                lines = _LONE_RETURN.split(decoder.decode(raw))
                yield from lines
                number += len(lines) - 1
            decoder.decode(b"", final=True)  # refuses half a character at the end
    except UnicodeDecodeError as error:
        raise OelmError(f"{path} line {number} is not UTF-8 ({error.reason}); convert the file first") from error
    except (OSError, EOFError) as error:  # missing, unreadable, truncated or not compressed at all
        raise OelmError(f"{path} cannot be read ({' '.join(str(error).split())}); is it complete?") from error


def is_unicode(text: str) -> bool:
    """Whether it can be written down; half of a surrogate pair, which JSON can spell, cannot."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def require_columns(where: object, columns: tuple[str, ...], found: Iterable[str], options: str) -> None:
    names = list(found)
    if missing := [column for column in columns if column not in names]:
        named = " or ".join(map(repr, missing))
        raise OelmError(f"{where} has no column {named} (it has: {', '.join(names)}); choose with {options}")
    if twice := [column for column in columns if names.count(column) > 1]:
        raise OelmError(f"{where} has more than one column {twice[0]!r}; rename all but one")


def _table(file: Path, columns: tuple[str, ...], options: str) -> Iterator[tuple[Any, ...]]:
    # In GLUE's tab-separated files a quotation mark is a character like any other.
    tabs = text_format(file) == ".tsv"
    quoting: Any = csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL
    csv.field_size_limit(1 << 30)  # a document is longer than the 128 kB that the module expects
    reader = csv.DictReader(lines_of(file), delimiter="\t" if tabs else ",", quoting=quoting)
    require_columns(file, columns, reader.fieldnames or [], options)
    for number, row in enumerate(reader, start=1):
        if None in row:
            mark = "tab" if tabs else "comma"
            told = f"more fields than there are columns; is a {mark} of the text taken for a separator?"
            raise OelmError(f"{file}, row {number} has {told}")
        yield tuple(row[column] for column in columns)


def _jsonl(file: Path, columns: tuple[str, ...], options: str) -> Iterator[tuple[Any, ...]]:
    for number, line in enumerate(lines_of(file), start=1):
        if line.isspace():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise OelmError(f"{file} line {number} is not JSON ({error}); mend or remove that line") from None
        if not isinstance(row, dict):
            raise OelmError(f"{file} line {number} is no JSON object; give every row its column names")
        require_columns(f"{file} line {number}", columns, row, options)
        yield tuple(row[column] for column in columns)


def _parquet(file: Path, columns: tuple[str, ...], options: str) -> Iterator[tuple[Any, ...]]:
    import pyarrow
    import pyarrow.parquet

    try:
        # Parquet is read from its end, which a compressed stream has not: it is unpacked into memory.
        opened = pyarrow.parquet.ParquetFile(io.BytesIO(_open(file).read()) if file.suffix in _PACKINGS else file)
        require_columns(file, columns, opened.schema_arrow.names, options)
        for batch in opened.iter_batches(batch_size=1000, columns=list(columns)):
            yield from zip(*(batch.column(column).to_pylist() for column in columns), strict=True)
    except pyarrow.ArrowInvalid as error:
        raise OelmError(f"{file} is not a parquet file ({' '.join(str(error).split())}); is it complete?") from error
    except UnicodeDecodeError as error:
        raise OelmError(f"{file} has text that is not UTF-8 ({error.reason}); convert it first") from error


def _open(path: Path) -> IO[bytes]:
    if path.suffix not in _PACKINGS:
        return open(path, "rb")
    import pyarrow  # its streams, unlike zstandard's, notice a truncated file

    return io.BufferedReader(pyarrow.input_stream(str(path), compression=_PACKINGS[path.suffix]), 1 << 18)
