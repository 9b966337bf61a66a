"""The rows of files with named columns: .csv, .tsv, .jsonl and .parquet, each also compressed (.gz, .zst)."""

import codecs
import csv
import io
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from oelm.errors import OelmError

SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet")
_LONE_RETURN = re.compile(r"(?<=\r)(?=[^\n])")
"""Where lines end in files of very old systems."""
_PACKINGS = {".gz": "gzip", ".zst": "zstd"}


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
            raise OelmError(
                f"{file}, row {number} has more fields than there are columns; "
                f"is a {'tab' if tabs else 'comma'} of the text taken for a separator?"
            )
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

    with tempfile.TemporaryFile() as unpacked:
        if file.suffix in _PACKINGS:  # parquet is read from its end, a compressed stream cannot be
            with _open(file) as stream:
                while block := stream.read(1 << 20):
                    unpacked.write(block)
        try:
            opened = pyarrow.parquet.ParquetFile(unpacked if file.suffix != ".parquet" else file)
            require_columns(file, columns, opened.schema_arrow.names, options)
            for batch in opened.iter_batches(batch_size=1000, columns=list(columns)):
                yield from zip(*(batch.column(column).to_pylist() for column in columns), strict=True)
        except pyarrow.ArrowInvalid as error:
            raise OelmError(
                f"{file} is not a parquet file ({' '.join(str(error).split())}); is it complete?"
            ) from error
        except UnicodeDecodeError as error:
            raise OelmError(f"{file} has text that is not UTF-8 ({error.reason}); convert it first") from error


def _open(path: Path) -> IO[bytes]:
    if path.suffix not in _PACKINGS:
        return open(path, "rb")
    import pyarrow  # its streams, unlike zstandard's, notice a truncated file

    return io.BufferedReader(pyarrow.input_stream(str(path), compression=_PACKINGS[path.suffix]), 1 << 18)
