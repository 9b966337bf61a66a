"""`oelm.FreezeCallback`: the same freezing, proof and timing inside transformers' own Trainer.

    trainer = transformers.Trainer(model, args, train_dataset=…, callbacks=[oelm.FreezeCallback("oelm_freeze")])
    trainer.train()

The model is frozen when the Trainer is made, so before it makes an optimizer. At every save and at the end each frozen
tensor is checked to the bit; `freeze.json` and `timing_stats.json` are written to the Trainer's output folder.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from oelm.errors import OelmError
from oelm.files import write_json
from oelm.freezing import FreezeReport, audit, freeze, site_tensors
from oelm.methods import Method, method
from oelm.schedules import Rates, Schedule, advance
from oelm.training.timing import PUBLISHED_WARMUP, StepTimer


class FreezeCallback(TrainerCallback):
    """Freezes the Trainer's model as a method says, and proves at the end that it stayed so."""

    def __init__(
        self, method_spec: str | Mapping[str, Any] | Method, *, seed: int | None = None, pretrained: bool | None = None
    ) -> None:
        self.method = method(method_spec)
        self.seed = seed
        """Of the frozen projections; default: the Trainer's own seed."""
        self.pretrained = pretrained
        self.report: FreezeReport | None = None
        self.timing: dict[str, Any] = {}
        self._model: nn.Module | None = None
        self._timer: StepTimer | None = None
        self._step = ExitStack()
        self._schedule: Schedule | None = None
        self._rates: Rates | None = None
        self._current = 0

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        seed = args.seed if self.seed is None else self.seed
        self._model = model
        self.report = freeze(model, self.method, seed=seed, pretrained=self.pretrained)
        for tensor in self._thawing(model):
            tensor.requires_grad_(True)  # so that the optimizer, made once, holds what will thaw

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if self.report is None:
            raise OelmError("FreezeCallback came after its Trainer was made; pass it in Trainer(callbacks=[...])")
        if _unwrapped(model) is not self._model:
            raise OelmError("this Trainer makes its model anew (model_init); call oelm.freeze inside model_init")
        self._schedule = Schedule.of(self.report, state.max_steps)
        self._rates = Rates.of(self._model, self.report, self._schedule)
        self._follow_schedule(state.global_step + 1)
        self._audit(model)
        optimizer = kwargs.get("optimizer")
        trained = {id(p) for group in getattr(optimizer, "param_groups", ()) for p in group["params"]}
        parameters = dict(_unwrapped(model).named_parameters())
        promised = [name for site in self.report.sites if not site.thaws for name in site.hashes]
        if any(id(parameters[name]) in trained for name in promised if name in parameters):
            raise OelmError("the optimizer given to the Trainer holds frozen weights; freeze before making it")
        self._scale_updates(optimizer, parameters)
        self._timer = StepTimer(args.device, min(PUBLISHED_WARMUP, max(0, state.max_steps) // 10))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._current = state.global_step + 1
        self._follow_schedule(self._current)
        if self._timer is not None:
            self._step.enter_context(self._timer.step())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._step.close()

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self._audit(model)

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self._audit(model)
        assert self.report is not None and self._timer is not None
        statistics = {k: v for k, v in self._timer.statistics().items() if not k.endswith("_share")}  # no phases here
        self.timing = {
            "model_type": self.method.name,
            "init_method": self.report.sites[0].init,
            **statistics,
        }
        if args.should_save:
            folder = Path(args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "freeze.json", self.report.to_dict())
            write_json(folder / "timing_stats.json", self.timing)

    def _thawing(self, model: nn.Module) -> list[nn.Parameter]:
        assert self.report is not None
        sites = [site for site in self.report.sites if site.thaws]
        return [t for site in sites for _, t in site_tensors(model, site) if isinstance(t, nn.Parameter)]

    def _follow_schedule(self, step: int) -> None:
        assert self.report is not None and self._model is not None
        if self._schedule is not None and self._schedule.moves:
            self.report = advance(self._model, self.report, self._schedule, step)

    def _scale_updates(self, optimizer: Any, parameters: dict[str, nn.Parameter]) -> None:
        """Learning rates of a method's own, whatever optimizer and scheduler the Trainer has.

        A step of AdamW is proportional to its learning rate, so a factor on the rate is a factor on the step.
        """
        assert self._rates is not None
        rates, keys = self._rates, {name: self._rates.key(name) for name in parameters}
        scaled = {name: key for name, key in keys.items() if key != (1.0, 0)}
        if not scaled:
            return
        before: dict[str, Tensor] = {}

        def remember(*_: Any) -> None:
            before.update(
                {name: parameters[name].detach().clone() for name in scaled if parameters[name].grad is not None}
            )

        def shorten(*_: Any) -> None:
            with torch.no_grad():
                for name, old in before.items():
                    factor = rates.at(scaled[name], self._current)
                    parameters[name].copy_(old.lerp(parameters[name], factor))
            before.clear()

        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        inner.register_step_pre_hook(remember)
        inner.register_step_post_hook(shorten)

    def _audit(self, model: nn.Module) -> None:
        assert self.report is not None
        audit(_unwrapped(model), self.report)


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, if the Trainer has wrapped it for several processes or compiled it."""
    for wrapper in ("module", "_orig_mod"):
        model = getattr(model, wrapper, model)
    return model
