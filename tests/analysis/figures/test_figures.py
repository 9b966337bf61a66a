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


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    loaded = load_runs(make_suite(tmp_path_factory.mktemp("runs"), seeds=(0, 1)))
    return {picture.name: picture for picture in pictures(loaded)}


def axes_of(picture: Picture):
    return picture.figure.axes


def test_there_is_a_figure_for_each_question(drawn):
    assert list(drawn) == ["learning-curves", "gaps", "wall-time", "step-times", "pareto"]


def test_every_caption_names_its_runs(drawn):
    for picture in drawn.values():
        for run in ("baseline-{s0,s1}", "oelm_freeze-{s0,s1}", "oelm_random-{s0,s1}"):
            assert run in picture.caption


def test_captions_of_many_arms_say_what_the_runs_names_end_in(tmp_path):
    for number, method in enumerate(("baseline", *(f"oelm_freeze+rank={rank}" for rank in range(1, 14)))):
        for seed in (0, 1):
            make_run(tmp_path / f"phase-{number % 2}", method, seed=seed)
    make_run(tmp_path / "other", dataset="other")  # so that names are told apart by their folders
    make_run(tmp_path / "another", dataset="another")
    found = [picture for picture in pictures(load_runs(tmp_path)) if "fables" in picture.caption]
    assert found
    for picture in found:
        assert "all 14 arms (…-s0, …-s1)" in picture.caption and "oelm_freeze" not in picture.caption


def test_the_true_entropy_is_a_dashed_floor(drawn):
    top = axes_of(drawn["learning-curves"])[0]
    floors = [line for line in top.lines if set(line.get_ydata()) == {math.exp(TRUE_ENTROPY)}]
    assert [line.is_dashed() for line in floors] == [True]
    assert top.get_ylim()[0] < math.exp(TRUE_ENTROPY)
    assert "the text's own entropy: 2.773" in drawn["learning-curves"].svg()


def test_corpora_of_unknown_entropy_have_no_floor(tmp_path):
    make_run(tmp_path, "baseline", true_entropy=None)
    assert "entropy" not in pictures(load_runs(tmp_path))[0].svg()


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
        (("baseline+rank=8", "orthogonal_trained"), "5 % goal: 1 met, 1 missed, 0 undecided"),
        (("q_only", "oelm_freeze"), "5 % goal: 1 met, 1 missed, 0 undecided"),
        (("baseline+rank=8", "oelm_freeze"), "5 % goal of arms that freeze: 0 met, 1 missed, 0 undecided"),
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


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_figures_are_saved_by_suffix(drawn, tmp_path, suffix, magic):
    drawn["gaps"].save(tmp_path / f"gaps.{suffix}")
    assert (tmp_path / f"gaps.{suffix}").read_bytes().startswith(magic)
