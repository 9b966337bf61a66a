"""What the report says in plain words, of few arms and of many."""

from factory import make_run
from oelm.analysis.compare.results import load_runs
from oelm.analysis.report.tables import summary_table
from oelm.analysis.report.texts import texts
from oelm.analysis.report.words import paragraph

MANY = {
    "baseline": 10.0,
    "baseline+mix": 9.9,
    "q_only": 10.05,
    "k_only": 10.1,
    "oelm_freeze+rank=8": 10.2,
    "oelm_freeze+mix": 10.3,
    "identity_q": 10.4,
    "oelm_freeze+gain": 10.7,
    "oelm_freeze": 11.5,
    "permutation_qk": 12.0,
}


def said_about(root, scores, lang="en", seeds=(1.0, 1.01, 0.99)):
    for name, score in scores.items():
        for seed, wobble in enumerate(seeds):
            make_run(root, name, seed, perplexity=score * wobble)
    loaded = load_runs(root)
    (comparison,) = loaded.comparisons
    return paragraph(comparison, summary_table(loaded).records, texts(lang))


def test_few_arms_are_told_one_by_one(tmp_path):
    said = said_about(tmp_path, {"baseline": 10.0, "oelm_freeze": 11.5})
    assert "baseline, oelm_freeze" in said
    assert "oelm_freeze is 15.0 % worse" in said
    assert "goal missed" in said
    assert "At most 1 % worse" not in said


def test_many_arms_are_told_by_what_they_reached(tmp_path):
    said = said_about(tmp_path, MANY)
    assert ": 10 arms." in said
    assert "met by 5: q_only +0.5 %, k_only +1.0 %, oelm_freeze+rank=8 +2.0 %, identity_q +4.0 %, oelm_fr" in said
    assert "missed by 3: oelm_freeze+gain +7.0 %, oelm_freeze +15.0 %, permutation_qk +20.0 %." in said
    assert "oelm_freeze+mix +4.0 % against baseline+mix;" in said  # not the plain one
    assert "Arms that freeze nothing: baseline+mix −1.0 %." in said


def test_one_seed_leaves_all_undecided_and_names_the_ends_of_the_ranking(tmp_path):
    said = said_about(tmp_path, MANY | {"identity_qk": 13.0}, seeds=(1.0,))
    assert "undecided for 9: q_only +0.5 %" in said
    assert "… oelm_freeze+gain +7.0 %, oelm_freeze" not in said  # the last three only
    assert "… oelm_freeze +15.0 %, permutation_qk +20.0 %, identity_qk +30.0 %." in said
    assert "met by" not in said


def test_what_is_within_one_percent_is_said(tmp_path):
    assert "At most 1 % worse, by the whole interval: q_only +0.5 %" in said_about(tmp_path, MANY)


def test_chinese_says_the_same(tmp_path):
    said = said_about(tmp_path, MANY, "zh")
    assert "共 10 个" in said
    assert "3 个未达标：oelm_freeze+gain +7.0 %、oelm_freeze +15.0 %、permutation_qk +20.0 %。" in said
