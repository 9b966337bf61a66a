"""RunConfig: everything that decides what a run computes, validated before any work. Unknown keys are refused.

Loads neither torch nor transformers, so that planning a hundred runs is instant.
"""

import copy
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from oelm.errors import OelmError
from oelm.freezing.methods import method


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ModelSection(_Section):
    """A named size of our GPT and what to change in it, or a pretrained encoder to fine-tune."""

    size: str = Field("", description="default: demo, unless there is an encoder")
    overrides: dict[str, Any] = Field(default_factory=dict, description="GPTConfig fields, e.g. positions: rotary")
    encoder: str | None = Field(None, description="folder or hub name of a transformers model, for classification")

    @model_validator(mode="after")
    def _one_model(self) -> "ModelSection":
        if self.encoder and (self.size or self.overrides):
            raise ValueError(f"encoder {self.encoder!r} has its own size; leave size and overrides out")
        if not self.encoder:
            self.size = self.size or "demo"
        return self


class DataSection(_Section):
    path: str = Field(description="folder written by 'oelm data prepare' or 'oelm data task'")
    fingerprint: str | None = Field(None, description="identity of the data and its tokenizer; checked when given")


class TrainingSection(_Section):
    """The published settings are the defaults, except that every arm has the same learning rate."""

    # None until the data are known, if epochs are asked for; `with_steps` then fills in what depends on it.
    max_steps: int = Field(None, ge=1, description="default: 100,000, or what epochs amount to")  # type: ignore[assignment]
    epochs: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="passes over a task's training rows, instead of max_steps"
    )
    batch_size: int = Field(8, ge=1, description="sequences per micro-batch")
    accumulation: int = Field(1, ge=1, description="micro-batches per optimizer step")
    sequence_length: int | None = Field(None, ge=1, description="tokens per sequence; default: the model's max_seq_len")
    max_lr: float = Field(3e-4, gt=0, allow_inf_nan=False)
    min_lr: float | None = Field(None, ge=0, description="learning rate at the end; default: a tenth of max_lr")
    schedule: Literal["cosine", "linear"] = Field("cosine", description="how the rate falls after the warm-up")
    warmup_steps: int | None = Field(None, ge=0, description="default: 2,000, or a tenth of a shorter run")
    warmup_ratio: float | None = Field(None, ge=0, le=1, description="warm-up as a share of the run, instead of steps")
    weight_decay: float = Field(0.1, ge=0, allow_inf_nan=False)
    decay: Literal["matrices", "all"] = Field("matrices", description="what weight decay applies to")
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    grad_clip: float = Field(1.0, ge=0, description="0 switches clipping off")
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    eval_every: int | None = Field(None, ge=1, description="default: 1,000, or a tenth of a shorter run")
    eval_budget: float = Field(
        0.03, gt=0, le=1, description="share of the training computation that validation on the way may use"
    )
    eval_tokens: Annotated[int, Field(ge=1)] | Literal["all"] | None = Field(
        None, description="validation tokens on the way; default: as many as the budget allows"
    )
    eval_precision: Literal["training", "fp32"] = Field("training", description="precision of validation")
    score: Literal["final", "best"] = Field(
        "final", description="the result is the last validation, or the best one over the run, always of the whole set"
    )
    segments: bool = Field(True, description="tell an encoder which of two texts a token belongs to")
    checkpoint_every: int | None = Field(None, ge=1, description="default: at every validation")
    log_every: int = Field(10, ge=1)

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
                f"epochs {self.epochs:g} are {steps} steps of this data, but max_steps is {self.max_steps}; "
                "give only one of them"
            )
        try:
            return TrainingSection.model_validate({**self.model_dump(), "max_steps": steps})
        except ValidationError as error:
            raise OelmError(f"epochs {self.epochs:g} are {steps} steps of this data: {_one_line(error)}") from None


ADDED_LATER = ("schedule", "warmup_ratio", "decay", "eval_precision", "score", "segments")
"""Training settings that records of earlier versions do not have."""


class RuntimeSection(_Section):
    """Where and how a run is executed; not part of what it computes."""

    device: str = "auto"
    threads: int | None = Field(None, ge=1, description="CPU threads; default: torch's own choice")
    compile: bool = False
    nproc: int = Field(1, ge=1, description="processes on this machine; a batch is shared among them")
    strategy: Literal["ddp", "fsdp"] = Field("ddp", description="of several processes: copies, or shards of the model")
    gradient_checkpointing: bool = Field(False, description="less memory, about a third more computation, same result")
    trackers: list[Literal["tensorboard", "wandb"]] = Field(default_factory=list)


class RunConfig(_Section):
    method: str | dict[str, Any] = "baseline"
    seed: int = Field(0, ge=0, lt=2**63)
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
            raise OelmError(_one_line(error)) from None

    @classmethod
    def load(cls, path: str | Path, unless_given: dict[str, Any] | None = None) -> "RunConfig":
        """A config from a file; `unless_given` has sections that it may leave out."""
        try:
            values = yaml.safe_load(Path(path).read_text())
        except FileNotFoundError:
            raise OelmError(f"config {path} does not exist") from None
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise OelmError(f"config {path} cannot be read: {' '.join(str(error).split())}") from None
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
        try:
            place[last] = _number(yaml.safe_load(text))
        except yaml.YAMLError:
            raise OelmError(f"setting {assignment!r}: {text!r} is not a YAML value") from None
    return result


def _number(value: Any) -> Any:
    """YAML reads 3e-4 (no dot) as text; people mean the number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


_UNION_MEMBER = re.compile(r"constrained-|literal\[|dict\[|(str|int|float)$")
"""What pydantic adds to the name of a key that may have several types."""


def _one_line(error: ValidationError) -> str:
    problems = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"] if not _UNION_MEMBER.match(str(part))) or "config"
        if item["type"] == "extra_forbidden":
            problems.append(f"config key {key!r} is unknown; known here: {', '.join(_known_keys(item['loc']))}")
        elif item["type"] == "missing":
            problems.append(f"config key {key!r} is missing")
        else:
            message = item["msg"].removeprefix("Value error, ")
            start = f"config key {key!r} is {item['input']!r}: " if item["loc"] else ""
            if problems and start and problems[-1].startswith(start):  # the next of several types that it may have
                problems[-1] += f", or: {message}"
            else:
                problems.append(start + message)
    return "; ".join(problems)


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    section: Any = RunConfig
    for part in location[:-1]:
        section = section.model_fields[part].annotation
    return list(section.model_fields)
