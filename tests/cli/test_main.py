"""The command line as a user meets it: real processes, exact errors, no traceback."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import typer

from oelm.cli.main import app
from oelm.runs import RunFolder
from oelm.training.config import options

SMALL = [
    "--size", "demo", "--max-steps", "6", "--batch-size", "4", "--device", "cpu", "--threads", "1",
    "--set", "model.overrides.d_model=32", "--set", "model.overrides.num_layers=1",
    "--set", "model.overrides.num_heads=2", "--set", "model.overrides.d_ff=64",
    "--set", "model.overrides.max_seq_len=32",
]  # fmt: skip


def oelm(*arguments, cwd=None, **environment):
    return subprocess.run(
        [sys.executable, "-m", "oelm", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
        timeout=120,
    )


def refused(run, *words, code=2):
    """Exit code 2, one line that names the thing, the value and the way out, and no traceback."""
    assert run.returncode == code, run.stderr
    lines = [line for line in run.stderr.splitlines() if line]
    assert len(lines) == 1, run.stderr
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]


def test_help_loads_neither_torch_nor_transformers_nor_numpy():
    """What makes `oelm --help` answer at once; the time itself depends on the machine and is not a test."""
    program = (
        "import sys; from oelm.cli.main import app; from typer.testing import CliRunner\n"
        "out = CliRunner().invoke(app, ['--help']); assert out.exit_code == 0 and 'demo' in out.output\n"
        "heavy = {'torch', 'transformers', 'numpy', 'datasets', 'tokenizers', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_version_is_printed(here):
    assert here("--version").stdout.strip() == "0.1.0"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], ["No such command", "trian"]),
        (["train", "--methd", "baseline"], ["--methd", "--method"]),
        (["train", "--method", "oelm_frieze", "--dataset", "fables"], ["'oelm_frieze'", "did you mean 'oelm_freeze'"]),
        (["train"], ["no data given", "--dataset"]),
        (["train", "--dataset", "fables", "--size", "nope"], ["size 'nope' is unknown"]),
        (["train", "--dataset", "fables", "--precision", "fp8"], ["(--precision) is 'fp8'; it must be 'fp32', 'bf16'"]),
        (["train", "--dataset", "tinystories"], ["'tinystories'", "is not prepared", "oelm data prepare tinystories"]),
        (["inspect", "medium-521"], ["'medium-521'", "medium-512"]),
        (["inspect", "tiny", "--method", "nothing"], ["'nothing'", "see 'oelm methods'"]),
        (["resume", "nowhere"], ["nowhere", "not a run folder"]),
        (["generate", "nowhere"], ["nowhere", "holds no checkpoint"]),
        (["compare", "nowhere"], ["nowhere", "does not exist"]),
        (["audit", "nowhere"], ["nowhere", "does not exist"]),
        (["train", "--dataset", "fablez"], ["'fablez' is not prepared", "did you mean 'fables'"]),
        (["data", "prepare", "tinystoreis"], ["'tinystoreis'", "tinystories"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, words, tmp_path, here):
    refused(here(*arguments), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("training.max_lrr=1", ["'training.max_lrr' is unknown", "max_lr"]),
        ("training.max_lr=-1", ["training.max_lr", "-1", "greater than 0"]),
        ("model.overrides.d_modle=3", ["model setting 'd_modle' is unknown", "did you mean 'd_model'"]),
        ("training.precision=fp8", ["training.precision", "fp8"]),
        ("nonsense", ["'nonsense'", "key=value"]),
        ("training.max_lr=[1", ["training.max_lr=[1", "not a YAML value"]),
        ("model.overrides.dropout=high", ["dropout is 'high'"]),
        ("model.overrides.vocab_size=abc", ["vocab_size is 'abc'"]),
        ("model.overrides.num_heads=5", ["num_heads 5 does not divide d_model"]),
        ("training.warmup_steps=100", ["warmup_steps 100 exceeds max_steps 6"]),
        ("runtime.device=tpu", ["'tpu'", "use auto, cpu, cuda"]),
    ],
)
def test_a_wrong_setting_is_refused_before_any_work(setting, words, fables_folder, tmp_path, here):
    run = here("train", "--dataset", fables_folder, *SMALL, "--set", setting, "--out", tmp_path / "run")
    refused(run, *words)
    assert not (tmp_path / "run").exists()


def test_an_unwritable_folder_is_refused(fables_folder, tmp_path, here):
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file" / "run", tmp_path / "file"):
        refused(here("train", "--dataset", fables_folder, *SMALL, "--out", out), "file", code=69)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.yaml").write_text("")
    refused(
        here("train", "--dataset", fables_folder, *SMALL, "--out", tmp_path / "odd"), "config.yaml", "not a mapping"
    )


def test_truncated_data_is_refused(fables_folder, tmp_path, here):
    import shutil

    shutil.copytree(fables_folder, tmp_path / "data")
    (tmp_path / "data" / "train.bin").write_bytes((tmp_path / "data" / "train.bin").read_bytes()[:-100])
    refused(here("train", "--dataset", tmp_path / "data", *SMALL, "--out", tmp_path / "run"), "train.bin", "bytes")


def test_train_compare_generate_with_the_studys_flag_names(fables_folder, tmp_path, here):
    for method in ("baseline", "oelm_v2"):
        run = here(
            "train", "--model_type", method, "--dataset", fables_folder, *SMALL, "--max_lr", "1e-3", "--max_steps", "8",
            "--out_dir", tmp_path / method, "--json",
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        assert json.loads(run.stdout)["steps"] == 8
    assert RunFolder(tmp_path / "oelm_v2").result()["method"] == "oelm_freeze"

    table = here("compare", tmp_path, "--json")
    assert table.returncode == 0, table.stderr
    assert {"baseline", "oelm_freeze"} <= set(_strings(json.loads(table.stdout)))

    text = here("generate", tmp_path / "oelm_v2", "--prompt", "By the", "--tokens", "5", "--json")
    assert text.returncode == 0, text.stderr
    assert json.loads(text.stdout)["prompt"] == "By the"

    another = here("train", "--dataset", fables_folder, *SMALL, "--max-lr", "0.5", "--out", tmp_path / "baseline")
    refused(another, "another config", "training.max_lr")


def test_sigterm_checkpoints_and_exits_143(fables_folder, tmp_path, spawn, here):
    folder = RunFolder(tmp_path / "run")
    arguments = ["train", "--dataset", str(fables_folder), *SMALL, "--max-steps", "100000", "--out", str(folder.path)]
    process = spawn([sys.executable, "-m", "oelm", *arguments], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while len(folder.metrics()) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    second = here("resume", folder.path)  # two processes cannot train in one folder
    refused(second, "another process is training", code=69)  # nothing wrong with the request
    process.send_signal(signal.SIGUSR1)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "in main" in said and "oelm/cli/main.py" in said  # where it was when it was asked
    assert "interrupted by SIGTERM" in said
    assert folder.status()["state"] == "interrupted"


def test_inspect_prints_the_published_counts_as_json(here):
    facts = json.loads(here("inspect", "medium-512", "--method", "oelm_freeze", "--json").stdout)
    assert facts["total_parameters"] == 44_896_768
    assert facts["frozen_parameters"] == 3_145_728
    assert facts["trainable_parameters"] == 41_751_040
    assert facts["checkpoint_bytes"] == 4 * 44_896_768 + 8 * 41_751_040
    assert set(facts["flops_per_token"]["forward"]) == {"qk", "vo", "ffn", "head", "attention", "total"}


def test_methods_lists_the_table_as_json(here):
    names = [m["name"] for m in json.loads(here("methods", "--json").stdout)]
    assert names[:2] == ["baseline", "oelm_freeze"]


def test_a_device_that_is_not_there_is_refused_by_name(here):
    import torch

    if torch.backends.mps.is_available():
        pytest.skip("this machine has a Metal GPU")
    run = here("train", "--dataset", "fables", "--device", "mps")
    refused(run, "device 'mps' does not exist", "no Metal GPU")


def test_doctor_says_what_the_machine_can_do(here):
    facts = json.loads(here("doctor", "--json", "--offline").stdout)
    assert facts["cores"] >= 1
    assert "torch" in facts
    assert "hub" in facts


def _strings(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [s for item in value for s in _strings(item)]
    return [value] if isinstance(value, str) else []


def test_no_default_is_lost_from_the_help():
    """Rich takes words in square brackets for markup, and shows nothing of them."""

    def helps(command):
        yield from (getattr(parameter, "help", None) or "" for parameter in command.params)
        for child in getattr(command, "commands", {}).values():
            yield from helps(child)

    texts = list(helps(typer.main.get_command(app)))
    assert sum("(default: " in text for text in texts) > 30
    assert [text for text in texts if re.search(r"\[[a-z]", text)] == []


def test_a_group_without_a_command_shows_its_help_and_no_error(here):
    run = here("data")
    assert run.returncode == 2
    assert "prepare" in run.stdout + run.stderr and "error" not in run.stderr


MISTYPED = [
    (["train", "--method", "oelm_frieze", "--dataset", "fables"], ["did you mean 'oelm_freeze'"]),
    (["train", "--dataset", "fables", "--size", "nope"], ["size 'nope' is unknown"]),
    (["train", "--dataset", "fables", "--max-steps", "1_0"], ["--max-steps", "'1_0' is not a whole number"]),
    (["train", "--dataset", "fables", "--set", "training.max_lrr=1"], ["max_lrr"]),
    (["train", "--dataset", "fables", "--out", ""], ["the value of --out is empty"]),
    (["run", "GPT-01", "--out="], ["the value of --out is empty"]),
    (["report", ""], ["the value of report is empty"]),
    (["bench", "baseline", "nothing"], ["arm 'nothing' is unknown", "see 'oelm bench --help'"]),
    (["train", "--dataset", "fables", "--report-to", "wandbe"], ["tracker 'wandbe' is unknown", "wandb"]),
    (["inspect", "tiny", "--method", "nothing"], ["method 'nothing' is unknown"]),
    (["inspect", "medium-521"], ["'medium-521'", "did you mean 'medium-512'"]),
    (["estimate", "--size", "tiny", "--method", "nothing"], ["method 'nothing' is unknown"]),
    (["run", "GPT-99"], ["experiment 'GPT-99' is unknown"]),
    (["run", "GPT-01", "--seeds", "0,1_0"], ["--seeds '0,1_0' is not a list of whole numbers"]),
]


QUICK = """
import contextlib, io, json, sys
from oelm.__main__ import main
for words in json.loads(sys.argv[1]):
    sys.argv[1:], said = words, io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try: main()
        except SystemExit as left: code = left.code
    print(json.dumps([code, said.getvalue(), sorted({"torch", "transformers"} & set(sys.modules))]))
