"""Figures: they show what they claim to show, name their runs, and leave text as text."""

import logging
import math
import warnings
from xml.etree import ElementTree

import pytest

from factory import TRUE_ENTROPY, make_run, make_suite
from oelm.analysis.compare.results import load_runs
from oelm.analysis.figures import plots
from oelm.analysis.figures.plots import Picture, pictures
from oelm.analysis.figures.style import PALETTE, looks


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    loaded = load_runs(make_suite(tmp_path_factory.mktemp("runs"), seeds=(0, 1)))
    return {picture.name: picture for picture in pictures(loaded)}


def axes_of(picture: Picture):
    return picture.figure.axes


def test_there_is_a_figure_for_each_question(drawn):
    assert list(drawn) == ["gaps", "learning-curves", "step-times", "pareto"]


def test_every_caption_says_what_data_it_stands_on(drawn):
    for picture in drawn.values():
        assert "fables, demo: 2.05M tokens seen" in picture.caption


def test_all_arms_of_a_comparison_look_different(tmp_path):
    ranks = [f"{base}+rank={rank}" for base in ("oelm_freeze", "permutation_qk", "signs_qk") for rank in (4, 8, 16, 32)]
    for dataset, names in (("one", ranks[:4]), ("two", ["oelm_freeze", *ranks])):
        for name in ("baseline", *names):
            make_run(tmp_path / dataset, name, dataset=dataset)
    comparisons = load_runs(tmp_path).comparisons
    found = looks(comparisons)
    for comparison in comparisons:
        assert len({found[arm.label] for arm in comparison.arms}) == len(comparison.arms)
        colours = [found[arm.label][0] for arm in comparison.arms]
        assert len(set(colours)) == min(len(colours), 1 + len(PALETTE))  # told apart by colour alone, as far as it goes
    assert found["baseline"] == ("#1f2328", "-", "o")


def test_hundreds_of_arms_still_look_different(tmp_path):
    for rank in range(1, 88):
        make_run(tmp_path, f"oelm_freeze+rank={rank}", steps=20)
    (comparison,) = load_runs(tmp_path).comparisons
    assert len(set(looks([comparison]).values())) == 87


def test_equal_data_make_equal_pictures_and_other_data_do_not(tmp_path):
    make_suite(tmp_path, ("baseline", "oelm_freeze"), (0, 1))
    before = {picture.name: picture.digest for picture in pictures(load_runs(tmp_path))}
    assert before == {picture.name: picture.digest for picture in pictures(load_runs(tmp_path))}
    for picture in pictures(load_runs(tmp_path)):
        assert picture.digest in picture.svg()
    make_run(tmp_path, "oelm_freeze", 2)
    make_run(tmp_path, "baseline", 2)
    after = {picture.name: picture.digest for picture in pictures(load_runs(tmp_path))}
    assert before["gaps"] != after["gaps"] and before["learning-curves"] != after["learning-curves"]
    assert before["step-times"] == after["step-times"]


def test_the_true_entropy_is_a_dashed_floor(drawn):
    top = axes_of(drawn["learning-curves"])[0]
    floors = [line for line in top.lines if set(line.get_ydata()) == {math.exp(TRUE_ENTROPY)}]
    assert [line.is_dashed() for line in floors] == [True]
    assert top.get_ylim()[0] < math.exp(TRUE_ENTROPY)
    assert "the text's own entropy: 2.773" in drawn["learning-curves"].svg()


def test_corpora_of_unknown_entropy_have_no_floor(tmp_path):
    make_run(tmp_path, "baseline", true_entropy=None)
    assert "entropy" not in pictures(load_runs(tmp_path))[0].svg()


def test_the_goal_in_points_says_that_it_is_a_share_of_the_score(tmp_path):
    for name, accuracy in (("baseline", 0.8), ("oelm_freeze", 0.78)):
        make_run(tmp_path, name, final={"accuracy": accuracy})
    (picture,) = [p for p in pictures(load_runs(tmp_path)) if p.name == "gaps"]
    assert "5 % of the baseline's score: −4.0 points" in picture.svg()


