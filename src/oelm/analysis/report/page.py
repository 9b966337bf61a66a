"""One self-contained page about a folder of runs: `write_report("runs/demo", "runs/demo")`.

Page one decides: the verdict in at most five lines, one figure, one table; the rest folds away below. The page fetches
nothing, follows light and dark mode, and prints. The same content goes to markdown and CSV.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from oelm.analysis.compare.arms import Arm, flatten
from oelm.analysis.compare.results import Loaded, require_finished
from oelm.analysis.figures.plots import Picture, pictures, print_language
from oelm.analysis.report.rendering import FOLD, Table, escape_markdown
from oelm.analysis.report.tables import all_tables
from oelm.analysis.report.texts import MOST_LISTED, texts
from oelm.analysis.report.words import notes, verdict_lines
from oelm.errors import OelmError, unknown
from oelm.files import write_atomically

FORMATS = ("html", "md", "csv", "svg", "png")


def write_report(
    runs_root: str | Path | Iterable[str | Path],
    out: str | Path,
    lang: str = "en",
    formats: Sequence[str] = ("html", "md"),
    title: str | None = None,
    csv_dir: str | Path | None = None,
) -> list[Path]:
    """Write the report on all runs below `runs_root`; return the files.

    `out` is a folder, or a file whose name the other formats share. Figures of the markdown go to `figures/` beside it,
    tables to `csv/` (or `csv_dir`).
    """
    for name in formats:
        if name == "pdf":
            raise OelmError("a report is no longer written as pdf; write html and print that page")
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
    content = Content(require_finished(runs_root), lang, title)
    out = Path(out)
    whole = out.suffix in (".html", ".md")
    folder, stem = (out.parent, out.stem) if whole else (out, "report" if lang == "en" else f"report.{lang}")
    folder.mkdir(parents=True, exist_ok=True)
    # Another report in the same folder keeps its figures and tables.
    name = stem.removesuffix(f".{lang}")
    prefix = "" if name == "report" else f"{name}-"
    content.figures = f"{prefix}figures"
    files: dict[Path, str | bytes] = {}
    if "html" in formats:
        files[folder / f"{stem}.html"] = content.html()
    if "md" in formats:
        files[folder / f"{stem}.md"] = content.render("report.md.j2")
    if "md" in formats or "svg" in formats:
        files |= {folder / content.figures / f"{p.name}{content.suffix}.svg": p.svg() for p in content.pictures}
    if "png" in formats:
        drawable = print_language(lang)
        drawn = content.pictures if drawable == lang else pictures(content.loaded, drawable)
        suffix = ".png" if drawable == "en" else f".{drawable}.png"
        files |= {folder / content.figures / f"{picture.name}{suffix}": picture.png() for picture in drawn}
    if "csv" in formats or csv_dir:
        place = Path(csv_dir or folder / f"{prefix}csv")
        files |= {place / f"{name}.csv": table.csv() for name, table in _by_name(content.tables).items()}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    return list(files)


class Content:
    """Everything the report says, before it has a format."""

    def __init__(self, loaded: Loaded, lang: str, title: str | None = None) -> None:
        self.loaded, self.lang, self.texts = loaded, lang, texts(lang)
        datasets = list(dict.fromkeys(comparison.dataset for comparison in loaded.comparisons))
        self.title = title or self.texts("title", datasets=self.texts.listing(datasets))
        self.verdict = verdict_lines(loaded, self.texts)
        self.tables = all_tables(loaded, lang)
        methods = {arm.method: self.texts.method(arm.method) for arm in loaded.arms}
        self.methods = {name: text for name, text in methods.items() if text}
        self.samples = {method: _sample(sample) for method, sample in loaded.samples.items()}
        self.caveats = [self.texts.note(note) for note in notes(loaded)]
        self.suffix = "" if lang == "en" else f".{lang}"
        self.figures = "figures"

    @cached_property
    def pictures(self) -> list[Picture]:
        return pictures(self.loaded, self.lang)

    def html(self) -> str:
        """The page; its digest tells what it says and shows, so that a stale one is found without drawing it."""
        drawn = {picture.name: picture for picture in self.pictures}
        page = self._page.replace("<!--digest-->", f'<meta name="oelm-digest" content="{self.digest()}">', 1)
        return re.sub(r"<!--figure ([\w-]+) [0-9a-f]+-->", lambda found: drawn[found[1]].svg(inline=True), page)

    def digest(self) -> str:
        return hashlib.sha256(self._page.encode()).hexdigest()[:16]

    @cached_property
    def _page(self) -> str:
        return self.render("report.html.j2")

    def render(self, template: str) -> str:
        """Figures of a page are left as marks with their digests."""
        how: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
        environment = Environment(loader=PackageLoader("oelm.analysis.report"), autoescape=".html" in template, **how)
        environment.filters |= {"fence": _fence, "md": escape_markdown, "pieces": lambda cell: cell.split(FOLD)}
        environment.filters["breakable"] = lambda text: escape(text).replace("+", Markup("+<wbr>"))
        return environment.get_template(template).render(
            t=self.texts, report=self, tables={table.name: table for table in self.tables}, place=self._place_of
        )

    @property
    def configs(self) -> dict[str, str]:
        """The complete settings, once for all arms of a comparison that share all but method and seeds."""
        found = {}
        for comparison in self.loaded.comparisons:
            alike: dict[str, list[Arm]] = {}
            for arm in comparison.arms:
                config = {key: value for key, value in arm.runs[0].config.items() if key not in ("method", "seed")}
                if not isinstance(arm.runs[0].config.get("method"), str):  # one of the user's own, which no name tells
                    config = {"method": arm.runs[0].config.get("method"), **config}
                alike.setdefault(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), []).append(arm)
            for text, arms in alike.items():
                numbers = sorted({run.seed for arm in arms for run in arm.runs})
                seeds = self.texts("seeds_of", seeds=self.texts.listing([str(number) for number in numbers]))
                labels, many = self.texts.listing([arm.label for arm in arms]), len(arms) > MOST_LISTED
                names = self.texts("many_arms", count=len(arms)) if many else labels
                found[f"{comparison.dataset}, {comparison.model}, {seeds}: {names}"] = text
        return found

    @property
    def environments(self) -> list[dict[str, str]]:
        found = {json.dumps(run.environment, sort_keys=True): run.environment for run in self.loaded.finished}
        flat = [flatten(environment) for environment in found.values() if environment]
        return [{key: str(value) for key, value in environment.items()} for environment in flat]

    def _place_of(self, table: Table) -> str:
        """Which comparison a table is about, where each has its own."""
        alike = [other for other in self.tables if other.name == table.name]
        return f": {table.section(table.records[0])}" if len(alike) > 1 and table.section else ""


def _by_name(tables: list[Table]) -> dict[str, Table]:
    """Gaps, memory and time are fields of the summary's records, so there is one file for all of them."""
    tables = [table for table in tables if table.name not in ("gaps", "memory", "time")]
    names = [table.name for table in tables]
    numbered = [f"{n}-{1 + names[:i].count(n)}" if names.count(n) > 1 else n for i, n in enumerate(names)]
    return dict(zip(numbered, tables, strict=True))


def _sample(sample: str | Mapping[str, str]) -> dict[str, str]:
    """A text and what it was asked to go on from; generators may or may not repeat that in the text."""
    if not isinstance(sample, Mapping):
        return {"prompt": "", "text": str(sample)}
    prompt, text = str(sample.get("prompt", "")), str(sample.get("text", ""))
    return {"prompt": prompt, "text": text.removeprefix(prompt)}


def _fence(text: str) -> str:
    """A markdown code block that its content cannot end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    bars = "`" * max(3, longest + 1)
    return f"{bars}\n{text.rstrip()}\n{bars}"
