"""Whether the hub can be reached, asked once and briefly: its own libraries would go on trying for half a minute."""

import os
import socket
import sys
import textwrap
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies


@cache
def unreachable() -> str | None:
    """Why the hub cannot be reached; None if it can, if only a proxy could tell, or if it is not to be asked."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or getproxies():
        return None
    address = urlsplit(constants.ENDPOINT)
    try:
        with socket.create_connection((address.hostname or "", address.port or 443), timeout=3):
            return None
    except OSError as error:
        os.environ["HF_HUB_OFFLINE"] = "1"  # its libraries then take what they have kept, or fail at once
        constants.HF_HUB_OFFLINE = True
        if "datasets" in sys.modules:
            sys.modules["datasets"].config.HF_HUB_OFFLINE = True
        return str(error)


def reason(error: Exception, name: str | Path = "") -> str:
    """Why something could not be had, in a few words; what is a file or folder was not asked of the hub."""
    here = bool(name) and Path(name).exists()
    words = textwrap.shorten(str(error), 160, placeholder=" …") or type(error).__name__
    cause: BaseException | None = error  # what the hub itself said is below the errors that other libraries made of it
    while cause is not None and type(cause).__name__ not in _REFUSALS:
        cause = cause.__cause__ or cause.__context__
    return (None if here else unreachable()) or _REFUSALS.get(type(cause).__name__) or words


_REFUSALS = {
    "GatedRepoError": "it is gated: accept its conditions on its page, then 'hf auth login'",
    "RepositoryNotFoundError": "there is none of this name, or it is private: 'hf auth login'",
    "RevisionNotFoundError": "it has no such revision",
}