def test_huge_early_values_do_not_squash_the_end(drawn):
    low, high = axes_of(drawn["learning-curves"])[0].get_ylim()
    assert high < 20  # the first validation is near 40
    assert low > 2


def test_gaps_have_the_goal_line_and_clip_wide_intervals(tmp_path):
    for seed, frozen in enumerate((4.1, 4.5)):
        make_run(tmp_path, "baseline", seed, perplexity=4.0)
        make_run(tmp_path, "oelm_freeze", seed, perplexity=frozen)
    (picture,) = [p for p in pictures(load_runs(tmp_path)) if p.name == "gaps"]
    (axes,) = axes_of(picture)
    assert any(list(line.get_xdata()) == [5.0, 5.0] for line in axes.lines)
    assert axes.get_xlim()[1] < 40  # the t interval of two seeds reaches far beyond
    assert any(line.get_marker() == ">" for line in axes.lines)


@pytest.mark.parametrize(
    ("others", "counted"),
    [
        (("baseline+rank=8", "orthogonal_trained"), "0 yes, 0 no, 0 undecided"),  # they train everything
        (("q_only", "oelm_freeze"), "1 yes, 1 no, 0 undecided"),
        (("baseline+rank=8", "oelm_freeze"), "0 yes, 1 no, 0 undecided"),
    ],
)
def test_the_title_of_the_gaps_counts_what_it_says(tmp_path, others, counted):
    for name, value in zip(("baseline", *others), (10.0, 9.8, 12.0), strict=True):
        for seed, noise in enumerate((0.0, 0.1, -0.1)):
            make_run(tmp_path, name, seed, perplexity=value + noise)
    (picture,) = [p for p in pictures(load_runs(tmp_path)) if p.name == "gaps"]
    assert picture.title.endswith(counted)


def test_a_method_has_the_same_colour_in_every_figure(drawn):
    freeze = "#0072b2"
    assert all(freeze in picture.svg() for picture in drawn.values())


def test_step_times_have_the_line_of_no_difference(drawn):
    (axes,) = axes_of(drawn["step-times"])
    assert any(list(line.get_xdata()) == [1, 1] for line in axes.lines)


def test_svg_is_well_formed_repeatable_and_escapes_names(tmp_path):
    make_run(tmp_path, {"name": "<b>&$x$"}, name="odd")
    (picture, *_) = pictures(load_runs(tmp_path))
    ElementTree.fromstring(picture.svg())
    assert "<b>" not in picture.svg(inline=True)
    assert picture.svg() == pictures(load_runs(tmp_path))[0].svg()


def test_inline_svg_takes_the_colours_of_the_page_and_fetches_nothing(drawn):
    for picture in drawn.values():
        text = picture.svg(inline=True)
        assert text.startswith("<svg")
        assert "var(--ink)" in text
        assert plots.INK not in text
        assert "http" not in text


def test_chinese_stays_text_for_the_browser_without_a_warning(tmp_path, caplog):
    make_suite(tmp_path, ("baseline", "oelm_freeze"), (0, 1))
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        text = "".join(picture.svg() for picture in pictures(load_runs(tmp_path), "zh"))
    assert "训练步数" in text
    assert "'Noto Sans CJK SC'" in text
    assert not caplog.records


def test_print_falls_back_to_english_only_without_a_chinese_font(monkeypatch):
    monkeypatch.setattr(plots, "cjk_font", lambda: None)
    assert (plots.print_language("zh"), plots.print_language("en")) == ("en", "en")
    monkeypatch.setattr(plots, "cjk_font", lambda: "Noto Sans CJK SC")
    assert plots.print_language("zh") == "zh"


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_figures_are_saved_by_suffix(drawn, tmp_path, suffix, magic):
    drawn["gaps"].save(tmp_path / f"gaps.{suffix}")
    assert (tmp_path / f"gaps.{suffix}").read_bytes().startswith(magic)
