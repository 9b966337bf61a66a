"""RunConfig: everything that decides what a run computes, validated before any work. Unknown keys are refused.

Loads neither torch nor transformers, so that planning a hundred runs is instant.
"""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from oelm.errors import OelmError, unknown
from oelm.freezing.methods import method
from oelm.models.shape import SIZES
from oelm.records import named_model
from oelm.validation import number_in
from oelm.yaml_files import parse_yaml, read_yaml

MOST_STEPS, MOST_AT_ONCE = 10**9, 2**20  # beyond any machine: a slip of the keyboard is refused, not computed


def setting(default: Any, description: str, *flags: str, **limits: Any) -> Any:
    """A setting of one value: its description is the help of its option, `flags` are other names of that option."""
    return Field(default, description=description, json_schema_extra={"flags": list(flags)}, **limits)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_numbers(cls, value: Any, info: Any) -> Any:
        """Neither true nor 0_1 is one, whatever int() makes of them."""
        kinds = str(cls.model_fields[info.field_name].annotation)
        if not re.search(r"\b(int|float)\b", kinds) or "dict[" in kinds:
            return value
        return [_as_number(one, kinds) for one in value] if isinstance(value, list) else _as_number(value, kinds)


def _as_number(value: Any, kinds: str) -> Any:
    if isinstance(value, bool):
        raise ValueError("it must be a number, not true or false")
    number = number_in(value)
    if isinstance(number, str) and "str" not in kinds and number not in kinds:
        words = re.findall(r"Literal\[(.*?)\]", kinds)
        raise ValueError(" or ".join(["it must be a number, written in digits", *words]))
    return number


class ModelSection(Section):
    """A named size of our GPT and what to change in it, or any model of transformers, pretrained or fresh."""

    size: str = setting("", "size of our GPT: demo, tiny, small, medium-512, medium or large; default: demo")
    overrides: dict[str, Any] = Field({}, description="fields of GPTConfig, or of a fresh model's config.json")
    name: str | None = Field(None, min_length=1, description="transformers model: hub name, folder or config.json")
    fresh: bool = setting(False, "with --model: its architecture only, trained from scratch")
    objective: Literal["causal", "masked", "seq2seq", "classification"] | None = setting(
        None,
        "causal (next token), masked (hidden tokens), seq2seq (pairs of texts, or hidden spans of a corpus) or "
        "classification; default: what model and data are made for",
    )

    @model_validator(mode="before")
    @classmethod
    def _former_key(cls, values: Any) -> Any:
        return named_model(values)

    @model_validator(mode="after")
    def _one_model(self) -> "ModelSection":
        if self.name in SIZES and not Path(self.name).exists():
            raise ValueError(f"{self.name!r} is a size of our GPT, not a model of transformers; use --size {self.name}")
        if self.name and (self.size or (self.overrides and not self.fresh)):
            raise ValueError(f"model {self.name!r} has its own size; leave size and overrides out, or train it fresh")
        if self.fresh and not self.name:
            raise ValueError("fresh is for a model of transformers; say which with name (--model)")
        if not self.name:
            self.size = self.size or "demo"
        return self


class DataSection(Section):
    path: str = Field(min_length=1, description="folder written by 'oelm data prepare' or 'oelm data task'")
    fingerprint: str | None = Field(None, description="identity of the data and its tokenizer; checked when given")


