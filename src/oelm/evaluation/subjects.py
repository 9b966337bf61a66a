"""The language model of a run, of a checkpoint, of a model folder or of the hub, ready to be asked."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oelm.data.tokenization import end_of_text_id, load_tokenizer, vocabulary_size
from oelm.errors import OelmError, unknown
from oelm.hub import reason
from oelm.models.known import require_known
from oelm.runs import RunFolder
from oelm.training import checkpoints

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NOT_CAUSAL = ("Classification", "MaskedLM", "ConditionalGeneration")


@dataclass(frozen=True)
class Subject:
    name: str
    model: Any  # one of transformers' causal language models, ours among them
    tokenizer: "Tokenizer"
    context: int
    start: int  # the token after which a document begins
    end: int
    run: RunFolder | None = None
    step: int | None = None

    def encode(self, text: str) -> list[int]:
        """The start of a document and the text."""
        return [self.start, *self.tokenizer.encode(text, add_special_tokens=False).ids]

    def wrapped(self) -> Any:
        """The tokenizer as transformers has it, with the special tokens of the exported folder."""
        from transformers import PreTrainedTokenizerFast

        start, end = (self.tokenizer.id_to_token(number) for number in (self.start, self.end))
        return PreTrainedTokenizerFast(tokenizer_object=self.tokenizer, bos_token=start, eos_token=end, pad_token=end)

    def record(self, name: str, facts: dict[str, Any]) -> Path | None:
        """Keep facts in the folder of a run, with a digest; where. Reports show `headlines` and `beside`."""
        if self.run is None:
            return None
        file = self.run.path / "evaluation" / f"{name}.json"
        file.parent.mkdir(exist_ok=True)
        self.run.record(file, {"step": self.step, **facts})
        return file


def load(what: str | Path, which: str = checkpoints.BEST, **options: Any) -> Subject:
    """`options` go to transformers' `from_pretrained`."""
    if which not in (checkpoints.BEST, checkpoints.LATEST):
        raise unknown("checkpoint", which, (checkpoints.BEST, checkpoints.LATEST))
    path = Path(what)
    stock = (path / "config.json").is_file() and not (path / checkpoints.MANIFEST).is_file()
    named = len(path.parts) == 1 or (len(path.parts) == 2 and not path.parent.exists())
    if stock or (named and not path.exists()):
        return _stock(str(what), options)
    checkpoint = checkpoints.resolve(path, which)
    run = RunFolder(checkpoint.path.parent.parent)
    with checkpoint.being_read():
        try:
            model, tokenizer = _opened(str(checkpoint.path), str(what), {**options, "local_files_only": True})
        except OSError as error:  # what transformers says of a file that it cannot parse
            raise OelmError(f"checkpoint {checkpoint.path} is damaged: {reason(error, checkpoint.path)}") from None
        end = end_of_text_id(tokenizer)
        known = run if run.config_file.is_file() else None
        return Subject(str(what), model, tokenizer, _context(model), end, end, known, checkpoint.step)


def _stock(what: str, options: dict[str, Any]) -> Subject:
    if os.environ.get("HF_HUB_OFFLINE") != "1":  # then nothing is asked of the hub, and a name may be a run's
        require_known(what)
    try:
        model, tokenizer = _opened(what, what, options)
    except OelmError:
        raise
    except Exception as error:  # a missing name, a damaged file and the hub all raise types of their own
        ways = "give a run folder that has trained, a checkpoint folder, a model folder or a name of the hub"
        why = reason(error, what)
        raise OelmError(f"{what} holds no checkpoint and is no model to be had ({why}); {ways}") from None
    config = model.config
    end = config.eos_token_id[0] if isinstance(config.eos_token_id, list) else config.eos_token_id
    end = end_of_text_id(tokenizer) if end is None else end
    start = end if config.bos_token_id is None else config.bos_token_id
    return Subject(what, model, tokenizer, _context(model), start, end)


def _context(model: Any) -> int:
    return getattr(model.config, "max_position_embeddings", None) or 1024


def _opened(folder: str, name: str, options: dict[str, Any]) -> tuple[Any, "Tokenizer"]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    kind = "".join(AutoConfig.from_pretrained(folder, trust_remote_code=False).architectures or [])
    if any(word in kind for word in NOT_CAUSAL):
        if "ConditionalGeneration" in kind:
            raise OelmError(f"{name} is an encoder–decoder ({kind}), not asked here; oelm export, then its generate()")
        what = "a classifier" if "Classification" in kind else "no causal language model"
        raise OelmError(f"{name} is {what} ({kind}); it writes no text")
    local = Path(folder).is_dir()
    tokenizer = load_tokenizer(folder) if local else AutoTokenizer.from_pretrained(folder).backend_tokenizer
    safely = {"trust_remote_code": False, "use_safetensors": True}
    model = AutoModelForCausalLM.from_pretrained(folder, **safely, **options).eval()
    size, room = vocabulary_size(tokenizer), model.get_input_embeddings().num_embeddings
    if size > room:
        raise OelmError(f"{name}: its tokenizer has {size:,} entries, its model {room:,}; give its own tokenizer")
    return model, tokenizer
