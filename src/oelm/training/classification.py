"""Rows of their own length, sorted into classes or written anew as other texts: batches of similar length, padded only
to their longest, and how well it goes.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from oelm.data.labelled import TaskData, Texts
from oelm.data.order import GroupedOrder
from oelm.data.tokenization import load_tokenizer
from oelm.errors import OelmError
from oelm.training.config import TrainingSection
from oelm.training.distributed import ALONE, World
from oelm.training.objectives import Ids, named, perplexity, validation_part

Batch = dict[str, Tensor]


class Rows:
    """Each training row once per epoch. What a row weighs in the loss is in `units`: itself, or its target tokens."""

    headline: str
    true_entropy: float | None = None
    _counted = (-1, 0)
    """The first batch of a step, and the units of that step."""

    def __init__(
        self,
        data: TaskData,
        settings: TrainingSection,
        *,
        seed: int,
        device: torch.device,
        pad_id: int = 0,
        world: World = ALONE,
    ) -> None:
        self.device, self.pad_id, self.world = device, pad_id, world
        self.texts = {"train": data.train, "validation": data.validation}
        self.batch_size, self.accumulation = settings.batch_size, settings.accumulation
        if len(data.train) < self.batch_size:
            raise OelmError(f"{data.path} has {len(data.train)} training rows, fewer than batch_size {self.batch_size}")
        self.order = GroupedOrder(seed, self.batch_size, data.train.lengths)
        # A batch's own size varies; counts and speeds are given for the mean.
        self.tokens_per_batch = round(int(data.train.lengths.sum()) / self.order.batches_per_epoch)
        self.reads = {"sequence_length": max(1, self.tokens_per_batch // self.batch_size)}
        self._part = validation_part(settings, len(data.validation), float(data.validation.lengths.mean()))
        self._weight = 1.0
        self.units = self._units(data.train)

    def _units(self, texts: Texts) -> Ids:
        return np.ones(len(texts), dtype=np.int64)

    def batch(self, micro_step: int) -> Batch:
        rows = self.order.batch(micro_step)
        share = self.world.share(rows)
        # The last batch of an epoch may be too small for all processes; one without rows computes a row for nothing.
        units = int(self.units[share].sum())
        self._weight = units * self.world.size * self.accumulation / self._units_of_step(micro_step)
        return self._collate(self.texts["train"], share if len(share) else rows[:1])

    def _units_of_step(self, micro_step: int) -> int:
        """Of the optimizer step that a batch belongs to; counted once for all of its batches."""
        first = micro_step - micro_step % self.accumulation
        if self._counted[0] != first:
            rows = [self.order.batch(first + i) for i in range(self.accumulation)]
            self._counted = first, sum(int(self.units[batch].sum()) for batch in rows)
        return self._counted[1]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Of this process's rows, weighted so that the mean over batches and processes is the mean over all units."""
        loss = self._loss(model, batch)
        return loss if self._weight == 1 else loss * self._weight

    def _loss(self, model: nn.Module, batch: Batch) -> Tensor:
        raise NotImplementedError

    def _collate(self, texts: Texts, rows: Ids) -> Batch:
        raise NotImplementedError

    def _validation_batches(self, whole: bool) -> list[Ids]:
        lengths = self.texts["validation"].lengths
        chosen = np.arange(len(lengths)) if whole else self._part
        ordered = chosen[np.argsort(lengths[chosen], kind="stable")]
        size = 4 * self.batch_size  # no gradients to hold
        return [ordered[start : start + size] for start in range(0, len(ordered), size)]


