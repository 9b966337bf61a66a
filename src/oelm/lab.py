"""The lab from Python; the command line is thin over it.

result = oelm.train({"method": "oelm_freeze", "data": {"path": "fables"}, "training": {"max_steps": 300}})
rows = oelm.load_runs("runs")          # pandas.DataFrame(rows), polars.DataFrame(rows)
arms = oelm.compare("runs")
oelm.write_report("runs", "report")
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oelm.errors import OelmError
from oelm.records import named_model
from oelm.runs import folder_name
from oelm.training.config import RunConfig

if TYPE_CHECKING:
    from oelm.training.reporting import Progress

Runs = str | Path | Iterable[str | Path | Mapping[str, Any]]  # a folder, several, or rows of `load_runs`


def train(
    config: RunConfig | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    progress: "Progress | None" = None,
) -> dict[str, Any]:
    """Train what a config says, or go on with it; return its result. The folder is `out`, else one below runs/.

    `config` is a mapping, the path of a config.yaml, or a RunConfig. `data.path` may be the name of prepared data.
    """
    if isinstance(config, str | Path):
        config = RunConfig.load(config)
    elif not isinstance(config, RunConfig):
        config = RunConfig.parse(with_positions(dict(config)))
    config.data.path = str(data_folder(config.data.path))
    from oelm.training.trainer import train as run_training

    return run_training(config, out or run_folder(config), progress)


def load_runs(folder: Runs) -> list[dict[str, Any]]:
    """One flat row per run at or below a folder, finished or not. All rows have the same keys; None where one has none.

    Settings are named as in a config (`training.max_lr`), outcomes as in a result (`final.perplexity`).
    """
    from oelm.analysis.compare.arms import flatten
    from oelm.analysis.compare.results import load_runs as load

    places = _paths(folder)
    if missing := [str(place) for place in places if not Path(place).exists()]:
        raise OelmError(f"{missing[0]} does not exist; give folders made by 'oelm train' or 'oelm demo'")
    rows = []
    for run in load(places).runs:
        facts = {"run": str(run.folder.path), "method": run.method.name, "seed": run.seed, "state": run.state}
        settings = {key: value for key, value in run.config.items() if key not in facts}
        outcome = {key: value for key, value in (run.result or {}).items() if key not in facts}
        flat = flatten({**settings, **outcome})
        cells = {key: ", ".join(map(str, v)) if isinstance(v, list) else v for key, v in flat.items()}
        rows.append({**facts, "step": run.step, **cells})
    keys = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key) for key in keys} for row in rows]


def compare(runs: Runs) -> list[dict[str, Any]]:
    """One record per arm: its score over seeds, the gap to its baseline with an interval, costs, step time."""
    from oelm.analysis.compare.results import require_finished
    from oelm.analysis.report.tables import summary_table

    return summary_table(require_finished(_paths(runs))).facts()


def write_report(runs: Runs, out: str | Path, **options: Any) -> list[Path]:
    """Write the report on these runs into the folder `out`, as html and markdown; return the files.

    Options: `lang` ("en", "zh"), `formats` ("html", "md", "csv", "svg", "png"), `title`.
    """
    from oelm.analysis.report.page import write_report as write

    return write(_paths(runs), out, **options)


def with_positions(values: dict[str, Any]) -> dict[str, Any]:
    """A new GPT has rotary positions unless told otherwise; the config of a run that was made stays as it is."""
    model, data = values.get("model") or {}, values.get("data") or {}
    overrides = model.get("overrides") or {} if isinstance(model, dict) else None
    made = isinstance(data, dict) and data.get("fingerprint")
    if made or not isinstance(overrides, dict) or named_model(model).get("name"):
        return values
    return {**values, "model": {**model, "overrides": {"positions": "rotary", **overrides}}}


def data_folder(name: str, note: Callable[[str], None] = lambda remark: None) -> Path:
    """Prepared data by folder or name; the embedded corpus is prepared when it is first asked for."""
    from oelm.data import tokens
    from oelm.data.labelled import MANIFEST

    for folder in (Path(name), tokens.data_directory() / name):
        if (folder / MANIFEST).is_file():
            return folder
    if name == "fables" and not any(path.name.startswith("fables") for path in tokens.prepared()):
        from oelm.data.prepare import prepare

        require_alone("oelm data prepare fables", "the same command as now")
        note("preparing the embedded corpus 'fables' (once)")
        return prepare("fables", tokenizer_spec="bpe:1024").path
    return tokens.find(name)


def run_folder(config: RunConfig, *, of_all: bool = False) -> Path:
    """Where a run goes; `of_all` methods and seeds, the folder above their runs."""
    named = Path(config.model.name or config.model.size)
    model = named.parent.name if named.name == "config.json" else named.name
    own = [] if of_all else [config.method_name, str(config.seed)]
    return Path("runs") / folder_name("-".join([Path(config.data.path).name, model, *own]))


def require_alone(command: str, then: str) -> None:
    """Data is prepared by one process; those that torchrun starts would get into each other's way."""
    from oelm.training.distributed import started

    if started():
        raise OelmError(f"prepare the data before torchrun starts processes: run '{command}', then {then}")


def _paths(runs: Runs) -> list[str | Path]:
    given = [runs] if isinstance(runs, str | Path) else list(runs)
    return [str(one["run"]) if isinstance(one, Mapping) else one for one in given]
