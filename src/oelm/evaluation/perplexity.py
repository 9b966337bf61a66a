"""How well a model foretells a text, which it reads through a window that slides over it."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from oelm.data.textfiles import lines_of
from oelm.errors import OelmError
from oelm.evaluation.subjects import Subject

WINDOWS_AT_ONCE = 8


def file_perplexity(subject: Subject, file: Path, stride: int | None = None) -> dict[str, Any]:
    """Of a text file as one document. A window begins `stride` tokens after the one before; by default half of one."""
    text = "".join(lines_of(file))
    if not text.strip():
        raise OelmError(f"--text {file} is empty; give a file with text in it")
    stride = stride or max(1, subject.context // 2)
    if stride > subject.context:
        raise OelmError(f"--stride {stride} would leap over tokens: {subject.name} reads {subject.context} at once")
    ids = subject.encode(text)
    spent = nats(subject, ids, stride)
    perplexity, bits = math.exp(min(spent / (len(ids) - 1), 700.0)), spent / math.log(2) / len(text.encode())
    return {
        "name": f"text-{file.name}",
        "tokens": len(ids) - 1,
        "context": subject.context,
        "stride": stride,
        "perplexity": perplexity,
        "bits_per_byte": bits,
        "headlines": {f"{file.name} perplexity": perplexity, f"{file.name} bits per byte": bits},
    }


@torch.no_grad()
def nats(subject: Subject, ids: list[int], stride: int) -> float:
    """The sum over all tokens but the first; each is foretold once, from at least context − stride tokens, if any."""
    room = min(subject.context, len(ids) - 1)
    last = len(ids) - 1 - room
    starts = [*range(0, last, stride), last]
    windows = torch.tensor(ids).unfold(0, room + 1, 1)[starts]  # (W, room + 1)
    fresh = torch.tensor([room, *(after - before for before, after in pairwise(starts))])  # tokens not foretold yet
    total = 0.0
    for window, new in zip(windows.split(WINDOWS_AT_ONCE), fresh.split(WINDOWS_AT_ONCE), strict=True):
        logits = subject.model(window[:, :-1]).logits.float()
        spent = F.cross_entropy(logits.transpose(1, 2), window[:, 1:], reduction="none")  # (W, room)
        total += float(spent[torch.arange(room) >= room - new[:, None]].double().sum())
    return total
