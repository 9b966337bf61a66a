"""Every committed report, figure and picture, anew from the committed records: `make reports`.

A test fails when what is committed is not what this would draw (tests/analysis/test_redrawn.py).
"""

from pathlib import Path

from oelm.analysis.compare.results import load_runs
from oelm.analysis.figures.plots import Picture, pictures
from oelm.analysis.report.page import write_report
from oelm.analysis.report.texts import LANGUAGES

RESULTS = Path(__file__).parent
FINAL = ("methods-confirm", "methods-layers", "methods-wikitext", "methods-large", "methods-fresh")
KNOWN = {
    "mini": ["mini"],
    "methods/report-screen": ["methods/methods-screen"],
    "methods/report-final": [f"methods/{name}" for name in FINAL],
    "encoders-minilm/report-screen": ["encoders-minilm/screen", "encoders-minilm/encoders-screen-*"],
    "encoders-minilm/report-final": [f"encoders-minilm/{name}" for name in ("final", "encoders-sst2", "encoders-xnli")],
    "transfer/report": ["transfer/transfer-*"],
    "architectures/report": ["architectures/architectures-*"],
    "contest/report": ["contest/contest-rates", "contest/contest-others"],
    "contest/report-fresh": ["contest/contest-fresh", "contest/contest-lengths"],
}
"""Where a report lies, and the runs it is about."""
FOUND = {out: [f for pattern in patterns for f in sorted(RESULTS.glob(pattern))] for out, patterns in KNOWN.items()}
REPORTS = {out: folders for out, folders in FOUND.items() if folders}
PICTURES = {"docs/mini-gaps.png": (["mini/controls-tinystories", "mini/GPT-03"], "gaps")}
"""The README's pictures: the runs, and the name of the figure."""


def picture(file: str) -> Picture:
    folders, name = PICTURES[file]
    return next(found for found in pictures(load_runs(RESULTS / folder for folder in folders)) if found.name == name)


def main() -> None:
    for out, folders in REPORTS.items():
        for file in (RESULTS / out / "figures").glob("*.svg"):
            file.unlink()  # a figure that is no longer drawn would stay
        for lang in LANGUAGES:
            written = write_report(folders, RESULTS / out, lang=lang)
            print(f"{out} ({lang}): {len(written)} files")
    for file in PICTURES:
        picture(file).save(RESULTS.parent / file)
        print(file)


if __name__ == "__main__":
    main()
