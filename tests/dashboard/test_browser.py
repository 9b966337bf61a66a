"""The page in a real browser, as a person uses it. Skipped where Chromium or Playwright is absent."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import factory
from oelm.cli.report import judge
from oelm.dashboard.server import build
from oelm.runs import FAILED, RunFolder
from processes import seconds

playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install '.[dev]' in your clone")
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="needs Chromium: apt-get install chromium")
PATIENCE = 15_000  # milliseconds; a busy machine is slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=[*options, "--disable-gpu"])
        playwright.expect.set_options(timeout=PATIENCE)
        yield chromium
        chromium.close()


@pytest.fixture
def tab(browser) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1400, "height": 900}, locale="en-US", accept_downloads=True)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    broken: list[str] = []
    page.on("pageerror", lambda error: broken.append(str(error)))
    yield page
    context.close()
    assert not broken, broken


@pytest.fixture
def serve() -> Iterator[Any]:
    """serve(folder): the address of a dashboard over it, in a thread of ours."""
    import uvicorn

    running = []

    def start(*folders: Path) -> str:
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = uvicorn.Server(uvicorn.Config(build(list(folders), judge), log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{listening.getsockname()[1]}/"

    yield start
    for server, thread in running:
        server.should_exit = server.force_exit = True
        thread.join(5)


def shows(tab, text: str, within: str = "main") -> None:
    tab.locator(within).get_by_text(text).first.wait_for()


def fits(tab) -> bool:
    return tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_a_training_run_appears_moves_and_dies_without_reloading(tab, serve, spawn, tmp_path, fables_folder):
    """A state is on the page within 2 s of being in the folder."""
    runs = tmp_path / "runs"
    runs.mkdir()
    tab.goto(serve(runs))
    shows(tab, "No runs yet")
    words = f"train --method oelm_freeze --dataset {fables_folder} --out {runs / 'live'} --max-steps 400 --batch-size 4"
    source = str(Path(__file__).parents[2] / "src")
    training = spawn(
        [sys.executable, "-m", "oelm", *words.split()],
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    state, folder = tab.locator("tr td.state"), RunFolder(runs / "live")
    playwright.expect(state).to_have_text("running", timeout=60_000)
    step = tab.locator("[role=progressbar]")
    first = step.get_attribute("aria-valuenow") or "0"
    playwright.expect(step).not_to_have_attribute("aria-valuenow", first)
    training.kill()
    training.wait()
    gone = time.monotonic()
    playwright.expect(state).to_have_text("dead")
    assert time.monotonic() - gone < seconds(2.0)
    folder.set_status(FAILED, step=9, max_steps=400, error="Diverged: it was a test")
    said = time.monotonic()
    playwright.expect(state).to_have_text("failed")
    assert time.monotonic() - said < seconds(2.0)


def test_the_table_sorts_filters_and_remembers_in_its_address(tab, serve, tmp_path):
    factory.make_suite(tmp_path, ("baseline", "oelm_freeze"), (0, 1, 2))
    address = serve(tmp_path)
    tab.goto(address)
    names = tab.locator("tbody td.run a")
    playwright.expect(names).to_have_count(6)
    tab.keyboard.press("/")
    tab.keyboard.type("freeze")
    playwright.expect(names).to_have_count(3)
    tab.get_by_role("button", name="score").click()
    assert "q=freeze" in tab.url and "sort=score" in tab.url
    scores = [float(text) for text in tab.locator("tbody td.score").all_inner_texts()]
    assert scores == sorted(scores)
    playwright.expect(tab.locator("tbody td.gap").first).to_contain_text("%")
    tab.goto("about:blank")
    tab.goto(f"{address}#/?q=freeze&sort=-score")
    playwright.expect(names).to_have_count(3)
    scores = [float(text) for text in tab.locator("tbody td.score").all_inner_texts()]
    assert scores == sorted(scores, reverse=True)


def test_the_keyboard_opens_a_run_and_chooses_runs_to_compare(tab, serve, tmp_path):
    factory.make_suite(tmp_path, ("baseline", "oelm_freeze"), (0, 1))
    tab.goto(serve(tmp_path))
    boxes = tab.locator("tbody input[type=checkbox]")
    boxes.first.focus()
    tab.keyboard.press("Space")
    boxes.nth(2).focus()
    tab.keyboard.press("Space")
    tab.get_by_role("link", name="Compare 2 runs").focus()
    tab.keyboard.press("Enter")
    shows(tab, "Verdicts")
    playwright.expect(tab.locator(".verdicts tbody tr")).to_have_count(2)
    tab.go_back()
    tab.locator("tbody td.run a").first.focus()
    tab.keyboard.press("Enter")
    shows(tab, "Configuration")


def test_compare_shows_the_reports_own_table_and_keeps_what_was_chosen(tab, serve, tmp_path):
    from oelm.analysis.compare.results import load_runs
    from oelm.analysis.report.tables import summary_table

    factory.make_suite(tmp_path, ("baseline", "oelm_freeze", "oelm_random"), (0, 1, 2))
    tab.goto(f"{serve(tmp_path)}#/compare")
    shows(tab, "Verdicts")
    shown = [
        [cell.strip() for cell in row.locator("td").all_inner_texts()]
        for row in tab.locator(".verdicts tbody tr").all()
    ]
    assert [[" ".join(cell.split()) for cell in row] for row in shown] == summary_table(load_runs(tmp_path)).rows()
    lines = tab.locator(".chart").first.locator(".scatterlayer .trace")
    playwright.expect(lines).to_have_count(9)  # a mean and the two edges of its band for each arm
    tab.locator(".legend label", has_text="oelm_random").click()
    playwright.expect(lines).to_have_count(6)
    tab.get_by_role("button", name="tokens").click()
    tab.get_by_role("button", name="log y").first.click()
    tab.get_by_role("button", name="seed bands").click()
    playwright.expect(lines).to_have_count(2)
    sent = tab.url
    tab.goto("about:blank")
    tab.goto(sent)
    playwright.expect(lines).to_have_count(2)
    assert tab.get_by_role("button", name="tokens").get_attribute("aria-pressed") == "true"
    assert not tab.locator(".legend label", has_text="oelm_random").locator("input").is_checked()
    for kind, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg"), ("CSV", b"arm,")):
        with tab.expect_download() as download:
            tab.locator("section").first.get_by_text(kind, exact=True).click()
        assert Path(download.value.path()).read_bytes().startswith(start)


def test_the_language_switches_and_stays(tab, serve, tmp_path):
    factory.make_suite(tmp_path, ("baseline", "oelm_freeze"), (0, 1))
    tab.goto(f"{serve(tmp_path)}#/compare")
    shows(tab, "Verdicts")
    tab.get_by_role("button", name="中文").click()
    shows(tab, "判定")
    assert tab.locator("html").get_attribute("lang") == "zh-CN"
    assert "方法" in tab.locator(".verdicts thead").inner_text()
    tab.reload()
    shows(tab, "判定")
    tab.get_by_role("link", name="总览").click()
    shows(tab, "已完成")
    tab.goto(f"{tab.url.split('#')[0]}#/claims")
    shows(tab, "原研究的论断")
    titles = tab.locator(".claim h2")
    titles.first.wait_for()
    assert [title for title in titles.all_inner_texts() if title.isascii()] == []


def test_words_of_others_stay_words(tab, serve, tmp_path):
    """Names, methods, logs, configs and samples that are markup are shown, never run."""
    evil = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
    name = "<img src=x onerror=window.hacked=1>"
    run = factory.make_run(tmp_path / name, "oelm_freeze", name=name, config_changes={"note": evil})
    factory.make_run(tmp_path / name, "baseline", name="b")
    run.log_file.write_text(f"{evil}\n")
    (run.path / "samples.jsonl").write_text(json.dumps({"step": 1, "prompt": evil, "text": evil}) + "\n")
    site = {"path": evil, "role": "query", "kind": "self", "layer": 0, "num_heads": 1, "shape": [4, 4], "init": evil,
            "frozen": True, "adapters": [evil], "orthonormality_error": 0.1, "hashes": {evil: "0"}}  # fmt: skip
    run.record(
        run.freeze_file, {"method": {"summary": evil}, "sites": [site], "total_parameters": 9, "frozen_parameters": 4}
    )
    broken = factory.make_run(tmp_path, name="broken")
    broken.config_file.write_text(f"[{evil}")
    address = serve(tmp_path)
    for view in ("", "compare", "claims"):
        tab.goto(f"{address}#/{view}")
        tab.wait_for_timeout(300)
    tab.goto(address)
    tab.locator("tbody td.run a", has_text="<img").click()
    shows(tab, "Configuration")
    playwright.expect(tab.locator(".log")).to_contain_text("<script>")
    playwright.expect(tab.locator("h1")).to_have_text(name)
    tab.locator(".chart .scatterlayer .trace").first.wait_for()
    assert tab.evaluate("window.hacked") is None
    assert tab.locator("main img, main script").count() == 0


def test_addresses_that_lead_out_show_nothing(tab, serve, tmp_path):
    factory.make_run(tmp_path)
    address = serve(tmp_path)
    for run in ("..%2f..%2f..%2fetc%2fpasswd", "..", "nobody", "%2fetc"):
        tab.goto(f"{address}#/run/{run}")
        shows(tab, "There is no such run any more")


def test_a_broken_folder_and_a_lost_server_say_what_to_do(tab, serve, tmp_path):
    run = factory.make_run(tmp_path)
    run.status_file.write_text("{torn")
    tab.goto(serve(tmp_path))
    shows(tab, "broken")
    tab.locator("tbody td.run a").click()
    shows(tab, "Mend or delete")
    tab.route("**/api/**", lambda route: route.abort())
    shows(tab, "Is 'oelm dashboard' still running?", "#banner")
    tab.unroute("**/api/**")
    playwright.expect(tab.locator("#banner")).to_be_hidden()


@pytest.mark.parametrize("width", [390, 1280])
def test_every_view_fits_its_width(browser, serve, tmp_path, width):
    factory.make_suite(tmp_path, ("baseline", "oelm_freeze", "oelm_random_matched"), (0, 1))
    factory.make_run(
        tmp_path, name="a-run-with-a-name-that-is-much-too-long-for-any-narrow-screen-and-then-some" * 2, seed=5
    )
    address = serve(tmp_path)
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme="dark", locale="en-US")
    tab = context.new_page()
    tab.set_default_timeout(PATIENCE)
    tab.goto(address)
    shows(tab, "finished")
    assert fits(tab)
    tab.locator("tbody td.run a").first.click()
    shows(tab, "Configuration")
    tab.locator(".chart .scatterlayer").first.wait_for()
    assert fits(tab)
    for view, text in (("compare", "Verdicts"), ("claims", "The original study's claims")):
        tab.goto(f"{address}#/{view}")
        shows(tab, text)
        tab.wait_for_timeout(200)
        assert fits(tab), view
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(int(part) for part in dark[4:-1].split(",")) < 150
    context.close()


def test_a_thousand_runs_of_ten_thousand_rows_open_in_two_seconds(tab, serve, tmp_path):
    thousand(tmp_path)
    address = serve(tmp_path)
    started = time.process_time()
    tab.goto(address)
    playwright.expect(tab.locator("#total")).to_have_text("1,000 runs".replace(",", ""))
    opened = tab.evaluate("performance.now()") / 1000
    assert opened < seconds(2.0)
    tab.locator("input[type=search]").fill("seed=3 q_only")
    playwright.expect(tab.locator("#total")).to_have_text("20 of 1000 runs")
    playwright.expect(tab.locator("tbody td.gap").first).to_contain_text("%", timeout=30_000)
    tab.goto(f"{address}#/compare?scope=in:exp3")
    playwright.expect(tab.locator(".verdicts tbody tr")).to_have_count(5, timeout=30_000)
    before, waited = time.process_time(), 2.0
    tab.wait_for_timeout(1000 * waited)
    assert time.process_time() - before < 0.25 * waited  # looking again and again costs little
    assert started >= 0


def thousand(root: Path) -> None:
    """Runs that share their 10,000 rows as one file on the disk."""
    methods = ("baseline", "oelm_freeze", "oelm_random", "q_only", "k_only")
    rows = []
    for step in range(1, 10_001):
        rows.append(
            {"kind": "train", "step": step, "loss": 3 + 1 / step, "lr": 1e-3, "grad_norm": 0.7, "tokens": step * 2048}
        )
        if step % 1000 == 0:
            rows.append({"kind": "validation", "step": step, **factory.final_values(30 + 1 / step)})
    (root / "rows").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for method in methods:
        model = factory.make_run(root / "model", method, 0, steps=10_000)
        config, result = yaml.safe_dump(model.config()), model.result() or {}
        for experiment in range(20):
            for seed in range(10):
                folder = root / f"exp{experiment}" / f"{method}-{seed}"
                folder.mkdir(parents=True)
                os.link(root / "rows", folder / "metrics.jsonl")
                os.link(model.status_file, folder / "status.json")
                own = config.replace("seed: 0", f"seed: {seed}").replace(
                    "batch_size: 16", f"batch_size: {experiment + 1}"
                )
                (folder / "config.yaml").write_text(own)
                score = result["final"]["perplexity"] * (1 + 0.001 * seed)
                final = {**result["final"], "perplexity": score}
                (folder / "result.json").write_text(json.dumps({**result, "seed": seed, "final": final}))
    shutil.rmtree(root / "model")
