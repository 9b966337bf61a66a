"""The library alone: what `pip install oelm` brings, and what it does without the lab, or on another system."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
import yaml

import oelm

ROOT = Path(__file__).parent.parent
LAB = (
    "transformers tokenizers datasets pydantic yaml typer rich scipy matplotlib jinja2 filelock huggingface_hub pandas"
)


def python(program, *, hide="", executable=sys.executable, **environment):
    """Run a program in a process in which some modules cannot be imported."""
    start = (
        "import sys, contextlib\nwith contextlib.suppress(ImportError): import psutil  # transformers' on Linux\n"
        f"for name in {hide.split()!r}: sys.modules[name] = None\n"
    )
    return subprocess.run(
        [executable, "-c", start + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_the_library_freezes_verifies_and_merges_with_nothing_of_the_lab():
    program = """
        import importlib, pkgutil, oelm, oelm.freezing
        for module in pkgutil.iter_modules(oelm.freezing.__path__):
            importlib.import_module(f"oelm.freezing.{module.name}")
        model = oelm.GPT(oelm.GPTConfig.of_size("demo", vocab_size=64))
        report = oelm.freeze(model, "oelm_freeze+rank=4", seed=0)
        oelm.verify_frozen(model, report)
        oelm.merge(model)
        rooms = {name.split(".")[1] for name in sys.modules if name.startswith("oelm.")}
        assert rooms <= {"freezing", "errors", "files", "models", "validation"}, rooms
        print(report.frozen_parameters)
    """
    run = python(program, hide=LAB)
    assert run.stdout.strip() == "16384", run.stderr


def test_the_command_without_the_lab_says_how_to_get_it_in_one_line():
    run = python("import runpy; runpy.run_module('oelm', run_name='__main__')", hide="pydantic typer")
    assert run.returncode == 69
    assert run.stderr.splitlines() == [
        "error: the oelm command belongs to the lab, which is not installed (typer, pydantic); "
        "pip install '.[lab]' in your clone"
    ]


def test_the_lab_asked_for_from_python_says_how_to_get_it():
    run = python("import oelm\ntry: oelm.train({})\nexcept oelm.OelmError as e: print(e)", hide="pydantic")
    assert "pip install '.[lab]' in your clone" in run.stdout, run.stderr


def test_without_fcntl_and_resource_transformers_and_the_command_line_work(fables_folder, tmp_path):
    """As on Windows, where neither exists. Locks are then files, and are given back."""
    program = f"""
        import oelm, transformers
        transformers.AutoConfig.for_model("oelm_gpt"); transformers.AutoModelForCausalLM
        import oelm.cli.main
        from oelm.files import exclusive, is_locked
        from oelm.errors import OelmError
        from pathlib import Path
        lock = Path({str(tmp_path / "lock")!r})
        with exclusive(lock, "taken") as file:
            assert is_locked(lock) is True
            try:
                exclusive(lock, "taken").__enter__()
            except OelmError as error:
                assert str(error) == "taken"
            else:
                raise AssertionError("two have it")
        assert is_locked(lock) is False
        small = {{"size": "demo", "overrides": {{"d_model": 32, "num_layers": 1, "d_ff": 64, "max_seq_len": 32}}}}
        config = {{"data": {{"path": {str(fables_folder)!r}}}, "model": small, "training": {{"max_steps": 2}}}}
        print(oelm.train(config, {str(tmp_path / "run")!r})["steps"])
    """
    run = python(program, hide="fcntl resource")
    assert run.stdout.split() == ["2"], run.stderr


def test_the_version_stands_in_one_place():
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()
    assert re.search(rf"^version: {re.escape(oelm.__version__)}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source = tmp_path_factory.mktemp("source")
    for name in ("src", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    _build("sdist", source, source / "dist")
    shutil.unpack_archive(next((source / "dist").glob("oelm-*.tar.gz")), source / "unpacked")
    _build("wheel", next((source / "unpacked").iterdir()), source / "dist")
    return next((source / "dist").glob("oelm-*.whl"))


def _build(kind, source, out):
    program = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
    run = subprocess.run([sys.executable, "-c", program], cwd=source, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


def test_the_wheel_made_from_the_source_package_has_every_file(wheel):
    source = ROOT / "src"
    files = {str(file.relative_to(source)) for file in (source / "oelm").rglob("*") if file.is_file()}
    missing = {name for name in files if "__pycache__" not in name} - set(zipfile.ZipFile(wheel).namelist())
    assert missing == set()


def test_the_wheel_alone_freezes_a_stock_model(wheel, tmp_path):
    """A fresh environment with the wheel, what it declares, and transformers, whose model it is. Nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    fresh = tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin")
    site = next((tmp_path / "env").rglob("site-packages"))
    only = ["--no-deps", "--no-index", "--no-compile"]
    install = [sys.executable, "-m", "pip", f"--python={fresh / 'python'}", "install", *only, wheel]
    subprocess.run(install, check=True, capture_output=True)
    assert importlib.metadata.Distribution.at(next(site.glob("oelm-*.dist-info"))).version == oelm.__version__
    for entry in _needed("torch", "numpy", "safetensors", "transformers"):
        if not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    program = """
        import transformers, oelm
        shape = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=64)
        model = transformers.BertModel(transformers.BertConfig(**shape))
        report = oelm.freeze(model, "oelm_freeze", seed=0)
        oelm.verify_frozen(model, report)
        assert "pydantic" not in sys.modules
        print(oelm.__file__, report.frozen_parameters)
    """
    run = python(program, executable=fresh / "python", PYTHONPATH="")
    assert run.stdout.split() == [str(site / "oelm" / "__init__.py"), str(2 * 2 * (32 * 32 + 32))], run.stderr
    command = subprocess.run(
        [fresh / "oelm", "--help"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}
    )
    assert command.returncode == 69 and "pip install '.[lab]' in your clone" in command.stderr


def _needed(*names):
    """Files and folders of these distributions and of all that they require here."""
    todo, seen = list(names), set()
    while todo:
        name = re.split(r"[^\w.-]", todo.pop())[0].lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system
        todo += [need for need in found.requires or () if "extra ==" not in need]
        yield from {Path(found.locate_file(file.parts[0])) for file in found.files or () if file.parts[0] != ".."}


def test_the_workflow_runs_on_three_systems_and_every_python_that_is_declared():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    matrix = workflow["jobs"]["systems"]["strategy"]["matrix"]
    assert matrix["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    declared = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert matrix["python"] == declared == ["3.10", "3.11", "3.12", "3.13", "3.14"]
    commands = " ".join(step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"])
    for path in re.findall(r"tests/[\w/.]+", commands):
        assert (ROOT / path).exists(), path


def test_hooks_before_a_commit_fetch_nothing():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert {repo["repo"] for repo in hooks["repos"]} == {"local"}
