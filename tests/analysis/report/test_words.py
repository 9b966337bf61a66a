"""The verdict: at most five lines, from the same records as the tables."""

from factory import make_run, write_step_times
from oelm.analysis.compare.results import load_runs
from oelm.analysis.report.tables import summary_table
from oelm.analysis.report.texts import texts
from oelm.analysis.report.words import data_line, first_looks, verdict_lines
from oelm.files import write_json

MANY = {
    "baseline": 10.0,
    "baseline+mix": 9.9,
    "q_only": 10.05,
    "k_only": 10.1,
    "oelm_freeze+mix": 10.3,
    "oelm_freeze": 11.5,
    "permutation_qk": 12.0,
}


def lines(root, scores, lang="en", seeds=(1.0, 1.01, 0.99), **more):
    for name, score in scores.items():
        for seed, wobble in enumerate(seeds):
            make_run(root, name, seed, perplexity=score * wobble, **more)
    return verdict_lines(load_runs(root), texts(lang))


def test_each_verdict_has_a_line_that_names_its_arms(tmp_path):
    said = lines(tmp_path, MANY)
    assert said[1] == "At most 5 % worse, by the whole interval: q_only; k_only; oelm_freeze+mix."
    assert said[2] == "More than 5 % worse, by the whole interval: oelm_freeze; permutation_qk."
    assert "baseline+mix" not in " ".join(said)  # it trains everything: nothing to judge


def test_the_best_arm_has_an_interval_that_knows_it_was_chosen(tmp_path):
    for name, value in (("baseline", 10.0), ("q_only", 10.2), ("k_only", 10.5)):
        for seed, noise in enumerate((0.0, 0.1, -0.1)):
            make_run(tmp_path, name, seed, perplexity=value + noise * (1 if name == "baseline" else 0.4))
    loaded = load_runs(tmp_path)
    (best, *_) = verdict_lines(loaded, texts("en"))
    plain = loaded.comparisons[0].records[1].plain.gap.t
    low, high = map(float, best.split("[")[1].split("]")[0].replace("−", "-").split(", "))
    assert "choosing 1 of 2" in best and "q_only" in best
    assert low < plain.low and high > plain.high


def test_undecided_says_how_many_more_seeds_would_decide(tmp_path):
    for seed in range(3):
        make_run(tmp_path, "baseline", seed, perplexity=10.0)
        make_run(tmp_path, "k_only", seed, perplexity=(10.1, 10.3, 10.4)[seed])
    said = verdict_lines(load_runs(tmp_path), texts("en"))
    assert any(line.startswith("Undecided: k_only; seeds missing: up to about") for line in said)


def test_there_are_never_more_than_five_lines(tmp_path):
    for dataset in ("a", "b", "c"):
        lines(tmp_path / dataset, MANY | {"oelm_random": 10.49}, dataset=dataset, seeds=(1.0, 1.03, 0.99))
        write_step_times(tmp_path / dataset)
    for lang in ("en", "zh"):
        assert len(verdict_lines(load_runs(tmp_path), texts(lang))) <= 5


def test_part_of_an_epoch_with_a_falling_loss_is_a_first_look(tmp_path):
    for name in ("baseline", "oelm_freeze"):
        folder = make_run(tmp_path, name)
        write_json(folder.result_file, {**folder.result(), "train_tokens": 8_900_000, "text_share": 0.0036})
        last = folder.metrics("validation")[-1]
        folder.append_metrics({**last, "step": 1_050, "loss": last["loss"] - 0.05})
    loaded = load_runs(tmp_path)
    assert verdict_lines(loaded, texts("en"))[0] == "First look only: 0.23 epochs, still falling."
    about = data_line(loaded.comparisons[0], texts("en"))
    assert "2.05M tokens seen, 8.9M tokens of text, 0.23 epochs, 0.36 % of the corpus" in about
    assert "still falling: first look only" in about


def test_a_first_look_decides_nothing_for_sure(tmp_path):
    """The rate has decayed by the last tenth, so that hardly anything falls there; over the last third it does."""
    for method in ("baseline", "oelm_freeze"):
        for seed in (0, 1, 2):
            folder = make_run(tmp_path, method, seed, perplexity=740 + 0.1 * seed)
            write_json(folder.result_file, {**folder.result(), "train_tokens": 22_000_000})
            rows = folder.metrics()
            folder.metrics_file.write_text("")
            for row in rows:
                share = row["step"] / 1_000
                folder.append_metrics({**row, "loss": 6.6 + 0.2 * max(0.0, 0.9 - share)})
    loaded = load_runs(tmp_path)
    said = verdict_lines(loaded, texts("en"))
    assert said[0] == "First look only: 0.09 epochs, still falling."
    assert first_looks(loaded, texts("en")) == said[:1]  # which 'oelm compare' prints, too
    assert "At most 5 % worse, by the whole interval: oelm_freeze (first look)." in said
    assert summary_table(loaded).rows()[1][4] == "met (first look)"


def test_a_whole_epoch_is_no_first_look(tmp_path):
    folder = make_run(tmp_path)
    write_json(folder.result_file, {**folder.result(), "train_tokens": 1_000_000})
    (record,) = load_runs(tmp_path).comparisons[0].records
    assert record.exposure.epochs > 2 and not record.exposure.first_look


def test_chinese_says_the_same(tmp_path):
    assert "整个区间都差 5 % 以上：oelm_freeze；permutation_qk。" in lines(tmp_path, MANY, "zh")