"""


def quick(*commands, **environment):
    """What commands say, one after the other in one process, and whether they load torch on the way."""
    words = [sys.executable, "-c", QUICK, json.dumps(commands)]
    run = subprocess.run(words, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})
    assert run.returncode == 0, run.stderr
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    return [(subprocess.CompletedProcess(commands, code, "", said), heavy) for code, said, heavy in answers]


@pytest.fixture(scope="module")
def mistyped():
    return quick(*(arguments for arguments, _ in MISTYPED))


@pytest.mark.parametrize("number", range(len(MISTYPED)), ids=[" ".join(arguments) for arguments, _ in MISTYPED])
def test_what_is_mistyped_is_refused_before_torch_is_loaded(mistyped, number):
    run, heavy = mistyped[number]
    refused(run, *MISTYPED[number][1])
    assert not heavy


UNREACHABLE = [
    (["data", "prepare", "tinystories", "--tokenizer", "bpe:300"], "a local copy works in its place"),
    (
        ["data", "prepare", "fables", "--tokenizer", "gpt2", "--megabytes", "0.01"],
        "train one on your own text with --tokenizer bpe:4096",
    ),
    (["data", "prepare", "me/nowhere", "--max-tokens", "5M"], "me/nowhere is no folder here and could not be reached"),
    (["data", "task", "sst2", "--tokenizer", "bpe:300"], "a train and a validation file"),
    (["train", "--task", "sst2", "--encoder", "some/encoder"], "tokenizer 'some/encoder' is none that can be had"),
]


EACH_IN_A_FORK = """
import json, os, sys, traceback
import datasets  # most of what such a command loads
from oelm.__main__ import main
for number, words in enumerate(json.loads(sys.argv[1])):
    if (child := os.fork()) == 0:
        code = 1
        try:
            os.mkdir(str(number))
            os.chdir(str(number))
            for stream, name in ((1, "stdout"), (2, "stderr")):
                os.dup2(os.open(f"../{name}-{number}", os.O_CREAT | os.O_WRONLY), stream)
            sys.argv[1:] = words
            main()
        except SystemExit as left: code = left.code
        except BaseException: traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def unreachable(tmp_path_factory):
    """What commands that need the hub say where it cannot be reached, each in a process that has not asked it yet."""
    folder = tmp_path_factory.mktemp("unreachable")
    nowhere = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(folder / "hf")}
    words = [sys.executable, "-c", EACH_IN_A_FORK, json.dumps([arguments for arguments, _ in UNREACHABLE])]
    run = subprocess.run(words, capture_output=True, text=True, cwd=folder, env={**os.environ, **nowhere}, timeout=240)
    assert run.returncode == 0, run.stderr
    said = [(folder / f"stderr-{number}").read_text() for number in range(len(UNREACHABLE))]
    codes = map(int, run.stdout.split())
    return [subprocess.CompletedProcess((), code, "", text) for code, text in zip(codes, said, strict=True)]


