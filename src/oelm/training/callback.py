"""`oelm.FreezeCallback`: the same freezing, proof and timing inside transformers' own Trainer.

    trainer = transformers.Trainer(model, args, train_dataset=…, callbacks=[oelm.FreezeCallback("oelm_freeze")])
    trainer.train()

The model is frozen when the Trainer is made, so before it makes an optimizer. At every save and at the end each frozen
tensor is checked to the bit; `freeze.json` and `timing_stats.json` are written to the Trainer's output folder. What is
promised at a checkpoint stands in its `trainer_state.json`, so that a run resumed from there, or a best model loaded at
the end, is held to it.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback, TrainerState
from transformers.training_args import ParallelMode

from oelm.errors import OelmError
from oelm.files import write_json
from oelm.freezing.apply import freeze, site_tensors, verify_frozen
from oelm.freezing.methods import Method, method
from oelm.freezing.report import FreezeReport
from oelm.freezing.schedules import Rates, Schedule, advance
from oelm.training.timing import PUBLISHED_WARMUP, StepTimer

STATE_FILE = "trainer_state.json"
STATE_KEY = "oelm_freeze_report"  # under which the Trainer's own state carries the report into every checkpoint


class FreezeCallback(TrainerCallback):
    """Freezes the Trainer's model as a method says, and proves at the end that it stayed so."""

    def __init__(
        self, method_spec: str | Mapping[str, Any] | Method, *, seed: int | None = None, pretrained: bool | None = None
    ) -> None:
        self.method = method(method_spec)
        self.seed = seed  # of the frozen projections; default: the Trainer's own seed
        self.pretrained = pretrained
        self.report: FreezeReport = None  # type: ignore[assignment] # until the Trainer is made
        self.timing: dict[str, Any] = {}
        self._model: nn.Module
        self._timer: StepTimer
        self._step = ExitStack()
        self._schedule: Schedule | None = None
        self._rates: Rates
        self._hooks: list[RemovableHandle] = []
        self._made: set[str] = set()  # names of parameters that freezing made: pieces, and parts of a fused matrix
        self._current = 0

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if self.method.moves:
            _require_unused_allowed(args, model)
        seed = args.seed if self.seed is None else self.seed
        self._model = model
        before = {id(parameter) for parameter in model.parameters()}
        self.report = freeze(model, self.method, seed=seed, pretrained=self.pretrained)
        self._made = {name for name, parameter in model.named_parameters() if id(parameter) not in before}
        for _, tensor in self._thawing():
            tensor.requires_grad_(True)  # so that the optimizer, made once, holds what will thaw

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if self.report is None:
            raise OelmError("FreezeCallback came after its Trainer was made; pass it in Trainer(callbacks=[...])")
        if _unwrapped(model) is not self._model:
            raise OelmError("this Trainer makes its model anew (model_init); call oelm.freeze inside model_init")
        self._take_report(state)
        self._schedule = Schedule.of(self.report, state.max_steps)
        self._rates = Rates.of(self._model, self.report, self._schedule)
        optimizer = kwargs.get("optimizer")
        parameters = dict(self._model.named_parameters())
        self._require_optimizer(optimizer, parameters)
        self._follow_schedule(state.global_step + 1, state)
        verify_frozen(_unwrapped(model), self.report)
        self._scale_updates(optimizer, parameters)
        self._timer = StepTimer(args.device, min(PUBLISHED_WARMUP, max(0, state.max_steps) // 10))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._current = state.global_step + 1
        self._follow_schedule(self._current, state)
        self._step.enter_context(self._timer.step())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._step.close()

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        verify_frozen(_unwrapped(model), self.report)

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self._remove_hooks()
        best_state = Path(state.best_model_checkpoint or "") / STATE_FILE
        if args.load_best_model_at_end and best_state.is_file():
            best = TrainerState.load_from_json(str(best_state))
            self._take_report(best)
            self._follow_schedule(best.global_step, best)
        verify_frozen(_unwrapped(model), self.report)
        statistics = {k: v for k, v in self._timer.statistics().items() if not k.endswith("_share")}  # no phases here
        self.timing = {
            "model_type": self.method.name,
            "init_method": self.report.sites[0].init if self.report.sites else "keep",
            **statistics,
        }
        if args.should_save:
            folder = Path(args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "freeze.json", self.report.to_dict())
            write_json(folder / "timing_stats.json", self.timing)

    def _thawing(self) -> list[tuple[str, nn.Parameter]]:
        sites = [site for site in self.report.sites if site.thaws]
        return [(n, t) for site in sites for n, t in site_tensors(self._model, site) if isinstance(t, nn.Parameter)]

    def _take_report(self, state: Any) -> None:
        """What was promised when this state was saved; a new run's state says nothing."""
        if STATE_KEY not in state.stateful_callbacks:
            return
        self.report = FreezeReport.from_dict(state.stateful_callbacks[STATE_KEY])
        if self.report.method != self.method:
            raise OelmError(
                f"the checkpoint was made with method {self.report.method.name!r}, but FreezeCallback has "
                f"{self.method.name!r}; resume with the same method, or start anew in another output_dir"
            )

    def _follow_schedule(self, step: int, state: Any) -> None:
        before = self.report
        if self._schedule is not None and self._schedule.moves:
            self.report = advance(self._model, self.report, self._schedule, step)
        if self.report is not before or STATE_KEY not in state.stateful_callbacks:
            state.stateful_callbacks[STATE_KEY] = self.report.to_dict()

    def _require_optimizer(self, optimizer: Any, parameters: dict[str, nn.Parameter]) -> None:
        """An optimizer of the user's own must hold nothing frozen, and all that freezing made and that will thaw."""
        held = {id(p) for group in getattr(optimizer, "param_groups", ()) for p in group["params"]}
        if held.isdisjoint(map(id, parameters.values())):
            return  # sharded: it holds pieces of its own making
        promised = {name for site in self.report.sites if not site.thaws for name in site.hashes}
        wanted = {n for n in self._made if parameters[n].requires_grad} | {n for n, _ in self._thawing()}
        if any(id(p) in held for name, p in parameters.items() if name in promised):
            raise OelmError("the optimizer given to the Trainer holds frozen weights; freeze before making it")
        if lost := sorted(name for name in wanted if id(parameters[name]) not in held):
            raise OelmError(
                f"the optimizer given to the Trainer does not hold {lost[0]} ({len(lost)} such weights), which would "
                "never train; let the Trainer make its optimizer (optimizer_cls_and_kwargs=...), after freezing"
            )

    def _scale_updates(self, optimizer: Any, parameters: dict[str, nn.Parameter]) -> None:
        """A method's own learning rates: AdamW's step is proportional to its rate, so a factor on that is one on it."""
        self._remove_hooks()
        rates, keys = self._rates, {name: self._rates.key(name) for name in parameters}
        scaled = {name: key for name, key in keys.items() if key != (1.0, 0)}
        if not scaled:
            return
        before: dict[str, Tensor] = {}

        def remember(*_: Any) -> None:
            before.update({n: parameters[n].detach().clone() for n in scaled if parameters[n].grad is not None})

        def shorten(*_: Any) -> None:
            with torch.no_grad():
                for name, old in before.items():
                    factor = rates.at(scaled[name], self._current)
                    parameters[name].copy_(old.lerp(parameters[name], factor))
            before.clear()

        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        self._hooks = [inner.register_step_pre_hook(remember), inner.register_step_post_hook(shorten)]

    def _remove_hooks(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()


def _require_unused_allowed(args: Any, model: Any) -> None:
    """DDP must bear that what it is to train has no gradient yet; with gradient checkpointing it is told not to."""
    allowed = args.ddp_find_unused_parameters
    if allowed is None:
        allowed = not (args.gradient_checkpointing or getattr(model, "is_gradient_checkpointing", False))
    copies = args.parallel_mode == ParallelMode.DISTRIBUTED and not (args.fsdp or args.deepspeed)
    if copies and not allowed:
        raise OelmError(
            "the method trains some weights only at some steps, which DDP refuses here; "
            "set ddp_find_unused_parameters=True in the TrainingArguments, or use one process"
        )


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, if the Trainer has wrapped it for several processes or compiled it."""
    for wrapper in ("module", "_orig_mod"):
        model = getattr(model, wrapper, model)
    return model
