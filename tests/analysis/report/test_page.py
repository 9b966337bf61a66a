"""The report: self-contained, complete, in two languages, and made without torch."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from factory import make_run, make_suite
from oelm.analysis.report.page import write_report
from oelm.errors import OelmError

VOID = {"meta", "br", "img", "path", "use", "rect", "link"}


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
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
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
    assert page.count("<svg") == 4


def test_the_page_has_every_part(page):
    headings = outline(page).headings
    for heading in (
        "What freezing costs: fables", "Summary", "Figures", "Gaps to the baseline", "Parameters and memory", "Time",
        "Arms at equal steps", "The methods", "What the models write", "Runs", "Skipped", "Environment", "Settings",
    ):  # fmt: skip
        assert heading in headings


def test_the_summary_is_computed_from_the_runs(page):
    lead = re.findall(r'<p class="lead">(.*?)</p>', page, re.S)[0]
    assert "Trained on fables (demo): baseline, oelm_freeze, oelm_random." in lead
    assert "oelm_random is 18.6 % worse (95 % interval +15.1 to +22.3), goal missed" in lead
    assert "The text itself has a perplexity of 2.773" in lead
    assert "oelm_freeze 0.957 (faster)" in lead


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
    make_run(tmp_path / "runs", {"name": "<script>alert(1)</script>"}, name="odd")
    hostile = {"baseline": "</div><script>alert(2)</script>"}
    (path,) = write_report(tmp_path / "runs", tmp_path, formats=("html",), title="<i>mine</i>", samples=hostile)
    text = path.read_text()
    assert "<script" not in text
    assert "<i>" not in text
    assert "&lt;script&gt;alert(2)&lt;/script&gt;" in text


def test_samples_beside_the_runs_are_shown_with_their_prompt(page):
    assert '<span class="prompt">One day</span> a little &lt;fox&gt; &amp; oelm_freeze went out.' in page


def test_a_sample_that_repeats_its_prompt_shows_it_once(single, tmp_path):
    samples = {"baseline": {"prompt": "Once", "text": "Once upon a time"}}
    (path,) = write_report(single, tmp_path, formats=("html",), samples=samples)
    assert '<span class="prompt">Once</span> upon a time' in path.read_text()


def test_chinese_report_has_chinese_headings_and_figures(suite, tmp_path):
    (path,) = write_report(suite, tmp_path, lang="zh", formats=("html",))
    text = path.read_text()
    assert path.name == "report.zh.html"
    assert 'lang="zh-CN"' in text
    for heading in ("冻结的代价：fables", "结果总览", "图", "参数与内存", "模型生成的文本", "运行列表", "完整配置"):
        assert heading in outline(text).headings
    assert "训练步数" in text
    assert "未达标" in text
    leftovers = re.findall(r"<h[123]>([ -~]+)</h[123]>", text)
    assert set(leftovers) <= {"baseline", "oelm_freeze", "oelm_random"}


def test_markdown_links_the_figures_written_beside_it(suite, tmp_path):
    written = write_report(suite, tmp_path, formats=("md",))
    text = (tmp_path / "report.md").read_text()
    linked = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert len(linked) == 4
    assert {tmp_path / link for link in linked} == set(written) - {tmp_path / "report.md"}
    assert "| oelm_freeze | 2 |" in text


def test_every_table_is_exported_as_csv(suite, tmp_path):
    written = write_report(suite, tmp_path, formats=(), csv_dir=tmp_path / "numbers")
    names = {path.name for path in written}
    assert names == {f"{name}.csv" for name in ("summary", "gaps", "memory", "time", "steps", "runs", "skipped")}


def test_pdf_is_written_in_a_language_that_can_be_drawn(single, tmp_path):
    (path,) = write_report(single, tmp_path, lang="zh", formats=("pdf",))
    assert path.read_bytes().startswith(b"%PDF")


def test_out_may_name_the_file(single, tmp_path):
    (path,) = write_report(single, tmp_path / "deep" / "mine.html", formats=("html",))
    assert path == tmp_path / "deep" / "mine.html"


def test_a_folder_without_finished_runs_or_an_unknown_format_is_refused(single, tmp_path):
    with pytest.raises(OelmError, match="no finished run to show"):
        write_report(tmp_path / "nothing", tmp_path)
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