class TrainingSection(Section):
    """The published settings are the defaults, except that every arm has the same learning rate."""

    # None until the data are known, if epochs are asked for; `with_steps` then fills in what depends on it.
    max_steps: int = setting(None, "optimizer steps; default: 100,000, or what epochs amount to", ge=1, le=MOST_STEPS)
    epochs: float | None = setting(
        None, "passes over a task's training rows, instead of steps; default with a task: 3", gt=0, allow_inf_nan=False
    )
    batch_size: int = setting(8, "sequences per micro-batch", ge=1, le=MOST_AT_ONCE)
    accumulation: int = setting(
        1, "micro-batches per optimizer step", "--gradient-accumulation-steps", ge=1, le=MOST_AT_ONCE
    )
    sequence_length: int | None = setting(None, "tokens per sequence; default: the model's max_seq_len", ge=1, le=2**24)
    max_lr: float = setting(3e-4, "learning rate after warm-up", "--learning-rate", gt=0, allow_inf_nan=False)
    min_lr: float | None = setting(None, "learning rate at the end; default: a tenth of max_lr", ge=0)
    schedule: Literal["cosine", "linear"] = setting("cosine", "how the rate falls after the warm-up: cosine or linear")
    warmup_steps: int | None = setting(None, "warm-up steps; default: 2,000, or a tenth of a shorter run", ge=0)
    warmup_ratio: float | None = setting(None, "warm-up as a share of the run, instead of steps", ge=0, le=1)
    weight_decay: float = setting(0.1, "weight decay", ge=0, allow_inf_nan=False)
    decay: Literal["matrices", "all"] = setting("matrices", "what weight decay applies to: matrices or all")
    beta1: float = setting(0.9, "AdamW's first moment", ge=0, lt=1)
    beta2: float = setting(0.95, "AdamW's second moment", ge=0, lt=1)
    grad_clip: float = setting(1.0, "largest gradient norm; 0 switches clipping off", ge=0)
    precision: Literal["fp32", "bf16", "fp16"] = setting("fp32", "precision: fp32, bf16, or fp16 on CUDA")
    eval_every: int | None = setting(
        None, "steps between validations; default: 1,000 or a tenth of a shorter run", ge=1
    )
    eval_budget: float = setting(0.03, "share of training's computation that validation on the way may use", gt=0, le=1)
    eval_tokens: Annotated[int, Field(ge=1)] | Literal["all"] | None = setting(
        None, "validation tokens on the way, or all; default: as many as the budget allows"
    )
    eval_precision: Literal["training", "fp32"] = setting("training", "precision of validation: training's, or fp32")
    score: Literal["final", "best"] = setting("final", "the result: the last validation, or the best; of the whole set")
    segments: bool = setting(True, "tell an encoder which of two texts a token belongs to")
    checkpoint_every: int | None = setting(None, "steps between checkpoints; default: at every validation", ge=1)
    log_every: int = setting(10, "steps between rows of metrics and lines of progress", ge=1)

    @model_validator(mode="before")
    @classmethod
    def _none_is_default(cls, values: Any) -> Any:
        return {k: v for k, v in values.items() if v is not None} if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _consistent(self) -> "TrainingSection":
        if self.min_lr is None:
            self.min_lr = self.max_lr / 10
        if self.min_lr > self.max_lr:
            raise ValueError(f"min_lr {self.min_lr} is above max_lr {self.max_lr}")
        if self.max_steps is None:
            if self.epochs is not None:
                return self
            self.max_steps = 100_000
        if self.warmup_steps is None:
            share = self.warmup_ratio
            self.warmup_steps = min(2_000, self.max_steps // 10) if share is None else int(share * self.max_steps)
        if self.eval_every is None:
            self.eval_every = min(1_000, max(1, self.max_steps // 10))
        if self.warmup_steps > self.max_steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} exceeds max_steps {self.max_steps}")
        if self.checkpoint_every is None:
            self.checkpoint_every = self.eval_every
        return self

    def with_steps(self, steps: int) -> "TrainingSection":
        """With the number of steps that `epochs` amount to; one that is given already must be the same."""
        if self.max_steps not in (None, steps):
            raise OelmError(
                f"epochs {self.epochs:g} are {steps} steps of this data, but max_steps is {self.max_steps}; give one"
            )
        try:
            return TrainingSection.model_validate({**self.model_dump(), "max_steps": steps})
        except ValidationError as error:
            wrong = one_line(error, TrainingSection)
            raise OelmError(f"epochs {self.epochs:g} are {steps} steps of this data: {wrong}") from None


ADDED_LATER = ("schedule", "warmup_ratio", "decay", "eval_precision", "score", "segments")
"""Training settings that records of earlier versions do not have."""


class RuntimeSection(Section):
    """Where and how a run is executed; not part of what it computes."""

    device: str = setting("auto", "device: auto, cpu, cuda, cuda:N or mps", min_length=1)
    threads: int | None = setting(None, "CPU threads; default: torch's own choice", ge=1, le=4096)
    compile: bool = setting(False, "use torch.compile")
    nproc: int = setting(1, "processes (GPUs) on this machine; they share each batch", ge=1, le=4096)
    strategy: Literal["ddp", "fsdp"] = setting("ddp", "of several processes: ddp (a copy each) or fsdp (a shard each)")
    gradient_checkpointing: bool = setting(False, "less memory, about a third more computation, the same result")
    sample: str | None = setting(None, "a prompt: at every validation keep what the model writes after it")
    trackers: list[Literal["tensorboard", "wandb", "mlflow", "trackio"]] = setting(
        [], "trackers: tensorboard, wandb, mlflow or trackio, repeatable; default: none", "--track", "--report-to"
    )


class RunConfig(Section):
    method: str | dict[str, Any] = setting("baseline", "a name from 'oelm methods'", "--model_type")
    seed: int = setting(0, "seed of weights, frozen projections and data order", ge=0, lt=2**63)
    model: ModelSection = Field(default_factory=ModelSection)
    data: DataSection
    training: TrainingSection = Field(default_factory=TrainingSection)
    runtime: RuntimeSection = Field(default_factory=RuntimeSection)

    @model_validator(mode="after")
    def _known_method(self) -> "RunConfig":
        chosen = method(self.method)
        self.method = chosen.name if isinstance(self.method, str) else chosen.to_dict()
        return self

    @property
    def method_name(self) -> str:
        return method(self.method).name

    @classmethod
    def parse(cls, values: dict[str, Any]) -> "RunConfig":
        """Validate; every problem becomes one line that names the key, the value and what is allowed."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise OelmError(one_line(error, cls)) from None

    @classmethod
    def load(cls, path: str | Path, unless_given: dict[str, Any] | None = None) -> "RunConfig":
        """A config from a file; `unless_given` has sections that it may leave out."""
        values = read_yaml(Path(path), "config")
        if not isinstance(values, dict):
            raise OelmError(f"config {path} holds {type(values).__name__}, not a mapping of settings")
        return cls.parse({**(unless_given or {}), **values})

    def to_dict(self) -> dict[str, Any]:
        """Complete, but for later settings at their defaults: so runs of before compare equal."""
        values = self.model_dump(mode="json")
        fields = TrainingSection.model_fields
        for key in ADDED_LATER:
            if values["training"][key] == fields[key].default:
                del values["training"][key]
        for key in ("name", "fresh", "objective"):
            if not values["model"][key]:
                del values["model"][key]
        return values


def with_settings(values: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """Apply `key.path=value` assignments (values are YAML) to a nested mapping, returning a new one.

    >>> with_settings({"training": {"max_lr": 1}}, ["training.max_lr=3e-4", "seed=2"])
    {'training': {'max_lr': 0.0003}, 'seed': 2}
    """
    result = copy.deepcopy(values)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise OelmError(f"setting {assignment!r} is not of the form key=value, e.g. training.max_lr=3e-4")
        place = result
        *parents, last = key.split(".")
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise OelmError(f"setting {assignment!r}: {parent!r} is a value, not a section")
        place[last] = _value(text, assignment)
    return result


def options() -> Iterator[tuple[str, str, FieldInfo]]:
    """Every setting that is one value: its section ("" at the top), its name, and what is known of it."""
    sections: dict[str, type[Section]] = {
        "": RunConfig,
        "model": ModelSection,
        "training": TrainingSection,
        "runtime": RuntimeSection,
    }
    for section, cls in sections.items():
        for name, field in cls.model_fields.items():
            if field.json_schema_extra is not None:
                yield section, name, field


def _value(text: str, assignment: str) -> Any:
    try:
        return number_in(parse_yaml(text, "it"))
    except OelmError:
        raise OelmError(f"setting {assignment!r}: {text!r} is not a YAML value") from None


_UNION_MEMBER = re.compile(r"constrained-|literal\[|dict\[|(str|int|float)$")
"""What pydantic adds to the name of a key that may have several types."""
_PYDANTICS = re.compile(r"Value error, |, (unable|got) .*| or instance of \w+| after validation.*|valid (?!int|dict)")
"""Words of its messages that say nothing to the user."""


def one_line(error: ValidationError, root: type[BaseModel], kind: str = "setting") -> str:
    """Every problem with the key (and its option), the value and what is allowed there."""
    problems: list[str] = []
    named = options() if root is RunConfig else ()
    flags = {f"{section}.{name}".lstrip("."): f" (--{name.replace('_', '-')})" for section, name, _ in named}
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"] if not _UNION_MEMBER.match(str(part))) or "config"
        if item["type"] == "extra_forbidden":
            section = key.rpartition(".")[0]
            known = [f"{section}.{name}".lstrip(".") for name in _known_keys(root, item["loc"])]
            problems.append(str(unknown(kind, key, known)))
        elif item["type"] == "missing":
            problems.append(f"{kind} {key!r} is missing")
        else:
            message = re.sub(r"^\w+ should", "it must", _PYDANTICS.sub("", item["msg"]))
            message = message.replace("valid integer", "whole number").replace("valid dictionary", "mapping")
            given = repr(item["input"])
            given = given if len(given) <= 80 else f"{given[:77]}…"
            value = "" if isinstance(item["input"], dict) else f"{flags.get(key, '')} is {given}"
            start = f"{kind} {key!r}{value}{';' if value else ':'} " if item["loc"] else ""
            if problems and start and problems[-1].startswith(start):  # the next of several types that it may have
                problems[-1] += f", or {message.removeprefix('it must be ')}"
            else:
                problems.append(start + message)
    return "; ".join(problems)


def _known_keys(root: Any, location: tuple[int | str, ...]) -> list[str]:
    for part in location[:-1]:
        if part in getattr(root, "model_fields", {}):
            root = root.model_fields[part].annotation
        root = next((kind for kind in get_args(root) if hasattr(kind, "model_fields")), root)
    return list(getattr(root, "model_fields", ()))
