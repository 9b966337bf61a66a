"""What an arm of a benchmark may be called. No torch, so that a misspelt one is refused at once."""

from oelm.errors import OelmError, unknown
from oelm.freezing.methods import METHODS, method

PEERS = ("gpt2", "gpt2_fused", "plain")  # what `steps.py` builds beside our methods
DECODERS = ("gpt2", "llama")  # what `decode.py` builds beside our methods


def arm_name(name: str, peers: tuple[str, ...] = PEERS) -> str:
    """The full name of a method (also by its alias, or with modifiers) or a peer."""
    known = [*METHODS, *(alias for row in METHODS.values() for alias in row.aliases), *peers]
    if name.partition("+")[0] not in known:
        raise unknown("arm", name, known)
    if name in peers:
        return name
    found = method(name)
    if found.moves:
        raise OelmError(
            f"arm {name!r} trains other weights at other steps, so it has no step time of its own; "
            "time what it changes between, e.g. oelm_freeze and baseline"
        )
    return found.name
