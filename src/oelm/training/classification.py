"""Sorting texts into classes: batches of similar length, padded only to their longest, and how well it goes."""

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
from oelm.training.objectives import FORWARD_SHARE
from oelm.training.world import ALONE, World

Batch = dict[str, Tensor]


class Classification:
    """Cross-entropy over a task's classes; each training row once per epoch."""

    headline = "accuracy"
    _counted = (-1, 0)
    """The first batch of a step, and the rows of that step."""

    def __init__(
        self,
        data: TaskData,
        settings: TrainingSection,
        *,
        seed: int,
        device: torch.device,
        pad_id: int = 0,
        segments: bool = True,
        world: World = ALONE,
    ) -> None:
        self.data, self.device, self.pad_id, self.segments, self.world = data, device, pad_id, segments, world
        self.batch_size, self.accumulation = settings.batch_size, settings.accumulation
        self.num_classes = len(data.classes)
        if len(data.train) < self.batch_size:
            raise OelmError(f"{data.path} has {len(data.train)} training rows, fewer than batch_size {self.batch_size}")
        self.order = GroupedOrder(seed, self.batch_size, data.train.lengths)
        # A batch's own size varies; counts and speeds are given for the mean.
        self.tokens_per_batch = round(int(data.train.lengths.sum()) / self.order.batches_per_epoch)
        self._part = self._validation_part(settings)
        self._weight = 1.0
        self._scores = np.zeros((0, self.num_classes))

    def batch(self, micro_step: int) -> Batch:
        rows = self.order.batch(micro_step)
        share = self.world.share(rows)
        # The last batch of an epoch may be too small for all processes; one without rows computes a row for nothing.
        self._weight = len(share) * self.world.size * self.accumulation / self._rows_of_step(micro_step)
        return self._collate(self.data.train, share if len(share) else rows[:1])

    def _rows_of_step(self, micro_step: int) -> int:
        """Rows of the optimizer step that a batch belongs to; counted once for all of its batches."""
        first = micro_step - micro_step % self.accumulation
        if self._counted[0] != first:
            self._counted = first, sum(len(self.order.batch(first + i)) for i in range(self.accumulation))
        return self._counted[1]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Of this process's rows, weighted so that the mean over batches and processes is the mean over rows."""
        loss = F.cross_entropy(self._logits(model, batch).float(), batch["labels"])
        return loss if self._weight == 1 else loss * self._weight

    def validate(self, model: nn.Module, *, whole: bool) -> dict[str, Any]:
        """Over every validation row, or over the fixed part that `eval_budget` affords; the confusion of the whole."""
        texts = self.data.validation

        def measure(chosen: NDArray[np.int64]) -> tuple[float, NDArray[np.int64], NDArray[np.float32]]:
            batch = self._collate(texts, chosen)
            logits, labels = self._logits(model, batch).float(), batch["labels"]
            # A classifier may know more classes than the task has; it is asked only about these.
            known = logits[:, : self.num_classes]
            confusion = np.zeros((self.num_classes, self.num_classes), dtype=np.int64)
            np.add.at(confusion, (labels.cpu().numpy(), known.argmax(dim=1).cpu().numpy()), 1)
            return F.cross_entropy(logits, labels, reduction="sum").item(), confusion, known.softmax(1).cpu().numpy()

        batches = self._validation_batches(np.arange(len(texts)) if whole else self._part)
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
            known = {"label": classes[texts.labels[index]], "prediction": classes[scores.argmax()]}
            rows.append(
                {"index": index, **known, "scores": [round(float(s), 6) for s in scores], "text": " ‖ ".join(said)}
            )
        return rows

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits

    def _validation_part(self, settings: TrainingSection) -> NDArray[np.int64]:
        """Which validation rows are read on the way: all that the budget affords, evenly spread, always the same."""
        texts = self.data.validation
        wanted: float
        if settings.eval_tokens == "all":
            wanted = len(texts)
        elif settings.eval_tokens is not None:
            wanted = settings.eval_tokens / float(texts.lengths.mean())
        else:
            between = (settings.eval_every or settings.max_steps) * settings.accumulation * self.batch_size
            wanted = between * settings.eval_budget / FORWARD_SHARE
        count = min(len(texts), max(1, round(wanted)))
        return np.linspace(0, len(texts), count, endpoint=False).astype(np.int64)

    def _validation_batches(self, chosen: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        ordered = chosen[np.argsort(self.data.validation.lengths[chosen], kind="stable")]
        size = 4 * self.batch_size  # no gradients to hold
        return [ordered[start : start + size] for start in range(0, len(ordered), size)]

    def _collate(self, texts: Texts, rows: NDArray[np.int64]) -> Batch:
        """(B, T) with T the longest of these rows."""
        lengths = texts.lengths[rows]
        width = int(lengths.max())
        places = np.arange(width)[None]
        ids = np.full((len(rows), width), self.pad_id, dtype=np.int64)
        for number, row in enumerate(rows):
            ids[number, : lengths[number]] = texts.row(row)
        real = places < lengths[:, None]
        arrays = {"input_ids": ids, "attention_mask": real.astype(np.int64), "labels": texts.labels[rows]}
        if self.segments:
            arrays["token_type_ids"] = (real & (places >= texts.first[rows][:, None])).astype(np.int64)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if self.device.type == "cuda":
            tensors = {name: t.pin_memory().to(self.device, non_blocking=True) for name, t in tensors.items()}
        return tensors


def macro_f1(confusion: NDArray[np.int64]) -> float:
    """Mean over classes of 2·hits / (rows of the class + guesses of it); a class neither seen nor guessed counts 0.

    >>> macro_f1(np.array([[3, 1], [1, 3]]))
    0.75
    """
    hits = np.diag(confusion)
    size = confusion.sum(axis=0) + confusion.sum(axis=1)
    return float(np.mean(2 * hits / np.maximum(size, 1)))
