"""When the weights of a method train: a pure function of the step, so that a resumed run does what it would have done.

`Schedule.of(report, max_steps)` knows for every site whether it trains at a step; `advance` carries a model from one
step's state to another's and keeps the freeze report true: what has thawed is no longer promised, what froze again is.
"""

from dataclasses import dataclass, replace

from torch import nn

from oelm.errors import OelmError
from oelm.freezing.apply import site_tensors, tensor_hash
from oelm.freezing.report import FreezeReport, SiteReport
from oelm.freezing.sites import place
from oelm.freezing.spec import Method

USUAL_STEPS = 100_000  # of a run whose length is not known, as in `oelm train`
USUAL_WARMUP = 100  # steps of a thawed weight's warm-up, or a tenth of a shorter run

Place = tuple[str, int]  # a layer: its stack (an encoder, a decoder), and its number there


@dataclass(frozen=True)
class Schedule:
    """Steps count from 1. Layers without an entry in `thaw_steps` stay as they are."""

    thaw_steps: dict[Place, int]
    refreeze_step: int | None
    moves: bool  # whether anything changes during the run at all
    warmup: int = 0  # steps in which the learning rate of a thawed weight rises

    @classmethod
    def of(cls, report: FreezeReport, max_steps: int) -> "Schedule":
        stacks: dict[str, set[int]] = {}
        for stack, layer in (_place(site) for site in report.sites if site.thaws):
            stacks.setdefault(stack, set()).add(layer)
        thaw_steps: dict[Place, int] = {}
        refreeze = None
        for stack, layers in stacks.items():
            where = f" in {stack}" if len(stacks) > 1 else ""
            steps, refreeze = _thaw_steps(report.method, sorted(layers), max_steps, where)
            thaw_steps |= {(stack, layer): step for layer, step in steps.items()}
        moves = bool(thaw_steps) or any(site.every > 1 for site in report.sites)
        return cls(thaw_steps, refreeze, moves, _warmup(report.method, thaw_steps, refreeze, max_steps))

    @property
    def states(self) -> int:
        """In how many ways weights train and rest together, at most: each is compiled for itself."""
        flips = len(set(self.thaw_steps.values())) + (self.refreeze_step is not None)
        return 2 * (1 + flips)  # some may also pause

    def trains(self, site: SiteReport, step: int) -> bool:
        """Whether the site's own weights get a gradient at this step."""
        if site.projection != "dense":
            return False
        if site.thaws:
            end = self.refreeze_step
            return self.thaw_steps[_place(site)] <= step and (end is None or step < end)
        return not site.frozen and (step - 1) % site.every == 0

    def share(self, site: SiteReport, max_steps: int) -> float:
        """The share of all steps at which the site trains."""
        if not site.thaws:
            return -(-max_steps // site.every) / max_steps if self.trains(site, 1) else 0.0
        end = max_steps + 1 if self.refreeze_step is None else self.refreeze_step
        return (end - self.thaw_steps[_place(site)]) / max_steps


def _place(site: SiteReport) -> Place:
    return place(site.path)[0], site.layer


def advance(model: nn.Module, report: FreezeReport, schedule: Schedule, step: int) -> FreezeReport:
    """Bring the model to what trains at `step`; the report comes back new if a promise changed, else as it is."""
    sites = tuple(_advance_site(model, site, schedule, step) for site in report.sites)
    if all(new is old for new, old in zip(sites, report.sites, strict=True)):
        return report
    pausing = {name for site in report.sites if site.every > 1 for name, _ in site_tensors(model, site)}
    frozen = sum(p.numel() for n, p in model.named_parameters() if not p.requires_grad and n not in pausing)
    return replace(report, sites=sites, frozen_parameters=frozen)


def _advance_site(model: nn.Module, site: SiteReport, schedule: Schedule, step: int) -> SiteReport:
    if not site.thaws and site.every == 1:
        return site
    trains = schedule.trains(site, step)
    tensors = [(name, t) for name, t in site_tensors(model, site) if isinstance(t, nn.Parameter)]
    for _, tensor in tensors:
        tensor.requires_grad_(trains)
        if not trains:
            tensor.grad = None
    if not site.thaws or trains == (not site.frozen):
        return site
    hashes = {} if trains else {name: tensor_hash(tensor) for name, tensor in tensors}
    return replace(site, frozen=not trains, hashes=hashes, orthonormality_error=None)


@dataclass(frozen=True)
class Rates:
    """The learning rate of every weight, as a multiple of everybody's."""

    factors: dict[str, float]  # by parameter name; 1 for what is not here
    thawed: dict[str, int]  # the step at which a weight began to train, for those that thaw
    warmup: int
    pausing: frozenset[str] = frozenset()  # train only every few steps; the optimizer holds them all the time

    @classmethod
    def of(cls, model: nn.Module, report: FreezeReport, schedule: Schedule) -> "Rates":
        method, factors, thawed, pausing = report.method, {}, {}, set()
        if method.layer_lr != 1.0:
            factors = _layer_factors(model, method.layer_lr)
        for site in report.sites:
            for name, _ in site_tensors(model, site):
                factor = site.lr * factors.get(name, 1.0)
                if factor != 1.0:
                    factors[name] = factor
                if site.thaws:
                    thawed[name] = schedule.thaw_steps[_place(site)]
                if site.every > 1:
                    pausing.add(name)
        return cls(factors, thawed, schedule.warmup, frozenset(pausing))

    def key(self, name: str) -> tuple[float, int]:
        """Weights of one key share a learning rate at every step: (factor, step of thawing or 0)."""
        return self.factors.get(name, 1.0), self.thawed.get(name, 0)

    def at(self, key: tuple[float, int], step: int) -> float:
        """The factor at a step: a thawed weight's rate rises over `warmup` steps."""
        factor, since = key
        if since and self.warmup:
            factor *= min(1.0, (step - since + 1) / self.warmup)
        return factor


def trained_shares(report: FreezeReport, max_steps: int = USUAL_STEPS) -> dict[str, float]:
    """The share of all steps at which a site's own weights get a gradient, by its path."""
    schedule = Schedule.of(report, max_steps)
    return {site.path: schedule.share(site, max_steps) for site in report.sites if site.thaws or site.every > 1}


def picture(report: FreezeReport, max_steps: int = USUAL_STEPS, columns: int = 40) -> list[tuple[str, str]]:
    """What trains when, one line per layer and role: ("layer 0 query", "····████"), for people."""
    schedule = Schedule.of(report, max_steps)
    steps = [1 + round(column * (max_steps - 1) / (columns - 1)) for column in range(columns)]
    rows: dict[str, dict[str, str]] = {}
    for site, (where, what) in zip(report.sites, report.labels, strict=True):
        if site.projection != "dense":
            line = "○" * columns
        elif site.every > 1:
            line = "▒" * columns
        else:
            line = "".join("█" if schedule.trains(site, step) else "·" for step in steps)
        rows.setdefault(f"{where} {what}", {})[site.path.rpartition(f".{site.layer}.")[2]] = line
    shown: list[tuple[str, str]] = []
    for label, lines in rows.items():  # one line for all matrices of a kind, unless they differ
        if len(set(lines.values())) == 1:
            shown.append((label, next(iter(lines.values()))))
        else:
            shown += [(f"{label} {matrix}", line) for matrix, line in lines.items()]
    return shown


LEGEND = "█ trains   ▒ trains every few steps   · frozen   ○ no weights"


def _thaw_steps(method: Method, layers: list[int], max_steps: int, where: str) -> tuple[dict[int, int], int | None]:
    thaw = method.thaw
    if thaw is None:
        return {}, None
    for time in thaw.at:
        if (at := _step(time, max_steps)) > max_steps:
            raise OelmError(
                f"method {method.name!r} thaws a layer at step {at}, after the last step {max_steps}; thaw earlier"
            )
    count, times = len(layers), list(thaw.at)
    if len(times) == 1:
        times *= count
    elif len(times) == 2:
        first, last = (_step(t, max_steps) for t in times)
        times = [first + (last - first) * i / max(1, count - 1) for i in range(count)]
    elif len(times) != count:
        raise OelmError(
            f"method {method.name!r} gives {len(times)} thaw times for {count} frozen layers{where}; "
            + ("one or two fit stacks of any depth" if where else f"give one, two or {count}")
        )
    steps = [t if len(thaw.at) == 2 else _step(t, max_steps) for t in times]
    if steps != sorted(steps):
        raise OelmError(
            f"method {method.name!r} thaws at steps {', '.join(f'{step:g}' for step in steps)} of {max_steps}, "
            "which do not rise; give fractions or steps, not both"
        )
    refreeze = None if thaw.refreeze is None else _step(thaw.refreeze, max_steps)
    end = max_steps + 1 if refreeze is None else refreeze
    for step in steps:
        if round(step) >= end:
            limit = f"the last step {max_steps}" if refreeze is None else f"it freezes again at step {refreeze}"
            raise OelmError(f"method {method.name!r} thaws a layer at step {round(step)}, after {limit}; thaw earlier")
    if refreeze is not None and refreeze > max_steps:
        raise OelmError(f"method {method.name!r} freezes again at step {refreeze}, after the last step {max_steps}")
    order = layers[::-1] if thaw.order == "top-down" else layers
    return {layer: round(step) for layer, step in zip(order, steps, strict=True)}, refreeze


def _warmup(method: Method, thaw_steps: dict[Place, int], refreeze: int | None, max_steps: int) -> int:
    if method.thaw is None or not thaw_steps:
        return 0
    if method.thaw.warmup is None:
        return min(USUAL_WARMUP, max_steps // 10)
    longest = (max_steps + 1 if refreeze is None else refreeze) - min(thaw_steps.values())
    if method.thaw.warmup > longest:
        raise OelmError(
            f"method {method.name!r} warms up for {method.thaw.warmup} steps, but what it thaws trains for {longest} "
            "at most; warm up for fewer steps, or thaw earlier"
        )
    return method.thaw.warmup


def _step(time: float, max_steps: int) -> int:
    """A time up to 1 is a fraction of the run, above it a step."""
    return 1 + round(time * max_steps) if time <= 1 else int(time)


def _layer_factors(model: nn.Module, decay: float) -> dict[str, float]:
    """The decay once for every layer above in the same stack; embeddings are below all layers, the rest is on top.

    What a model calls embeddings counts as such (BERT's hold a norm, ViT's a convolution), and every table of vectors.
    """
    parameters = dict(model.named_parameters())
    places = {name: place(name) for name in parameters}
    depths: dict[str, int] = {}
    for stack, layer in places.values():
        if layer is not None:
            depths[stack] = max(depths.get(stack, 0), layer + 1)
    tables = {id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    embeddings = [name for name, p in parameters.items() if "embed" in name or id(p) in tables]
    return {
        **dict.fromkeys(embeddings, decay ** max(depths.values(), default=1)),
        **{name: decay ** (depths[stack] - 1 - n) for name, (stack, n) in places.items() if n is not None},
    }
