"""A run's model as a folder that every tool reads: stock weights, tokenizer, generation settings and a model card.

The folder needs no oelm: `pipeline("text-generation", folder)` works on it (with `trust_remote_code=True` if it was
written as remote code). Its logits were compared with those of the checkpoint before it appears. The card is made from
the run's records only; `card.md.j2` is its text.
"""

import copy
import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from oelm.analysis.compare.statistics import paired_t
from oelm.data.tokenization import end_of_text_id, tokenizer_hash
from oelm.errors import OelmError, Unavailable, unknown
from oelm.files import appearing_folder
from oelm.freezing.report import FreezeReport
from oelm.hub import reason
from oelm.models.export import to_stock, write_code
from oelm.runs import RunFolder, config_differences, find_runs
from oelm.training import checkpoints

TOLERANCE = 1e-5  # how far a logit may be from the checkpoint's, as a share of the largest
FORMATS = ("hf", "remote-code", "gguf-ready")
GGUF = ("LlamaForCausalLM", "Qwen3ForCausalLM")
"""What GGUF runtimes compute alike; their GELU is an approximation, so GPT-2 and GPT-NeoX differ a little there."""
_METRICS = {"loss": ".4f", "perplexity": ".2f", "bits_per_byte": ".4f", "accuracy": ".4f", "f1": ".4f"}
_SETTINGS = ("max_steps", "batch_size", "accumulation", "sequence_length", "max_lr", "weight_decay", "precision")
_SPECIAL = {
    "pad_token": ("[PAD]", "<pad>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
    "unk_token": ("[UNK]", "<unk>"),
}


def export(
    run: str | Path, out: str | Path | None = None, *, to: str = "hf", which: str = checkpoints.BEST
) -> dict[str, Any]:
    """Write the model of a run (or of a checkpoint folder) to `out`, by default RUN/export; say what was written."""
    if to not in FORMATS:
        raise unknown("export format", to, FORMATS)
    if which not in (checkpoints.BEST, checkpoints.LATEST):
        raise unknown("checkpoint", which, (checkpoints.BEST, checkpoints.LATEST))
    checkpoint = checkpoints.resolve(Path(run), which)
    out = Path(out) if out is not None else Path(run) / "export"
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OelmError(f"{out} is there already; remove it, or give another folder with --out")
    original, stock = _models(checkpoint.path, to)
    if to == "gguf-ready" and type(stock).__name__ not in GGUF:
        needed = f"a model that equals {' or '.join(GGUF)} (rotary positions, norm=rms, ffn=swiglu)"
        this = f"this one equals {type(stock).__name__}, whose GELU GGUF runtimes approximate"
        raise OelmError(f"--to gguf-ready needs {needed}; {this}; use --to hf")
    difference = _difference(original, stock)
    if difference > TOLERANCE:
        raise OelmError(f"the exported logits are {difference:.1e} away from the checkpoint's; please report this")
    tokenizer = _tokenizer(checkpoint.path, stock)
    facts = {
        "folder": str(out),
        "to": to,
        "architecture": type(stock).__name__,
        "step": checkpoint.step,
        "logit_difference": difference,
        "parameters": sum(p.numel() for p in stock.parameters()),
        "context": getattr(stock.config, "max_position_embeddings", None),
        "tokenizer_hash": tokenizer_hash(tokenizer.backend_tokenizer) if tokenizer else None,
    }
    with appearing_folder(out) as folder:
        stock.save_pretrained(folder)
        if to == "remote-code":
            write_code(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
            settings = folder / "tokenizer_config.json"  # under the name that transformers 4 knows as well
            named = {**json.loads(settings.read_text("utf-8")), "tokenizer_class": "PreTrainedTokenizerFast"}
            settings.write_text(json.dumps(named, indent=2) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(_card(checkpoint, facts), encoding="utf-8")
    return facts


def push(folder: str | Path, repository: str, *, private: bool = True) -> str:
    """Upload an exported folder to the hub; the repository is made if it is not there."""
    import huggingface_hub

    hub = huggingface_hub.HfApi()
    try:
        hub.create_repo(repository, private=private, exist_ok=True)
        return str(hub.upload_folder(folder_path=str(folder), repo_id=repository))
    except Exception as error:  # the hub's clients raise many unrelated types
        raise Unavailable(f"{folder} was written, but {repository} could not be pushed to ({reason(error)})") from error


def _models(folder: Path, to: str) -> tuple[Any, Any]:
    """The checkpoint's model, and what is to be written: the stock one that it equals, or ours behind Auto classes."""
    import transformers
    from transformers.utils import logging

    from oelm.freezing.projections import merge
    from oelm.models.gpt import GPT

    logging.disable_progress_bar()
    name = (json.loads((folder / "config.json").read_text("utf-8")).get("architectures") or [""])[0]
    if name == "GPTForCausalLM":
        original = GPT.from_pretrained(folder).eval()
        if to == "remote-code":
            return original, transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
        return original, to_stock(original)
    if to == "remote-code":
        raise OelmError(f"{name} is an architecture of transformers and needs no code of its own; use --to hf")
    stock_class = getattr(transformers, str(name), None)
    if not (isinstance(stock_class, type) and issubclass(stock_class, transformers.PreTrainedModel)):
        raise OelmError(f"{name or 'a nameless model'} has no equal in transformers; the checkpoint loads with oelm")
    original = stock_class.from_pretrained(folder, use_safetensors=True).eval()
    return original, merge(copy.deepcopy(original))


def _difference(original: Any, stock: Any) -> float:
    """The largest difference of a logit on random tokens, as a share of the largest logit."""
    import torch

    length = min(64, getattr(stock.config, "max_position_embeddings", None) or 64)
    ids = torch.randint(0, stock.config.vocab_size, (2, length), generator=torch.Generator().manual_seed(0))
    more = {"decoder_input_ids": ids} if stock.config.is_encoder_decoder else {}
    with torch.no_grad():
        ours, theirs = original(ids, **more), stock(ids, **more).logits
    ours = getattr(ours, "logits", ours)
    return float((ours - theirs).abs().max() / ours.abs().max())


def _tokenizer(folder: Path, stock: Any) -> Any:
    """The checkpoint's tokenizer with its special tokens named, which the model's settings then know as well."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(file))
    special = {
        role: next((token for token in tokens if tokenizer.token_to_id(token) is not None), None)
        for role, tokens in _SPECIAL.items()
    }
    if stock.can_generate():
        end = tokenizer.id_to_token(end_of_text_id(tokenizer))
        special.update(bos_token=end, eos_token=end, pad_token=special["pad_token"] or end)
    room = getattr(stock.config, "max_position_embeddings", None)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{role: token for role, token in special.items() if token}, model_max_length=room
    )
    for role in ("bos", "eos", "pad"):
        number = getattr(wrapped, f"{role}_token_id")
        for settings in (stock.config, getattr(stock, "generation_config", None)):
            if settings is not None and number is not None:
                setattr(settings, f"{role}_token_id", number)
    return wrapped


def _card(checkpoint: checkpoints.Checkpoint, facts: dict[str, Any]) -> str:
    """Markdown with the front matter of the hub: method, freeze table, data, metrics, limits."""
    run = RunFolder(checkpoint.path.parent.parent)
    config, result = _read(run.config), _read(run.result)
    seeds = _seeds(run, config)
    trained = {
        "data": result.get("dataset"),
        "data fingerprint": result.get("data_fingerprint") or config.get("data", {}).get("fingerprint"),
        "tokenizer (sha256)": facts["tokenizer_hash"],
        "seed": config.get("seed"),
        "tokens seen": result.get("tokens"),
        **{name: config.get("training", {}).get(name) for name in _SETTINGS},
    }
    whitespace: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    markdown = Environment(loader=PackageLoader("oelm.evaluation", "."), **whitespace)
    markdown.filters["plain"] = _plain
    told: dict[str, Any] = {"facts": facts, "result": result, "trained": trained, "seeds": seeds, "name": run.name}
    told |= {"report": FreezeReport.from_dict(checkpoint.freeze), "metrics": _metrics(result.get("final") or {}, seeds)}
    return markdown.get_template("card.md.j2").render(told)


def _metrics(final: dict[str, Any], seeds: list[dict[str, Any]]) -> dict[str, str]:
    told = {}
    for name, kind in _METRICS.items():
        if final.get(name) is None:
            continue
        told[name] = format(final[name], kind)
        values = [final[name] for final in seeds if name in final]
        if around := paired_t(values):
            low, high = format(around.low, kind), format(around.high, kind)
            told[name] += f" (mean of {len(values)} seeds {sum(values) / len(values):{kind}} [{low}, {high}], 95 %)"
    return told


def _seeds(run: RunFolder, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Final metrics of the finished runs beside this one that differ from it in nothing but the seed, and its own."""
    found = {}
    for other in find_runs(run.path.parent) if config else ():
        theirs, result = _read(other.config), _read(other.result)
        if result and not config_differences({**theirs, "seed": None}, {**config, "seed": None}):
            found[theirs["seed"]] = result["final"]
    return list(found.values())


def _plain(value: Any) -> str:
    """A record's text in one line, without what Markdown would read as a table or as HTML."""
    text = " ".join((f"{value:,}" if isinstance(value, int) else str(value)).split())
    return text.replace("|", "/").replace("<", "&lt;")


def _read(read: Any) -> dict[str, Any]:
    """A record, or nothing if there is none: a checkpoint may lie outside its run."""
    try:
        return read() or {}
    except (OelmError, OSError):
        return {}