class Classification(Rows):
    """Cross-entropy over a task's classes."""

    headline = "accuracy"

    def __init__(self, data: TaskData, settings: TrainingSection, *, segments: bool = True, **how: Any) -> None:
        super().__init__(data, settings, **how)
        self.data, self.segments, self.num_classes = data, segments, len(data.classes)
        self._scores = np.zeros((0, self.num_classes))

    def _loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(self._logits(model, batch).float(), batch["labels"])

    def validate(self, model: nn.Module, *, whole: bool) -> dict[str, Any]:
        """Over every validation row, or over the fixed part that `eval_budget` affords; the confusion of the whole."""
        texts = self.data.validation

        def measure(chosen: Ids) -> tuple[float, Ids, NDArray[np.float32]]:
            batch = self._collate(texts, chosen)
            logits, labels = self._logits(model, batch).float(), batch["labels"]
            # A classifier may know more classes than the task has; it is asked only about these.
            known = logits[:, : self.num_classes]
            confusion = np.zeros((self.num_classes, self.num_classes), dtype=np.int64)
            np.add.at(confusion, (labels.cpu().numpy(), known.argmax(dim=1).cpu().numpy()), 1)
            return F.cross_entropy(logits, labels, reduction="sum").item(), confusion, known.softmax(1).cpu().numpy()

        batches = self._validation_batches(whole)
        measured = self.world.map(measure, batches)
        nats, confusion = sum(n for n, _, _ in measured), np.sum([c for _, c, _ in measured], axis=0)
        rows = int(confusion.sum())
        values: dict[str, Any] = {
            "loss": nats / rows,
            "accuracy": float(np.trace(confusion) / rows),
            "f1": macro_f1(confusion),
            "samples": rows,
            "share": rows / len(texts),
        }
        if whole:
            values |= {"split": self.data.validation_split}
            values |= {"classes": self.data.classes, "confusion": confusion.tolist()}
            scores = np.concatenate([scores for _, _, scores in measured])
            self._scores = scores[np.argsort(np.concatenate(batches))]  # (rows, classes)
        return values

    def predictions(self) -> list[dict[str, Any]]:
        """What the last whole validation made of every row, with the text as the tokens tell it."""
        texts, classes, tokenizer = self.data.validation, self.data.classes, load_tokenizer(self.data.tokenizer_path)
        rows = []
        for index, scores in enumerate(self._scores):
            parts = np.split(texts.row(index), [texts.first[index]])
            said = [tokenizer.decode(part.tolist()) for part in parts if len(part)]
            row = {"index": index, "label": classes[texts.labels[index]], "prediction": classes[scores.argmax()]}
            rows.append({**row, "scores": [round(float(s), 6) for s in scores], "text": " ‖ ".join(said)})
        return rows

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits

    def _collate(self, texts: Texts, rows: Ids) -> Batch:
        """(B, T) with T the longest of these rows."""
        ids, real = padded([texts.row(row) for row in rows], self.pad_id)
        arrays = {"input_ids": ids, "attention_mask": real.astype(np.int64), "labels": texts.labels[rows]}
        if self.segments:
            later = np.arange(ids.shape[1])[None] >= texts.first[rows][:, None]
            arrays["token_type_ids"] = (real & later).astype(np.int64)
        return named(self.device, **arrays)


class Translation(Rows):
    """Write the target of every source: cross-entropy over the target's tokens."""

    headline = "perplexity"

    def __init__(self, data: TaskData, settings: TrainingSection, *, start: int, **how: Any) -> None:
        super().__init__(data, settings, **how)
        self.start = start
        sources, targets = data.train.first, self._units(data.train)
        self.reads = {"sequence_length": round(sources.mean()), "target_length": round(targets.mean())}

    def _units(self, texts: Texts) -> Ids:
        return texts.lengths - texts.first

    def _loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs = dict(batch)
        targets = inputs.pop("targets")
        return model(inputs, targets)

    def validate(self, model: nn.Module, *, whole: bool) -> dict[str, Any]:
        texts = self.texts["validation"]
        units = self._units(texts)

        def measure(chosen: Ids) -> tuple[float, int]:
            tokens = int(units[chosen].sum())
            return self._loss(model, self._collate(texts, chosen)).item() * tokens, tokens

        measured = self.world.map(measure, self._validation_batches(whole))
        nats, tokens = sum(n for n, _ in measured), sum(t for _, t in measured)
        return {**perplexity(nats, tokens), "share": tokens / int(units.sum())}

    def _collate(self, texts: Texts, rows: Ids) -> Batch:
        """Sources (B, S) and targets (B, T), each side padded to its longest; the decoder reads the targets before."""
        pairs = [np.split(texts.row(row), [texts.first[row]]) for row in rows]
        ids, real = padded([source for source, _ in pairs], self.pad_id)
        wanted, counts = padded([target for _, target in pairs], self.pad_id)
        begun = np.pad(wanted[:, :-1], ((0, 0), (1, 0)), constant_values=self.start)
        arrays = {"input_ids": ids, "attention_mask": real.astype(np.int64), "decoder_input_ids": begun}
        return named(self.device, **arrays, targets=np.where(counts, wanted, -100))


def padded(rows: list[NDArray[np.integer]], pad_id: int) -> tuple[Ids, NDArray[np.bool_]]:
    """Rows as one array (B, longest), and where they are real."""
    lengths = np.array([len(row) for row in rows])
    real = np.arange(lengths.max())[None] < lengths[:, None]
    ids = np.full(real.shape, pad_id, dtype=np.int64)
    ids[real] = np.concatenate(rows)
    return ids, real


def macro_f1(confusion: NDArray[np.int64]) -> float:
    """Mean over classes of 2·hits / (rows of the class + guesses of it); a class neither seen nor guessed counts 0.

    >>> macro_f1(np.array([[3, 1], [1, 3]]))
    0.75
    """
    hits = np.diag(confusion)
    size = confusion.sum(axis=0) + confusion.sum(axis=1)
    return float(np.mean(2 * hits / np.maximum(size, 1)))
