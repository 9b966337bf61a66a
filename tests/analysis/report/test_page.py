"""The report: self-contained, complete, in two languages, and made without torch."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from factory import make_run, make_suite
from oelm.analysis.compare.results import require_finished
from oelm.analysis.report.page import Content, write_report
from oelm.errors import OelmError
from oelm.files import write_json

VOID = {"meta", "br", "wbr", "img", "path", "use", "rect", "link"}


class Outline(HTMLParser):
    """Headings, and whether every element is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.headings, self.tags = [], [], set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "summary"):
            self.headings.append(data.strip())


def outline(text):
    parser = Outline()
    parser.feed(text)
    assert parser.open == []
    return parser


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    root = make_suite(tmp_path_factory.mktemp("suite") / "demo", ("baseline", "oelm_freeze", "oelm_random"), (0, 1))
    make_run(root, "k_only", 0, finished=False)
    (make_run(root, "q_only", 0).result_file).write_text("{")
    return root


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """One run: the least there can be a report about."""
    return make_suite(tmp_path_factory.mktemp("single"), ("baseline",), (0,))


@pytest.fixture(scope="module")
def page(suite, tmp_path_factory):
    (path,) = write_report(suite, tmp_path_factory.mktemp("out"), formats=("html",))
    return path.read_text()


def test_the_page_is_self_contained(page):
    assert not re.findall(r"https?://", page)
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", page)
    assert "@import" not in page
    assert not outline(page).tags & {"script", "link", "img", "iframe"}
    assert page.count("<svg") == 3


def test_page_one_has_five_lines_one_figure_and_one_table_and_the_rest_is_folded(page):
    first = page[page.index("<h1>") : page.index("<details")]
    assert 1 <= first.count("<li>") <= 5
    assert first.count("<svg") == first.count("<table>") == 1
    assert first.count("<th>") + first.count('<th class="right">') == 7
    rest = page[page.index("<details") :]
    assert re.sub(r"<details.*?</details>", "", rest, flags=re.S).strip().startswith("<footer>")


def test_the_page_has_every_part(page):
    headings = outline(page).headings
    for heading in (
        "What freezing costs: fables", "Gaps to the baselines", "Parameters and memory", "Time", "Arms at equal steps",
        "The methods", "What the models write", "Runs", "Skipped", "Environment", "Settings",
    ):  # fmt: skip
        assert heading in headings
    assert "Read with care (2)" in headings


def test_the_verdict_is_computed_from_the_runs(page):
    lines = re.findall(r"<li>(.*?)</li>", page, re.S)
    assert lines[0].startswith("Nearest to the plain baseline: oelm_freeze +")
    assert "More than 5 % worse, by the whole interval: oelm_random." in lines
    assert any(line.startswith("Steps surely faster than the baseline&#39;s: oelm_freeze 0.957") for line in lines)
    assert "perplexity of the text itself 2.773" in page


def test_unfinished_and_unreadable_runs_are_named(page):
    assert "k_only-s0 is not finished (dead at step 500 of 1000)" in page
    assert re.search(r"q_only-s0 was skipped: .*result.json cannot be read", page)


def test_settings_environment_and_floor_are_there(page):
    assert page.count("max_lr: 0.003") == 1  # all arms share them
    assert "seeds 0, 1: baseline, oelm_freeze, oelm_random" in page
    assert "0123456789abcdef" in page
    assert "own entropy: 2.773" in page


def test_dark_mode_and_print_are_styled(page):
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_what_others_wrote_is_escaped(tmp_path):
    make_run(tmp_path / "runs", {"name": "<script>alert(1)"}, name="odd")
    write_json(tmp_path / "runs/samples.json", {"baseline": "</div><script>alert(2)</script>"})
    (path,) = write_report(tmp_path / "runs", tmp_path, formats=("html",), title="<i>mine</i>")
    text = path.read_text()
    assert "<script" not in text
    assert "<i>" not in text
    assert "&lt;script&gt;alert(2)&lt;/script&gt;" in text


