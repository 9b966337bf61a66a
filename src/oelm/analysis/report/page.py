"""One self-contained page about a folder of runs: `write_report("runs/demo", "runs/demo")`.

The page fetches nothing, follows light and dark mode, and prints. The same content goes to markdown, PDF and CSV.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

import oelm
from oelm.analysis.compare.arms import Arm, flatten
from oelm.analysis.compare.results import Loaded, require_finished
from oelm.analysis.figures.plots import Picture, pictures, print_language
from oelm.analysis.figures.style import GRID, PAPER, page_style
from oelm.analysis.report.rendering import FOLD, Table
from oelm.analysis.report.tables import all_tables, notes
from oelm.analysis.report.texts import MOST_LISTED, texts
from oelm.analysis.report.words import paragraph
from oelm.errors import unknown
from oelm.files import write_atomically

FORMATS = ("html", "md", "pdf", "csv", "svg", "png")
Samples = Mapping[str, "str | Mapping[str, str]"]


def write_report(
    runs_root: str | Path | Iterable[str | Path],
    out: str | Path,
    lang: str = "en",
    formats: Sequence[str] = ("html", "md"),
    title: str | None = None,
    samples: Samples | None = None,
    csv_dir: str | Path | None = None,
) -> list[Path]:
    """Write the report on all runs below `runs_root`; return the files.

    `out` is a folder, or a file whose name the other formats share. Figures of the markdown go to `figures/` beside it,
    tables to `csv/` (or `csv_dir`). `samples` are texts by method; else `samples.json` beside the runs is used.
    """
    for name in formats:
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
    content = Content(require_finished(runs_root), lang, title, samples)
    out = Path(out)
    whole = out.suffix in (".html", ".md", ".pdf")
    folder, stem = (out.parent, out.stem) if whole else (out, "report" if lang == "en" else f"report.{lang}")
    folder.mkdir(parents=True, exist_ok=True)
    # Another report in the same folder keeps its figures and tables.
    name = stem.removesuffix(f".{lang}")
    prefix = "" if name == "report" else f"{name}-"
    content.figures = f"{prefix}figures"
    written: list[Path] = []
    if "html" in formats:
        written.append(_write(folder / f"{stem}.html", content.render("report.html.j2")))
    if "md" in formats:
        written.append(_write(folder / f"{stem}.md", content.render("report.md.j2")))
    if "pdf" in formats:
        written.append(_write_pdf(content.for_print(), folder / f"{stem}.pdf"))
    if "md" in formats or "svg" in formats:
        written += _save(content.pictures, folder / content.figures, f"{content.suffix}.svg")
    if "png" in formats:
        printed = content.for_print()
        written += _save(printed.pictures, folder / content.figures, f"{printed.suffix}.png")
    if "csv" in formats or csv_dir:
        written += _write_csv(content.tables, Path(csv_dir or folder / f"{prefix}csv"))
    return written


class Content:
    """Everything the report says, before it has a format."""

    def __init__(self, loaded: Loaded, lang: str, title: str | None = None, samples: Samples | None = None) -> None:
        self.loaded, self.lang, self.texts = loaded, lang, texts(lang)
        self.given_title, self.given_samples = title, samples
        datasets = list(dict.fromkeys(comparison.dataset for comparison in loaded.comparisons))
        self.title = title or self.texts("title", datasets=self.texts.listing(datasets))
        self.tables = all_tables(loaded, lang)
        self.caveats = [self.texts.note(note) for note in notes(loaded)]
        self.suffix = "" if lang == "en" else f".{lang}"
        self.figures = "figures"

    @cached_property
    def pictures(self) -> list[Picture]:
        return pictures(self.loaded, self.lang)

    def for_print(self) -> "Content":
        """The same, drawn afresh, in a language that can be drawn here; says so if that is not the one asked for."""
        lang = print_language(self.lang)
        content = Content(self.loaded, lang, self.given_title, self.given_samples)
        if lang != self.lang:
            content.caveats.append(content.texts("english_in_print"))
        return content

    def render(self, template: str) -> str:
        environment = Environment(
            loader=PackageLoader("oelm.analysis.report"),
            autoescape=".html" in template,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters["fence"] = _fence
        return environment.get_template(template).render(
            t=self.texts,
            report=self,
            tables={table.name: table for table in self.tables},
            place=self._place_of,
            version=oelm.__version__,
        )

    @property
    def summary(self) -> list[str]:
        """A paragraph per comparison, and that frozen was frozen if it was so in every run."""
        records = iter(self.tables[0].records)
        said = [
            paragraph(comparison, [next(records) for _ in comparison.arms], self.texts)
            for comparison in self.loaded.comparisons
        ]
        freezing = [run.result for run in self.loaded.finished if run.result and run.result.get("frozen_parameters")]
        proven = freezing and all(result.get("frozen_verified") is True for result in freezing)
        return [*said, self.texts("sum_frozen")] if proven else said

    @property
    def methods(self) -> dict[str, str]:
        names = dict.fromkeys(arm.method for arm in self.loaded.arms)
        return {name: text for name in names if (text := self.texts.method(name))}

    @property
    def samples(self) -> dict[str, dict[str, str]]:
        given = self.loaded.samples if self.given_samples is None else self.given_samples
        return {method: _sample(sample) for method, sample in given.items()}

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
                names = self.texts.listing([arm.label for arm in arms])
                if len(arms) > MOST_LISTED:
                    names = self.texts("many_arms", count=len(arms))
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
        return ": {dataset}, {model}".format_map(table.records[0]) if len(alike) > 1 else ""


# Writing


def _write(path: Path, text: str) -> Path:
    write_atomically(path, text)
    return path


def _save(drawn: list[Picture], folder: Path, suffix: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{picture.name}{suffix}" for picture in drawn]
    for picture, path in zip(drawn, paths, strict=True):
        picture.save(path)
    return paths


def _write_csv(tables: list[Table], folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    names = [table.name for table in tables]
    paths = []
    for i, table in enumerate(tables):
        number = f"-{1 + names[:i].count(table.name)}" if names.count(table.name) > 1 else ""
        paths.append(_write(folder / f"{table.name}{number}.csv", table.csv()))
    return paths


def _write_pdf(content: Content, path: Path) -> Path:
    """A4 pages: the words, then the tables, then each figure with its caption."""
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    with page_style(), PdfPages(path, metadata={"Title": content.title, "CreationDate": None}) as pdf:
        page = Figure(figsize=(11.7, 8.3), facecolor=PAPER)
        words = [*content.summary, *(f"•  {caveat}" for caveat in content.caveats)]
        page.text(0.06, 0.92, content.title, fontsize=18, fontweight="bold", va="top")
        page.text(
            0.06,
            0.85,
            "\n\n".join("\n".join(content.texts.wrap(line, 135)) for line in words),
            fontsize=10,
            va="top",
            linespacing=1.4,
        )
        pdf.savefig(page)
        for table in content.tables:
            pdf.savefig(_table_page(table))
        for picture in content.pictures:
            picture.add_caption()
            pdf.savefig(picture.figure)
    return path


def _table_page(table: Table) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

    header, rows = table.header(), table.rows(folded=True)
    columns = list(zip(header, *rows, strict=True))
    widths = [2 + max(len(line) for cell in column for line in cell.split(FOLD)) for column in columns]
    inches = [0.3, *(0.14 * max(cell.count(FOLD) + 1 for cell in row) + 0.12 for row in rows)]
    page = Figure(figsize=(11.7, sum(inches) + 1.2), facecolor=PAPER)
    axes = page.add_axes((0.04, 0.3 / page.get_figheight(), 0.92, sum(inches) / page.get_figheight()))
    axes.axis("off")
    shares = [width / sum(widths) for width in widths]
    drawn = axes.table(rows, colLabels=header, colWidths=shares, bbox=Bbox.unit(), edges="horizontal")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(8 if sum(widths) < 150 else 7)
    for (i, j), cell in drawn.get_celld().items():
        cell.set_height(inches[i])
        cell.get_text().set_horizontalalignment("right" if table.columns[j].right else "left")
        cell.set_edgecolor(GRID)
    page.text(0.04, 1 - 0.5 / page.get_figheight(), table.title, fontsize=13, fontweight="bold")
    return page


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
