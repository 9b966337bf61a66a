"""Whether the hub can be reached, asked once and briefly: its own library would go on trying for half a minute."""

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies


def unreachable() -> str | None:
    """Why the hub cannot be reached; None if it can, or if only a proxy could tell."""
    if getproxies():
        return None
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    try:
        with socket.create_connection((address.hostname or "", address.port or 443), timeout=3):
            return None
    except OSError as error:
        return str(error)
