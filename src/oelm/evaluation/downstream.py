"""Tasks of lm-eval, on rows of the hub or of local files. All prompts, choices and scores are lm-eval's own."""

import json
import logging
import sys
from collections.abc import Sequence
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from oelm.data.textfiles import lines_of
from oelm.errors import OelmError, Unavailable, unknown
from oelm.evaluation.subjects import Subject
from oelm.hub import reason, unreachable

SPLITS = {"train": "training_split", "validation": "validation_split", "test": "test_split"}
"""How local files end (piqa_validation.jsonl), and what lm-eval calls that split."""


class Asked(NamedTuple):
    """A task, or all tasks of a group or pattern, with their rows."""

    name: str
    tasks: list[Any]
    left_out: list[str]  # those of the group that have no local file
    by_size: bool  # whether a task with more rows counts for more in the group's mean


def find_tasks(names: Sequence[str], folder: Path | None = None) -> list[Asked]:
    """Everything that can be refused is refused here, before a model is asked anything."""
    if find_spec("lm_eval") is None:
        raise Unavailable("--tasks needs lm-eval, which is not installed; pip install '.[eval]' in your clone")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    files = None if folder is None else {file.stem: file for file in sorted(folder.rglob("*.jsonl"))}
    index = _manager().task_index
    return [_find(name, index, files, folder) for name in names]


def evaluate(
    subject: Subject, asked: Asked, *, limit: int | None = None, fewshot: int | None = None, batch: int = 8
) -> dict[str, Any]:
    """The scores of a model; of a group also their mean, as lm-eval weighs it."""
    from lm_eval.defaults import DEFAULT_OTHER_SEED
    from lm_eval.evaluator import evaluate as run
    from lm_eval.models.huggingface import HFLM

    how: Any = {"backend": "causal", "max_length": subject.context, "batch_size": batch}
    model = HFLM(pretrained=subject.model, tokenizer=subject.wrapped(), **how)
    for task in asked.tasks:  # as lm-eval's command line does it: some tasks have their own number
        given = task.get_config("num_fewshot")
        task.set_config("num_fewshot", given or 0 if fewshot is None or given == 0 else fewshot)
        task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
    tasks = {"tasks": {task.config.task: task for task in asked.tasks}, "groups": {}, "group_map": {}}
    for name in ("loglikelihood", "loglikelihood_rolling", "generate_until"):  # no bars in a log file
        setattr(model, name, partial(getattr(model, name), disable_tqdm=not sys.stderr.isatty()))
    try:
        fitting = {task.config.task: _fitting(subject, task, limit) for task in asked.tasks}
        for task in asked.tasks:  # whose examples were drawn once already
            task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
        chosen: Any = {"samples": {task: kept for task, (kept, _) in fitting.items()}}
        if not any(unfit for _, unfit in fitting.values()):
            chosen = {"limit": limit}
        found: Any = run(model, tasks, **chosen, bootstrap_iters=0, log_samples=False)
    except OelmError:
        raise
    except Exception as error:  # a task is somebody's code: it may raise anything
        raise OelmError(f"task {asked.name} could not be run on {subject.name} ({reason(error, '.')})") from error
    scores = {
        task: {key.removesuffix(",none"): value for key, value in values.items() if isinstance(value, float)}
        for task, values in found["results"].items()
    }
    rows = {task: len(kept) for task, (kept, _) in fitting.items()}
    common = [name for name in next(iter(scores.values())) if all(name in values for values in scores.values())]
    if not common:
        raise OelmError(f"the tasks of {asked.name} have no score in common; name them one by one")
    metric = "acc" if "acc" in common else common[0]
    weights = {task: rows[task] if asked.by_size else 1 for task in scores}
    score = sum(weights[task] * scores[task][metric] for task in scores) / sum(weights.values())
    shots = {task: found["n-shot"].get(task, 0) for task in scores}
    label = asked.name + (f" {max(shots.values())}-shot" if any(shots.values()) else "")
    label += f" first {limit}" if limit else ""
    return {
        "name": f"task-{label}",
        "task": asked.name,
        "metric": metric,
        "score": score,
        "rows": sum(rows.values()),
        "limit": limit,
        "splits": {task.config.task: task.config.test_split or task.config.validation_split for task in asked.tasks},
        "shots": shots,
        "scores": scores,
        "left_out": asked.left_out,
        "cut": sum(_longer(subject, task) for task in asked.tasks),
        "unfit": sum(unfit for _, unfit in fitting.values()),
        "lm_eval": version("lm_eval"),
        "headlines": {f"{label} accuracy %": 100 * score} if metric == "acc" else {f"{label} {metric}": score},
    }


