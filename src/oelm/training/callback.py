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

from torch import nn
from transformers import TrainerCallback

from oelm.errors import OelmError
from oelm.files import write_json
from oelm.freezing import FreezeReport, audit, freeze
from oelm.methods import Method, method
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

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        seed = args.seed if self.seed is None else self.seed
        self._model = model
        self.report = freeze(model, self.method, seed=seed, pretrained=self.pretrained)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if self.report is None:
            raise OelmError("FreezeCallback came after its Trainer was made; pass it in Trainer(callbacks=[...])")
        if _unwrapped(model) is not self._model:
            raise OelmError("this Trainer makes its model anew (model_init); call oelm.freeze inside model_init")
        self._audit(model)
        optimizer = kwargs.get("optimizer")
        trained = {id(p) for group in getattr(optimizer, "param_groups", ()) for p in group["params"]}
        parameters = dict(_unwrapped(model).named_parameters())
        if any(id(parameters[name]) in trained for name in self.report.frozen_names):
            raise OelmError("the optimizer given to the Trainer holds frozen weights; freeze before making it")
        self._timer = StepTimer(args.device, min(PUBLISHED_WARMUP, max(0, state.max_steps) // 10))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
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

    def _audit(self, model: nn.Module) -> None:
        assert self.report is not None
        audit(_unwrapped(model), self.report)


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, if the Trainer has wrapped it for several processes or compiled it."""
    for wrapper in ("module", "_orig_mod"):
        model = getattr(model, wrapper, model)
    return model
