"""`oelm bench` as a user meets it."""

import json

from test_main import refused

SMALL = ["--size", "demo", "--batch", "1", "--length", "8", "--vocab", "40", "--rounds", "6", "--device", "cpu"]


def test_bench_prints_json_and_writes_its_folder(tmp_path, here, quick_peak):
    run = here("bench", "baseline", "oelm_freeze", *SMALL, "--threads", "1", "--json", "--out", tmp_path / "out")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == json.loads((tmp_path / "out" / "bench.json").read_text())
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".json", ".md", ".svg", ".png"}


def test_bad_input_is_refused(tmp_path, here):
    refused(here("bench", "gtp2"), "arm 'gtp2' is unknown", "gpt2")
    refused(here("bench", "--size", "tyni"), "size 'tyni' is unknown", "tiny")
    refused(here("bench", "--device", "tpu"), "'tpu'", "use auto")
    refused(here("bench", "--rounds", "2"), "2 rounds", "at least 6")
    (tmp_path / "file").touch()
    refused(
        here("bench", "--out", tmp_path / "file" / "out"), "file", "choose another folder", code=69
    )  # before it measures
