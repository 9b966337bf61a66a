"""Whether a model takes up what it has read: recall, induction, copying and the previous token, and which heads do it.

    recall      k1 v1 k2 v2 … then every key again, in a new order: its value comes next (MQAR)
    induction   a b … a: b comes next, by the distance from a to a
    copy        a run of words, then the same run again, by its length
    previous    a b a b, c d c d, … e f e: the word before comes next, by the number of groups

docs/evaluation.md says how answers are counted.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oelm.data.fables import POOLS, stories
from oelm.errors import OelmError
from oelm.evaluation.subjects import Subject
from oelm.models.attention import attention_weights

CAVEAT = "No language model was trained for pairs of random words: compare methods with each other and with chance."
SIZES = (2, 4, 8, 16, 32, 64, 128)
MOST_WORDS = 256
KINDS = {"name": ("name",), "object": ("thing", "food"), "place": ("place",)}
A_HEAD = 0.2  # a head is named after a place if that place gets the most of its weight, and at least this share


class Trial(NamedTuple):
    """N texts of one kind; what follows position `asked` is asked for."""

    probe: str
    size: int  # pairs, distance, length or groups
    ids: Tensor  # (N, T)
    asked: Tensor  # (N, Q)
    distance: Tensor  # (N, Q), from the asking word to where it was read
    candidates: Tensor  # (N, C); no answer is the word that asks for it


def probe(subject: Subject, *, samples: int = 64, seed: int = 0, fables: int = 0) -> dict[str, Any]:
    """Everything the probes say of a model; `fables` is how many stories to read, 0 to leave them out."""
    words = probe_words(subject)
    rows = []
    for trial in _trials(subject, words, samples, torch.Generator().manual_seed(seed)):
        rows += _asked(subject, trial)
    if not rows:
        raise OelmError(f"{subject.name}: its context of {subject.context} tokens is too short for any probe")
    facts = {"caveat": CAVEAT, "words": len(words), "samples": samples, "seed": seed, "probes": rows}
    facts |= {"chance_of_accuracy": 1 / subject.model.get_input_embeddings().num_embeddings}
    facts["heads"] = heads(subject, words, samples, seed)
    return facts | ({"fables": fable_recall(subject, fables, seed)} if fables else {})


def probe_words(subject: Subject) -> list[int]:
    """Tokens that are a whole word with the space before it, the most frequent first; else any tokens."""
    vocabulary = subject.tokenizer.get_vocab(with_added_tokens=False)
    special = {subject.start, subject.end}
    by_id = sorted((number, token) for token, number in vocabulary.items() if number not in special)
    whole = [n for n, t in by_id if t[0] in "Ġ▁" and len(t) > 2 and t[1:].isascii() and t[1:].isalpha()]
    words = (whole if len(whole) >= 2 * SIZES[2] else [number for number, _ in by_id])[:MOST_WORDS]
    if len(words) < 4:
        raise OelmError(f"{subject.name}: a vocabulary of {len(vocabulary)} tokens is too small for probes")
    return words


def _trials(subject: Subject, words: Sequence[int], samples: int, random: torch.Generator) -> Iterator[Trial]:
    pool = torch.tensor(words)

    def drawn(count: int) -> Tensor:
        """(N, count) words, all different within a row."""
        return pool[torch.rand(samples, len(pool), generator=random).argsort(dim=1)[:, :count]]

    def trial(name: str, n: int, text: Tensor, asked: Tensor, back: Tensor | int, candidates: Tensor) -> Trial:
        text, asked = torch.cat((torch.full((samples, 1), subject.start), text), 1), asked.expand(samples, -1)
        return Trial(name, n, text, asked, asked - asked + back, candidates)

    def fits(length: int, count: int) -> bool:
        return length <= subject.context and count <= len(pool)

    for n in SIZES:
        said = drawn(n)
        if n > 2 and fits(n + 3, n):
            yield trial("induction", n, torch.cat((said, said[:, :2]), 1), torch.tensor([n + 1]), n, said)
        if n > 2 and fits(1 + 2 * n, n):
            yield trial("copy", n, torch.cat((said, said), 1), n + 1 + torch.arange(n - 1), n, said)
        if fits(1 + 4 * n, 2 * n):
            pairs = drawn(2 * n).unflatten(1, (n, 2))
            twice = pairs.repeat(1, 1, 2).flatten(1)
            yield trial("previous", n, twice, torch.tensor([4 * n - 1]), 2, pairs.flatten(1))
            order = torch.rand(samples, n, generator=random).argsort(dim=1)
            again = pairs.gather(1, order[:, :, None].expand(-1, -1, 2))
            asked = 1 + 2 * n + 2 * torch.arange(n)
            text = torch.cat((pairs, again), 1).flatten(1)
            yield trial("recall", n, text, asked, asked - 1 - 2 * order, pairs[:, :, 1])


@torch.no_grad()
def _asked(subject: Subject, trial: Trial) -> list[dict[str, Any]]:
    """One row for all answers of a trial, and for `recall` one per distance, up to each power of two."""
    tallies: dict[int, list[int]] = {}  # by distance, 0 for all: answers, right, chosen
    for ids, asked, distance, candidates in zip(*(part.split(16) for part in trial[2:]), strict=True):
        logits = subject.model(ids).logits
        at = logits.gather(1, asked[:, :, None].expand(-1, -1, logits.shape[-1]))  # (N, Q, vocabulary)
        answer = ids.gather(1, asked + 1)
        right = at.argmax(dim=-1) == answer
        asks = candidates[:, None] == ids.gather(1, asked)[:, :, None]  # (N, Q, C)
        among = at.gather(2, candidates[:, None].expand_as(asks)).masked_fill(asks, -torch.inf).argmax(dim=-1)
        chosen = candidates.gather(1, among) == answer
        bins = 2 ** distance.float().log2().ceil().long()
        for limit in [0, *(bins.unique().tolist() if trial.probe == "recall" else ())]:
            here = (bins == limit) | (limit == 0)
            counts = tallies.get(limit, [0, 0, 0]), (here, here & right, here & chosen)
            tallies[limit] = [old + int(new.sum()) for old, new in zip(*counts, strict=True)]
    choices = trial.candidates.shape[1] - int(asks.any())
    known = {"probe": trial.probe, "size": trial.size, "chance": 1 / choices}
    return [
        {**known, "distance": limit or None, "answers": n, "accuracy": right / n, "choice": chosen / n}
        for limit, (n, right, chosen) in sorted(tallies.items())
    ]


@torch.no_grad()
def heads(subject: Subject, words: Sequence[int], samples: int, seed: int) -> dict[str, Any]:
    """Per layer and head, while a run of random words is read a second time: where its weight goes.

    `entropy` in nats; `span` in tokens back; `previous` and `induction` are the shares of the weight on the token
    before and on the one that followed the same word the first time. None where weights are no probabilities (MixiT).
    """
    length = min(32, (subject.context - 1) // 2, len(words))
    random = torch.Generator().manual_seed(seed)
    order = torch.rand(min(samples, 16), len(words), generator=random).argsort(dim=1)[:, :length]
    said = torch.tensor(words)[order]
    ids = torch.cat((torch.full((len(said), 1), subject.start), said, said), dim=1)
    rows: dict[str, list[list[float | None]]] = {name: [] for name in ("entropy", "span", "previous", "induction")}
    found: list[dict[str, Any]] = []
    for layer, weight in enumerate(_weights(subject, ids)):
        second = weight[:, :, length + 1 :].float()  # (B, H, length, T): what the second reading looks at
        mean, entropy = second.mean(dim=0), -(second.clamp(min=1e-12).log() * second).sum(-1).mean(dim=0)
        back = torch.arange(length + 1, 2 * length + 1)[:, None] - torch.arange(2 * length + 1)
        proper = bool((mean >= -1e-4).all() and (mean.sum(-1) - 1).abs().max() < 1e-2)
        by_offset = torch.stack([mean[:, back == offset].mean(dim=1) for offset in range(length + 1)], dim=1)  # (H, ·)
        values = (entropy.mean(1), (mean * back).sum(-1).mean(1), by_offset[:, 1], by_offset[:, length - 1])
        for name, value in zip(rows, values, strict=True):
            rows[name].append(value.tolist() if proper else [None] * len(value))
        for head, offsets in enumerate(by_offset):
            place, share = int(offsets.argmax()), float(offsets.max())
            kind = {1: "previous", length - 1: "induction"}.get(place)
            if kind and proper and share >= A_HEAD:
                found.append({"kind": kind, "layer": layer, "head": head, "share": share})
    even = {"entropy": float(torch.arange(length + 2, 2 * length + 2).log().mean()), "share": 1 / (1.5 * length + 1)}
    found.sort(key=lambda one: -one["share"])
    return {"text": f"{length} random words, twice", "even_attention": even, **rows, "found": found}


def _weights(subject: Subject, ids: Tensor) -> list[Tensor]:
    if hasattr(subject.model, "gpt"):
        return attention_weights(subject.model.gpt, ids)
    given = subject.model(ids, output_attentions=True, use_cache=False).attentions
    if not given or any(one is None for one in given):
        raise OelmError(f"{subject.name}: {type(subject.model).__name__} shows no attention weights")
    return [one for one in given if one.ndim == 4]


@torch.no_grad()
def fable_recall(subject: Subject, count: int, seed: int) -> dict[str, Any]:
    """Validation fables: is every token of a name, object or place that is said again the likeliest one?

    `nearest` is what the latest word of its kind would get right. Some sentences may begin with one of several words,
    so nobody reaches 1.
    """
    pools = {word: kind for kind, names in KINDS.items() for name in names for word in POOLS[name]}
    answers: dict[tuple[str, int], list[tuple[bool, bool]]] = {}
    for story in islice(stories("validation", seed), count):
        encoded = subject.tokenizer.encode(story.text, add_special_tokens=False)
        spans = encoded.offsets[: subject.context - 1]
        ids = torch.tensor([[subject.start, *encoded.ids[: len(spans)]]])
        right = subject.model(ids).logits[0, :-1].argmax(-1) == ids[0, 1:]  # (T,): whether token t was foretold
        for recall in sorted(story.recalls):
            word = story.text[recall.start : recall.end].split()[-1]
            tokens = [t for t, (a, b) in enumerate(spans) if a < recall.end and b > recall.start]
            kind = pools.get(word)
            if kind is None or not tokens or spans[-1][1] < recall.end:
                continue
            first = next(t for t, (_, b) in enumerate(spans) if b > recall.source)
            distance = 1 << max(0, tokens[0] - first - 1).bit_length()
            before = reversed(re.findall("[A-Za-z]+", story.text[: recall.start]))
            latest = next((other for other in before if pools.get(other) == kind), None)
            for key in ((kind, 0), (kind, distance), ("all", 0), ("all", distance)):
                answers.setdefault(key, []).append((bool(right[tokens].all()), latest == word))
    rows = []
    for (kind, distance), given in sorted(answers.items()):
        accuracy, nearest = (sum(said) / len(given) for said in zip(*given, strict=True))
        known = {"kind": kind, "distance": distance or None, "answers": len(given)}
        rows.append({**known, "accuracy": accuracy, "nearest": nearest})
    return {"stories": count, "rows": rows}