def test_samples_beside_the_runs_are_shown_with_their_prompt(page):
    assert '<span class="prompt">One day</span> a little &lt;fox&gt; &amp; oelm_freeze went out.' in page


def test_a_sample_that_repeats_its_prompt_shows_it_once(single, tmp_path):
    write_json(single / "samples.json", {"baseline": {"prompt": "Once", "text": "Once upon a time"}})
    (path,) = write_report(single, tmp_path, formats=("html",))
    assert '<span class="prompt">Once</span> upon a time' in path.read_text()


def test_chinese_report_has_chinese_headings_and_figures(suite, tmp_path):
    (path,) = write_report(suite, tmp_path, lang="zh", formats=("html",))
    text = path.read_text()
    assert path.name == "report.zh.html"
    assert 'lang="zh-CN"' in text
    for heading in ("冻结的代价：fables", "参数与内存", "模型生成的文本", "运行列表", "完整配置"):
        assert heading in outline(text).headings
    assert "训练步数" in text
    assert "未达标" in text
    assert not re.findall(r"<summary>([ -~]+)</summary>", text)


def test_markdown_links_the_figures_written_beside_it(suite, tmp_path):
    written = write_report(suite, tmp_path, formats=("md",))
    text = (tmp_path / "report.md").read_text()
    linked = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert len(linked) == 3
    assert {tmp_path / link for link in linked} == set(written) - {tmp_path / "report.md"}
    assert "\n| oelm_freeze | " in text


def test_markdown_passes_no_html_through(tmp_path):
    make_run(tmp_path / "runs", {"name": "<script>alert(1)"}, name="<img src=x>")
    write_report(tmp_path / "runs", tmp_path, formats=("md",), title="<i>mine</i>")
    text = re.sub(r"(?s)```.*?```", "", (tmp_path / "report.md").read_text())
    assert not re.findall(r"<[a-z/]", text)


def test_every_table_is_exported_as_csv(suite, tmp_path):
    written = write_report(suite, tmp_path, formats=(), csv_dir=tmp_path / "numbers")
    names = {path.name for path in written}
    assert names == {f"{name}.csv" for name in ("summary", "steps", "runs", "skipped")}


@pytest.mark.parametrize("name", ["html", "svg", "png", "csv"])
def test_no_half_written_file_stays_when_the_disk_is_full(single, tmp_path, monkeypatch, name):
    write_report(single, tmp_path, formats=(name,))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_report(single, tmp_path, title="another", formats=(name,))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_page_says_what_it_was_made_of(suite, single, tmp_path):
    (path,) = write_report(suite, tmp_path, formats=("html",))
    said = re.search(r'name="oelm-digest" content="([0-9a-f]+)"', path.read_text())[1]
    assert said == Content(require_finished(suite), "en").digest()
    assert said != Content(require_finished(single), "en").digest()


def test_out_may_name_the_file(single, tmp_path):
    (path,) = write_report(single, tmp_path / "deep" / "mine.html", formats=("html",))
    assert path == tmp_path / "deep" / "mine.html"


def test_a_folder_without_finished_runs_or_an_unknown_format_is_refused(single, tmp_path):
    with pytest.raises(OelmError, match="no finished run to show"):
        write_report(tmp_path / "nothing", tmp_path)
    with pytest.raises(OelmError, match="print that page"):
        write_report(single, tmp_path, formats=("pdf",))
    with pytest.raises(OelmError, match="format 'docx' is unknown"):
        write_report(single, tmp_path, formats=("docx",))


def test_a_report_is_made_without_torch(suite, tmp_path):
    script = (
        "import sys\n"
        "from oelm.analysis.report.page import write_report\n"
        f"write_report({str(suite)!r}, {str(tmp_path)!r}, formats=('html', 'md', 'csv'))\n"
        "print(sorted({'torch', 'transformers', 'pydantic'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
