"""The one exception for what a user can mend: bad input, missing data, a full disk.

The command line prints it as a single line. It exits with 2 if what was asked for is wrong, and with 69 if it was right
and the machine could not do it (`Unavailable`). A bug keeps its traceback.
"""

import difflib
from collections.abc import Iterable

FEW = 12
"""Names that an error lists; of more it says which command does."""
LISTS = {
    "experiment": "oelm experiments",
    "setting": "oelm train --help",
    "arm": "oelm bench --help",
    "lm-eval task": "lm-eval ls tasks",
    **dict.fromkeys(("method", "modifier"), "oelm methods"),
}


class OelmError(Exception):
    """Names the thing, the value and the way out."""

    exit_code = 2
    reason = "error"
    """Why a run failed, in one word, for its status."""


class Unavailable(OelmError):
    """The request was right, but a disk, a lock, the network or a package was not there."""

    exit_code = 69  # EX_UNAVAILABLE


def printable(text: str) -> str:
    """Text of others on one line of a terminal, which would obey control characters in it.

    >>> printable("a\\x1b[2Jb")
    'a\ufffd[2Jb'
    """
    return "".join(letter if letter.isprintable() else " " if letter.isspace() else "\ufffd" for letter in text)


def unknown(kind: str, value: object, known: Iterable[str]) -> OelmError:
    """The error for a name that is in no table, with the nearest names first.

    >>> str(unknown("method", "oelm_frieze", ["baseline", "oelm_freeze"]))
    "method 'oelm_frieze' is unknown; did you mean 'oelm_freeze'? known: baseline, oelm_freeze"
    """
    names = list(known)
    near = difflib.get_close_matches(str(value), names, n=3)
    hint = f" did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    listed = f"see '{LISTS[kind]}'" if kind in LISTS and len(names) > FEW else f"known: {', '.join(names)}"
    return OelmError(f"{kind} {value!r} is unknown;{hint} {listed}")