@pytest.mark.parametrize("number", range(len(UNREACHABLE)), ids=[" ".join(words) for words, _ in UNREACHABLE])
def test_without_a_network_the_hub_is_asked_once_and_the_answer_is_one_line(unreachable, number):
    run = unreachable[number]
    refused(run, UNREACHABLE[number][1], "Connection refused", code=run.returncode)
    assert run.returncode in (2, 69)
    assert "Retrying" not in run.stderr  # which is what takes half a minute; the time itself depends on the machine


@pytest.mark.parametrize("offline", ["0", "1"])
def test_an_unknown_model_without_a_network_is_one_line_at_once(offline):
    ((run, heavy),) = quick(["inspect", "llama-1b"], HF_HUB_OFFLINE=offline, HF_ENDPOINT="http://127.0.0.1:9")
    refused(
        run, "model 'llama-1b' is unknown here, and the hub cannot be reached", "or a folder with a config", code=69
    )
    assert not heavy


def test_h_is_help_and_the_shell_can_complete(here):
    for arguments in (["-h"], ["train", "-h"], ["data", "prepare", "-h"]):
        assert "Usage" in here(*arguments).stdout
    shown = oelm("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "COMP_WORDS" in shown.stdout, shown.stderr


def test_on_80_columns_the_help_names_every_option_in_full(here, monkeypatch):
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    shown = here("train", "-h").stdout
    assert max(map(len, shown.splitlines())) == 80 and "…" not in shown
    for _, name, field in options():
        for flag in (f"--{name.replace('_', '-')}", *field.json_schema_extra["flags"]):
            assert flag in shown
    assert "--no-segments" in shown


@pytest.mark.parametrize(
    "words", ["inspect", "estimate", "data prepare", "data task", "bench", "run", "evaluate", "generate"]
)
def test_on_80_columns_no_option_of_any_command_is_cut(here, monkeypatch, words):
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    shown = here(*words.split(), "-h").stdout
    assert "--json" in shown and not re.search(r"-\w+…", shown)


def test_without_a_terminal_other_packages_draw_no_progress_bars():
    code = "import contextlib, oelm.__main__ as o\nwith contextlib.suppress(SystemExit): o.main()\n"
    code += "from tqdm import tqdm\nlist(tqdm(range(3)))"
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_a_terminal_progress_is_lines_on_stderr_and_stdout_is_json_alone(fables_folder, tmp_path, here):
    command = ["train", "--dataset", fables_folder, *SMALL, "--log-every", "1"]
    run = oelm(*command, "--out", tmp_path / "[bold]a[/]", "--json")
    assert json.loads(run.stdout)["steps"] == 6, run.stderr
    lines = run.stderr.splitlines()
    assert lines[0] == f"baseline → {tmp_path}/[bold]a[/]"
    assert lines[1].startswith("step 1 of 6: loss ") and lines[-1].startswith("step 6 of 6: loss ")
    quiet = here(*command, "--out", tmp_path / "b", "-q")
    assert quiet.stderr == "" and quiet.stdout.startswith(f"{tmp_path}/b: perplexity ")
    loud = here(*command, "--out", tmp_path / "c", "-q", "-v")
    assert "validation loss" in loud.stderr and "finished: perplexity" in loud.stderr


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("model: {overrides: {num_layers: 1000000000}}\ndata: {path: .}", "num_layers"),
        ("model: {size: demo}\ndata: {path: .}", "is no prepared data"),
    ],
)
def test_what_a_config_alone_asks_for_is_refused_in_one_line(here, tmp_path, config, message):
    (tmp_path / "mine.yaml").write_text(config)
    done = here("train", "--config", "mine.yaml", "--out", "run")
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert not (tmp_path / "run").exists()
