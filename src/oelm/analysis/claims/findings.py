"""What the check of a published claim finds out. A claim is data, and nothing here knows an answer."""

from dataclasses import dataclass

CONSISTENT, INCONSISTENT, IMPOSSIBLE, CIRCULAR = "consistent", "inconsistent", "impossible", "circular"
REPRODUCED, NOT_REPRODUCED, NOT_TESTED = "reproduced", "not reproduced", "not tested"


@dataclass(frozen=True)
class Finding:
    """What a check found out. `ours` is our own figure, where we have one."""

    published: str
    follows: str
    verdict: str
    reason: str
    ours: str | None = None

    @classmethod
    def either(cls, holds: bool, published: str, follows: str, yes: str, no: str) -> "Finding":
        """Consistent because of `yes` if the claim holds, else inconsistent because of `no`."""
        return cls(published, follows, CONSISTENT if holds else INCONSISTENT, yes if holds else no)
