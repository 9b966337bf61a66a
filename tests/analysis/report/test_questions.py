"""What an experiment was made to answer comes first, decided or not."""

import pytest

from factory import make_run
from oelm.analysis.compare.results import load_runs
from oelm.analysis.report.page import write_report
from oelm.analysis.report.texts import texts
from oelm.analysis.report.words import verdict_lines
from oelm.files import write_json

QUESTIONS = [
    {"asks": "cost", "arm": "oelm_freeze", "against": "baseline"},
    {"asks": "orthogonality", "arm": "oelm_freeze", "against": "oelm_random_matched"},
    {"asks": "recovery", "arm": "permutation_qk+rank=8", "against": "oelm_freeze", "rest": "baseline"},
]
ARMS = ("baseline", "oelm_freeze", "oelm_random_matched", "permutation_qk+rank=8")


def runs(root, *scores):
    for arm, values in zip(ARMS, scores, strict=False):
        for seed, perplexity in enumerate(values):
            make_run(root, arm, seed, perplexity=perplexity, name=f"{ARMS.index(arm)}-{seed}")
    write_json(root / "questions.json", QUESTIONS)
    return root


def lines(root, lang="en"):
    return verdict_lines(load_runs(root), texts(lang))


def test_three_questions_are_answered_with_their_intervals(tmp_path):
    runs(tmp_path, (2.0, 2.02, 2.01), (3.0, 3.1, 3.05), (3.02, 3.1, 3.08), (2.05, 2.08, 2.06))
    cost, orthogonality, recovery, *_ = lines(tmp_path)
    assert cost.startswith("Freezing costs something: oelm_freeze is +51.7 % [+47.5, +56.1] against baseline (3 seeds)")
    assert orthogonality.startswith("Orthogonality is not what helps: ")
    assert "that it is 6 % better, as the original study reports, is ruled out" in orthogonality
    assert recovery.startswith("A cheap method wins it back: permutation_qk+rank=8 is −")
    assert "To baseline, which lacks its learned parts, it is +2." in recovery


def test_what_is_undecided_says_how_many_more_seeds_would_do(tmp_path):
    runs(tmp_path, (2.0, 2.5), (2.4, 2.6))
    (cost, *_) = lines(tmp_path)
    assert cost.startswith("Whether freezing costs anything is undecided") and "more seeds would decide" in cost


def test_an_advantage_of_orthonormal_projections_would_be_reported_as_gladly(tmp_path):
    runs(tmp_path, (2.0, 2.02, 2.01), (2.5, 2.52, 2.51), (3.0, 3.1, 3.05))
    assert any(line.startswith("Orthogonality helps by at least 6 %") for line in lines(tmp_path))


@pytest.mark.parametrize(
    "content", ["[1]", '{"asks": "cost"}', '[{"asks": "riddle", "arm": "a", "against": "b"}]', "["]
)
def test_damaged_or_unknown_questions_leave_the_report_as_it_was(tmp_path, content):
    runs(tmp_path, (2.0, 2.02), (3.0, 3.1))
    (tmp_path / "questions.json").write_text(content)
    assert not any("Freezing costs" in line for line in lines(tmp_path))


def test_the_page_opens_with_the_answers_in_both_languages(tmp_path):
    runs(tmp_path, (2.0, 2.02, 2.01), (3.0, 3.1, 3.05), (3.02, 3.1, 3.08), (2.05, 2.08, 2.06))
    for lang, words in (("en", "Freezing costs something"), ("zh", "冻结是有代价的")):
        page = write_report(tmp_path, tmp_path / "out", lang=lang, formats=("html",))[0].read_text()
        assert page.index(words) < page.index("<figure")
