"""A run of ours as the start of another one: its best checkpoint is a model folder like any other.

With the run's own method, what it froze stays frozen, bit for bit; any other method takes the weights for pretrained
ones, so that `baseline` trains everything.
"""

from dataclasses import replace
from pathlib import Path

from torch import nn

from oelm.errors import OelmError
from oelm.freezing.apply import freeze_from_report
from oelm.freezing.methods import method
from oelm.freezing.projections import described_in, note
from oelm.freezing.report import FreezeReport
from oelm.freezing.sites import attention_sites
from oelm.runs import RunFolder, folder_name
from oelm.training import checkpoints
from oelm.training.config import RunConfig


def model_folder(name: str, method_name: str, seed: int) -> str:
    """What a model is called: {method} and {seed} filled in, and for a run its best checkpoint."""
    filled = name.replace("{method}", folder_name(method_name)).replace("{seed}", str(seed))
    if RunFolder(filled).config_file.is_file():
        return str(checkpoints.resolve(Path(filled)).path)
    if filled != name:
        raise OelmError(f"model {filled} is no run; train it first, or give another with --set model.name=FOLDER")
    return name


def frozen_by(folder: str, config: RunConfig) -> FreezeReport | None:
    """What a checkpoint's run froze, if this run's method is the same one."""
    if not (Path(folder) / checkpoints.MANIFEST).is_file():
        return None
    report, chosen = FreezeReport.from_dict(checkpoints.Checkpoint(Path(folder)).freeze), method(config.method)
    if chosen.to_dict() == report.method.to_dict() and not chosen.moves:
        return report
    if described_in(folder):
        raise OelmError(
            f"{folder} has projections that only its own method knows; use --method {report.method.name}, "
            f"not {chosen.name}"
        )
    return None


def freeze_again(model: nn.Module, report: FreezeReport) -> FreezeReport:
    """Freeze what is frozen in the weights that a model starts from, whose names may lack a prefix."""
    attention_sites(model)  # splits what is fused
    parameters, modules = dict(model.named_parameters()), dict(model.named_modules())
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    if any(site.path in modules for site in report.sites):
        prefix = ""
    sites = tuple(
        replace(s, path=prefix + s.path, hashes={prefix + name: digest for name, digest in s.hashes.items()})
        for s in report.sites
    )
    renamed = replace(report, sites=sites, total_parameters=sum(p.numel() for p in parameters.values()))
    if any(p.is_meta for p in parameters.values()):
        for name in parameters.keys() & set(renamed.frozen_names):
            parameters[name].requires_grad_(False)
    else:
        freeze_from_report(model, renamed)
    note(model)
    return replace(renamed, frozen_parameters=sum(p.numel() for p in parameters.values() if not p.requires_grad))
