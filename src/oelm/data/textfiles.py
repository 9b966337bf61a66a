"""The documents of one file, streamed: bytes, then lines, then documents."""

import codecs
import io
import itertools
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from oelm.errors import OelmError

SUFFIXES = (".txt", ".jsonl", ".parquet")  # each also with .gz or .zst
SEPARATOR = "<|endoftext|>"
_LONE_RETURN = re.compile(r"(?<=\r)(?=[^\n])")
"""Where lines end in files of very old systems."""
_PACKINGS = {".gz": "gzip", ".zst": "zstd"}


def file_documents(path: Path, field: str = "text", keep_blank: bool = False) -> Iterator[str]:
    """Stream the documents of one file; what is wrong with it is told with its name and line.

    `.jsonl` and `.parquet` hold one document per row in `field`; rows without text are left out unless `keep_blank`. In
    `.txt`, documents end at a line `<|endoftext|>`; a file that begins with a WikiText heading (` = Title = `) has one
    document per article; any other text is cut at blank lines into documents of about 64 kB, so that a book of any
    length streams.
    """
    reader = {".txt": _text_documents, ".jsonl": _jsonl_documents, ".parquet": _parquet_documents}[text_format(path)]
    empty = True
    try:
        for text in reader(path, field):
            blank = not text or text.isspace()
            empty = empty and blank
            if keep_blank or not blank:
                yield text
    except (OSError, EOFError) as error:  # missing, unreadable, truncated or not compressed at all
        raise OelmError(f"{path} cannot be read ({error}); is it complete?") from error
    if empty:
        raise OelmError(f"{path} holds no text; remove it or give another file")


def text_format(path: Path) -> str:
    """The suffix that names the format, below any compression.

    >>> text_format(Path("train.jsonl.zst"))
    '.jsonl'
    """
    return Path(path.stem).suffix if path.suffix in _PACKINGS else path.suffix


def _text_documents(path: Path, _: str) -> Iterator[str]:
    lines = _lines(path, limit=1 << 20)
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


def _jsonl_documents(path: Path, field: str) -> Iterator[str]:
    for number, line in enumerate(_lines(path), start=1):
        if line.isspace():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise OelmError(f"{path} line {number} is not JSON ({error}); mend or remove that line") from error
        if not isinstance(row, dict) or not isinstance(row.get(field), str):
            keys = f"its fields: {', '.join(row)}" if isinstance(row, dict) else "not an object"
            raise OelmError(f"{path} line {number} has no text in field {field!r} ({keys}); choose one with --field")
        if not row[field].isascii():
            try:
                row[field].encode()
            except UnicodeEncodeError as error:
                raise OelmError(f"{path} line {number} has half a surrogate pair; mend or remove that line") from error
        yield row[field]


def _parquet_documents(path: Path, field: str) -> Iterator[str]:
    import pyarrow
    import pyarrow.parquet

    with tempfile.TemporaryFile() as unpacked:
        if path.suffix in _PACKINGS:  # parquet is read from its end, a compressed stream cannot be
            with _open(path) as stream:
                while block := stream.read(1 << 20):
                    unpacked.write(block)
        try:
            table = pyarrow.parquet.ParquetFile(unpacked if path.suffix != ".parquet" else path)
        except pyarrow.ArrowInvalid as error:
            raise OelmError(f"{path} is not a parquet file ({error}); is it complete?") from error
        if table.schema_arrow.names.count(field) > 1:
            raise OelmError(f"{path} has more than one column {field!r}; rename all but one")
        column = table.schema_arrow.field(field).type if field in table.schema_arrow.names else None
        if column not in (pyarrow.string(), pyarrow.large_string()):
            known = ", ".join(table.schema_arrow.names)
            raise OelmError(f"{path} has no text column {field!r} (its columns: {known}); choose one with --field")
        try:
            for batch in table.iter_batches(batch_size=1000, columns=[field]):
                yield from (text for text in batch.column(0).to_pylist() if text is not None)
        except UnicodeDecodeError as error:
            raise OelmError(f"{path} has text that is not UTF-8 ({error.reason}); convert it first") from error


def _lines(path: Path, limit: int = -1) -> Iterator[str]:
    """Decoded lines, so that a bad byte is told with its line; `limit` cuts lines that would not fit in memory."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    number = 0
    with _open(path) as stream:
        try:
            while raw := stream.readline(limit):
                number += 1
                lines = _LONE_RETURN.split(decoder.decode(raw))
                yield from lines
                number += len(lines) - 1
            decoder.decode(b"", final=True)  # refuses half a character at the end
        except UnicodeDecodeError as error:
            raise OelmError(f"{path} line {number} is not UTF-8 ({error.reason}); convert the file first") from error


def _open(path: Path) -> IO[bytes]:
    if path.suffix not in _PACKINGS:
        return open(path, "rb")
    import pyarrow  # its streams, unlike zstandard's, notice a truncated file

    return io.BufferedReader(pyarrow.input_stream(str(path), compression=_PACKINGS[path.suffix]), 1 << 18)


def _up_to(lines: Iterator[str], size: int) -> Iterator[str]:
    for line in lines:
        yield line
        size -= len(line)
        if size <= 0:
            return
