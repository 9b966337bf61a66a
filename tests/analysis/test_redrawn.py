"""Committed reports, figures and pictures are what today's code makes of the committed records (`make reports`)."""

import importlib.util
import re
from pathlib import Path

import pytest

from oelm.analysis.compare.results import require_finished
from oelm.analysis.report.page import Content
from oelm.analysis.report.texts import LANGUAGES

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("redraw", ROOT / "results" / "redraw.py")
redraw = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(redraw)
STALE = "is not what its records give today: make reports, look, and commit"


@pytest.mark.parametrize("out", redraw.REPORTS)
def test_a_committed_report_is_what_its_records_give(out):
    loaded, folder = require_finished(redraw.REPORTS[out]), redraw.RESULTS / out
    drawn = set()
    for lang in LANGUAGES:
        content, suffix = Content(loaded, lang), "" if lang == "en" else f".{lang}"
        page = (folder / f"report{suffix}.html").read_text("utf-8")
        assert f'name="oelm-digest" content="{content.digest()}"' in page, f"{out}/report{suffix}.html {STALE}"
        text = (folder / f"report{suffix}.md").read_text("utf-8")
        assert text == content.render("report.md.j2"), f"{out}/report{suffix}.md {STALE}"
        for picture in content.pictures:
            file = folder / "figures" / f"{picture.name}{suffix}.svg"
            assert picture.digest in file.read_text("utf-8"), f"{file} {STALE}"
            drawn.add(file)
    assert drawn == set((folder / "figures").iterdir())


def test_the_readmes_pictures_are_among_them_and_drawn_from_the_records():
    shown = re.findall(r"docs/[\w-]+\.png", (ROOT / "README.md").read_text("utf-8"))
    assert set(shown) >= set(redraw.PICTURES)
    for file in redraw.PICTURES:
        assert redraw.picture(file).digest.encode() in (ROOT / file).read_bytes(), f"{file} {STALE}"
