"""What each address answers."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import factory
from dashboard.conftest import client
from oelm.analysis.compare.results import load_runs
from oelm.analysis.report.tables import summary_table
from oelm.analysis.report.texts import texts
from oelm.analysis.report.words import notes, verdict_lines
from oelm.cli.main import app

STATIC = Path(__file__).parents[2] / "src" / "oelm" / "dashboard" / "static"


def ids(page) -> dict[str, str]:
    return {row["name"]: row["id"] for row in page.get("/api/runs").json()["rows"]}


def test_the_page_and_its_files_are_served(page) -> None:
    for path, kind in (("/", "text/html"), ("/static/main.js", "text/javascript"), ("/static/style.css", "text/css")):
        assert page.get(path).headers["content-type"].startswith(kind)
    assert "plotly.js" in page.get("/plotly.min.js").text[:200]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_comparison_says_what_the_report_says(page, suite: Path, lang: str) -> None:
    loaded, t = load_runs(suite), texts(lang)
    [found] = page.get(f"/api/compare?lang={lang}").json()["comparisons"]
    assert found["header"] == summary_table(loaded, lang).header()
    assert found["rows"] == summary_table(loaded, lang).rows(folded=True)
    assert found["lines"][:-1] == verdict_lines(loaded, t)
    assert found["notes"] == [t.note(note) for note in notes(loaded)]


def test_facts_to_draw_are_those_of_the_records(page, suite: Path) -> None:
    [comparison] = load_runs(suite).comparisons
    arms = page.get("/api/compare").json()["comparisons"][0]["arms"]
    for arm, record in zip(arms, comparison.records, strict=True):
        assert (arm["label"], arm["verdict"]) == (record.label, record.verdict)
        assert arm["facts"]["score"]["value"] == pytest.approx(record.score)
        if record.plain:
            interval = record.plain.gap.t
            assert arm["facts"]["gap"] == {"value": record.plain.gap.value, "low": interval.low, "high": interval.high}
        assert arm["facts"]["time"]["value"] == record.time.ratio


def test_scopes_are_folders_or_chosen_runs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        factory.make_suite(tmp_path / name, ("baseline", "oelm_freeze"), (0, 1) if name == "one" else (5, 6))
    page = client(tmp_path)

    def seeds(scope: str) -> set[int]:
        found = page.get("/api/compare", params={"scope": scope}).json()["comparisons"]
        return {len(arm["runs"]) for comparison in found for arm in comparison["arms"]}

    assert seeds("") == {4} and seeds("in:one") == {2} and seeds("in:on") == set()
    run = ids(page)["oelm_freeze-s5"]
    assert seeds(f"runs:{run},nobody") == {1}
    assert page.get("/api/compare?scope=nonsense").status_code == 400


def test_a_line_is_the_mean_of_its_seeds_within_their_range(page) -> None:
    [found] = page.get("/api/compare").json()["comparisons"]
    asked = {"c": found["id"], "y": "validation.perplexity"}
    lines = page.get("/api/curves", params=asked).json()["lines"]
    assert [line["label"] for line in lines] == ["baseline", "oelm_freeze"]
    for line in lines:
        assert len(line["runs"]) == 3 and line["x"] == [float(step) for step in range(100, 1001, 100)]
        assert all(low <= y <= high for low, y, high in zip(line["low"], line["y"], line["high"], strict=True))
    rows = list(csv.reader(io.StringIO(page.get("/api/curves.csv", params=asked).text)))
    assert rows[0][:4] == ["arm", "runs", "step", "validation.perplexity"] and len(rows) == 1 + 2 * 10
    smooth = page.get("/api/curves", params={**asked, "smooth": "0.9"}).json()["lines"][0]
    assert smooth["y"] != lines[0]["y"]


def test_runs_that_are_not_finished_are_drawn_but_not_averaged(suite: Path) -> None:
    factory.make_run(suite, "oelm_freeze", 7, finished=False, state="interrupted", name="=cmd")
    page = client(suite)
    [found] = page.get("/api/compare").json()["comparisons"]
    asked = {"c": found["id"], "y": "train.loss", "x": "tokens"}
    lines = page.get("/api/curves", params=asked).json()["lines"]
    assert [line["label"] for line in lines if line["open"]] == ["=cmd"]
    assert max(len(line["runs"]) for line in lines) == 3
    assert "\n'=cmd," in page.get("/api/curves.csv", params=asked).text  # a spreadsheet shall not compute it


def test_a_run_that_starts_is_in_the_comparison_at_the_next_look(suite: Path) -> None:
    page = client(suite)
    [found] = page.get("/api/compare").json()["comparisons"]
    factory.make_run(suite, "oelm_freeze", 7, finished=False, state="interrupted", name="fresh")
    page.get("/api/runs")
    asked = {"c": found["id"], "y": "train.loss"}
    assert "fresh" in [line["label"] for line in page.get("/api/curves", params=asked).json()["lines"]]


def test_what_is_asked_wrongly_is_refused_in_one_line(page) -> None:
    [found] = page.get("/api/compare").json()["comparisons"]
    for query in ({"c": found["id"], "y": "nonsense"}, {"c": found["id"], "y": "train.loss", "x": "moons"}):
        answer = page.get("/api/curves", params=query)
        assert answer.status_code == 400 and "unknown" in answer.json()["error"]
    assert page.get("/api/curves?c=nobody&y=train.loss").status_code == 404
    assert page.get("/api/run/nobody").status_code == 404
    for number in ("²", "9" * 5000):
        assert page.get("/api/run/nobody/log", params={"from": number}).status_code == 404
    assert page.get("/api/curves", params={"c": found["id"], "y": "train.loss", "smooth": "NaN"}).status_code == 200


def test_the_page_of_a_run_has_its_parts(page, suite: Path) -> None:
    (suite / "oelm_freeze-s0" / "samples.jsonl").write_text('{"step": 5, "prompt": "One", "text": " day"}\ntorn\n')
    step = suite / "oelm_freeze-s0" / "checkpoints" / "step-100"
    step.mkdir(parents=True)
    (step / "model.safetensors").write_bytes(b"x" * 10)
    (step.parent / "best").symlink_to("step-100")
    found = page.get(f"/api/run/{ids(page)['oelm_freeze-s0']}").json()
    assert found["problems"] == {} and found["config"]["settings"]["training.max_lr"] == 3e-3
    assert found["checkpoints"] == [{"name": "step-100", "step": 100, "bytes": 10, "marks": ["best"]}]
    assert found["samples"] == [{"step": 5, "prompt": "One", "text": " day"}]
    assert found["result"]["frozen_verified"] is True and found["row"]["state"] == "finished"


def test_a_broken_part_takes_away_itself_alone(page, suite: Path) -> None:
    (suite / "baseline-s0" / "freeze.json").write_text('{"sites": 3}')
    found = page.get(f"/api/run/{ids(page)['baseline-s0']}").json()
    assert list(found["problems"]) == ["freeze"] and found["config"] and found["result"]


def test_a_log_is_read_on_from_where_the_last_look_ended(page, suite: Path) -> None:
    log, address = suite / "baseline-s0" / "training.log", f"/api/run/{ids(page)['baseline-s0']}/log"
    assert page.get(address).json()["text"] == ""
    log.write_text("one\n" + "x" * 100_000 + "\nlast\n")
    first = page.get(address).json()
    assert first["text"] == "last\n" and first["end"] == log.stat().st_size
    with log.open("a") as file:
        file.write("more\n")
    assert page.get(f"{address}?from={first['end']}").json()["text"] == "more\n"
    log.write_text("anew\n")
    assert page.get(f"{address}?from={first['end']}").json()["text"] == "anew\n"


def test_claims_are_those_of_the_command(page, suite: Path) -> None:
    said = CliRunner().invoke(app, ["claims", str(suite), "--json"])
    assert page.get("/api/claims").json() == json.loads(said.stdout)


def test_the_table_has_the_gap_of_every_run_to_the_baseline_of_its_seed(page, suite: Path) -> None:
    [comparison] = load_runs(suite).comparisons
    gap = comparison.records[1].plain.gap
    page.get("/api/runs")
    for _ in range(200):
        rows = {row["name"]: row for row in page.get("/api/runs").json()["rows"]}
        if rows["oelm_freeze-s1"]["gap"]:
            break
    assert rows["oelm_freeze-s1"]["gap"] == {"value": pytest.approx(gap.by_seed[1]), "points": False, "worse": True}
    assert rows["baseline-s1"]["gap"] is None


def test_the_command_refuses_what_it_cannot_serve(tmp_path: Path) -> None:
    for words, reason in (
        ([str(tmp_path / "nowhere")], "is not a folder"),
        ([str(tmp_path), "--host", "0.0.0.0"], "--token"),
    ):
        result = CliRunner().invoke(app, ["dashboard", *words])
        assert reason in str(result.exception)


def test_every_word_of_the_page_is_there_in_both_languages_and_used() -> None:
    words = (STATIC / "words.js").read_text()
    table = words[words.index("const WORDS") : words.index("const LANGUAGES")]
    known = set(re.findall(r"\b(\w+): \[", table))
    assert len(re.findall(r"\b\w+: \[\"(?:[^\"\\]|\\.)+\", \"(?:[^\"\\]|\\.)+\"\]", table)) == len(known)
    scripts = "".join(file.read_text() for file in STATIC.glob("*.js") if file.name != "words.js")
    asked = set(re.findall(r"\bt\(\"(\w+)\"", scripts))
    assert asked <= known, asked - known
    mentioned = set(re.findall(r"\w+", scripts)) | {"language"}
    families = ("metric_", "fact_", "theme_", "verified")
    verdicts = {"not_reproduced", "not_tested", "consistent", "inconsistent", "impossible", "reproduced"}
    served = {"failed_state", "latest", *verdicts}
    assert not {w for w in known if w not in mentioned | served and not w.startswith(families)}