def _find(name: str, index: dict[str, Any], files: dict[str, Path] | None, folder: Path | None) -> Asked:
    matching = _manager().match_tasks([name])
    if not matching:
        raise unknown("lm-eval task", name, index)
    leaves = list(dict.fromkeys(leaf for match in matching for leaf in _leaves(match, index)))
    local = {leaf: _rows(leaf, index[leaf].cfg, files) for leaf in leaves} if files is not None else {}
    chosen = [leaf for leaf in leaves if files is None or local[leaf]]
    if not chosen:
        example = f"{leaves[0]}_validation.jsonl"
        raise OelmError(f"--task-data {folder} has no rows for task {name}; put {example} there, or leave it out")
    means: Any = (index[name].cfg or {}).get("aggregate_metric_list") if name in index else None
    by_size = bool(means) and (means[0] if isinstance(means, list) else means).get("weight_by_size", True)
    left_out = [leaf for leaf in leaves if leaf not in chosen]
    return Asked(name, [_built(leaf, index[leaf], local.get(leaf)) for leaf in chosen], left_out, by_size)


def _leaves(name: str, index: dict[str, Any]) -> list[str]:
    """The tasks of a group or tag, in its order; of a task, itself."""
    entry = index.get(name)
    if entry is None or entry.kind.name not in ("GROUP", "TAG"):
        return [name] if entry else []
    members = sorted(entry.tags) if entry.kind.name == "TAG" else entry.cfg.get("task") or []
    names = (one if isinstance(one, str) else one.get("task") or one.get("group") for one in members)
    return [leaf for one in names for leaf in _leaves(str(one), index)]


def _rows(task: str, config: dict[str, Any], files: dict[str, Path]) -> dict[str, Path]:
    """The file of each split; one that names no split is the one that is asked."""
    found: dict[str, Path] = {}
    for stem in (config.get("dataset_name"), task):
        found |= {split: files[f"{stem}_{split}"] for split in SPLITS if f"{stem}_{split}" in files}
        if stem in files:
            found["test" if config.get("test_split") else "validation"] = files[str(stem)]
    return found if {"validation", "test"} & {*found} else {}


def _built(name: str, entry: Any, files: dict[str, Path] | None) -> Any:
    """The task, with its rows. Whatever goes wrong here is about these."""
    import datasets
    from lm_eval.tasks._yaml_loader import load_yaml

    try:
        if files is None:
            unreachable()
            return _manager().load([name])["tasks"][name]
        read = {split: datasets.Dataset.from_list([*map(json.loads, lines_of(file))]) for split, file in files.items()}
        config = load_yaml(entry.yaml_path, resolve_func=True)
        config |= {role: split if split in files else None for split, role in SPLITS.items()}
        if "train" not in files:  # examples are taken from the other rows then
            config |= {key: None for key in ("fewshot_split", "fewshot_config") if key in config}
        return _manager().load([{**config, "custom_dataset": lambda **_: read}])["tasks"][name]
    except Exception as error:
        if files is None:
            way = "give local files with --task-data FOLDER"
            raise Unavailable(f"the rows of task {name} cannot be had ({reason(error)}); {way}") from error
        told = f"{type(error).__name__}: {reason(error, '.')}"
        where = " or ".join(map(str, files.values()))
        raise OelmError(f"{where} does not fit task {name} ({told}); give JSON lines with its own fields") from error


def _fitting(subject: Subject, task: Any, limit: int | None) -> tuple[list[int], int]:
    """The rows whose answers fit into the context, and the number of the others: lm-eval stops at such a row."""
    task.build_all_requests(limit=limit)
    asked = [one for one in task.instances if len(one.args) > 1 and isinstance(one.args[1], str)]
    whole = subject.tokenizer.encode_batch([one.args[0] + one.args[1] for one in asked])
    before = subject.tokenizer.encode_batch([one.args[0].rstrip() for one in asked])
    answers = zip(asked, whole, before, strict=True)
    unfit = {one.doc_id for one, text, start in answers if len(text.ids) - len(start.ids) > subject.context}
    rows = min(limit or len(task.eval_docs), len(task.eval_docs))
    kept = [row for row in range(rows) if row not in unfit]
    if not kept:
        room = f"the context of {subject.name}, {subject.context} tokens"
        raise OelmError(f"every row of task {task.config.task} has an answer longer than {room}; leave the task out")
    return kept, len(unfit)


def _longer(subject: Subject, task: Any) -> int:
    """How many texts are longer than the context, so that lm-eval cut them from the left."""
    texts = ["".join(one.args[:2]) for one in task.instances if all(isinstance(part, str) for part in one.args[:2])]
    return sum(len(text.ids) >= subject.context for text in subject.tokenizer.encode_batch(texts))


@cache
def _manager() -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager()
