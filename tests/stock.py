"""Tiny models of transformers as configs of a run, and what they can be trained on."""

import json
from pathlib import Path
from typing import Any

from oelm.training.config import RunConfig

LENGTH = 24
_WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_BERT = {**_WIDTH, "max_position_embeddings": 40}
_LLAMA = {**_BERT, "num_key_value_heads": 2, "head_dim": 8}
_BART = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40},
    "llama": _LLAMA,
    "qwen3": _LLAMA,
    "gpt_neox": _BERT,
    "bert": _BERT,
    "roberta": _BERT,
    "modernbert": _BERT,
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4},
    "bart": {"d_model": 32, "max_position_embeddings": 40, **_BART},
}
NO_DROPOUT = {
    "gpt2": dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    "bert": dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
    "t5": {"dropout_rate": 0.0},
    "bart": {"dropout": 0.0},
}
TRAINING = {"max_steps": 6, "batch_size": 4, "accumulation": 2, "max_lr": 3e-3, "warmup_steps": 1, "eval_every": 3}


def config(name: str, data: Path, method: str = "oelm_freeze", model: dict[str, Any] | None = None, **training: Any):
    """A run of six steps; a model of the table is fresh, any other is a folder."""
    section = {"name": name, "fresh": True, "overrides": SHAPES[name]} if name in SHAPES else {"name": name}
    return RunConfig.parse(
        {
            "method": method,
            "model": {**section, **(model or {})},
            "data": {"path": str(data)},
            "training": {**TRAINING, "eval_tokens": 512, "log_every": 1, **training},
            "runtime": {"device": "cpu", "threads": 1},
        }
    )


def write_pairs(file: Path, rows: int = 120) -> Path:
    """Words and the same words backwards."""
    file.parent.mkdir(parents=True, exist_ok=True)
    words = [[f"w{(i * 7 + j * 3) % 23}" for j in range(3 + i % 6)] for i in range(rows)]
    lines = [json.dumps({"de": " ".join(row), "en": " ".join(reversed(row))}) for row in words]
    file.write_text("\n".join(lines) + "\n")
    return file


def prepared_pairs(folder: Path) -> Path:
    from oelm.data.labelled import prepare_task
    from oelm.data.tasks import Task, TaskSource

    source = TaskSource(Task("backwards", ("de", "en"), label=""), write_pairs(folder / "train.jsonl"), held_out=0.2)
    return prepare_task(source, "bpe:400+special", folder / "pairs").path


def prepared_corpus(folder: Path) -> Path:
    from oelm.data.corpora import find_source
    from oelm.data.prepare import prepare

    source = find_source(["fables"], megabytes=0.03, validation_megabytes=0.005)
    return prepare(source, folder, "bpe:400+special", workers=1).path


def prepared_task(folder: Path) -> Path:
    from oelm.data.labelled import prepare_task
    from oelm.data.tasks import TaskSource, find_task

    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 60), ("validation", 16)):
        rows = [f"{'good' if i % 2 else 'bad'} film number {i}\t{i % 2}" for i in range(count)]
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return prepare_task(TaskSource(find_task("sst2"), folder), "bpe:400+special", folder / "task").path
