"""Text from a checkpoint, through transformers' own generate() with a key–value cache."""

import json
from pathlib import Path
from typing import Any

from oelm.data.tokenization import end_of_text_id
from oelm.errors import OelmError, unknown
from oelm.training import checkpoints


def generate(
    run: str | Path,
    prompt: str = "",
    *,
    tokens: int = 120,
    temperature: float = 0.8,
    top_k: int = 50,
    seed: int = 0,
    which: str = checkpoints.BEST,
) -> str:
    """What the model of a run (or of a checkpoint folder) writes after `prompt`, up to the end of the document."""
    if which not in (checkpoints.BEST, checkpoints.LATEST):
        raise unknown("checkpoint", which, (checkpoints.BEST, checkpoints.LATEST))
    checkpoint = checkpoints.resolve(Path(run), which)
    with checkpoint.being_read():
        tokenizer, model = _loaded(checkpoint, run)

    import torch

    end = end_of_text_id(tokenizer)
    # Documents are separated by the end mark, so after one the model expects a document to begin.
    ids = [end, *tokenizer.encode(prompt, add_special_tokens=False).ids]
    room = model.config.max_seq_len - len(ids)
    if room < 1:
        raise OelmError(
            f"the prompt has {len(ids)} tokens, the model's context is {model.config.max_seq_len}; shorten the prompt"
        )
    torch.manual_seed(seed)
    sampling = (
        {"do_sample": True, "temperature": temperature, "top_k": top_k} if temperature > 0 else {"do_sample": False}
    )
    output = model.generate(
        torch.tensor([ids]), max_new_tokens=min(tokens, room), eos_token_id=end, pad_token_id=end, **sampling
    )
    written = output[0, len(ids) :].tolist()
    return tokenizer.decode([token for token in written if token != end])


def _loaded(checkpoint: checkpoints.Checkpoint, run: str | Path) -> tuple[Any, Any]:
    architectures = json.loads((checkpoint.path / "config.json").read_text("utf-8")).get("architectures") or []
    if any(name.endswith("ForSequenceClassification") for name in architectures):
        raise OelmError(f"{run} is a classifier ({architectures[0]}); it writes no text")

    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        tokenizer = Tokenizer.from_file(str(checkpoint.path / "tokenizer.json"))
    except Exception as error:  # the library has no type of its own for it
        raise ValueError(f"tokenizer.json: {error}") from error
    options = {"trust_remote_code": False, "use_safetensors": True, "local_files_only": True}
    return tokenizer, AutoModelForCausalLM.from_pretrained(checkpoint.path, **options).eval()
