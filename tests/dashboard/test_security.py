"""Who may ask, and what nobody can get."""

from pathlib import Path

import pytest

import factory
from dashboard.conftest import client
from oelm.dashboard.security import is_loopback, require_safe
from oelm.errors import OelmError

TOKEN = "0123456789abcdef"
STATIC = Path(__file__).parents[2] / "src" / "oelm" / "dashboard" / "static"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.4", "example.org"])
def test_other_machines_need_a_token(host: str) -> None:
    with pytest.raises(OelmError, match="--token"):
        require_safe(host, None)
    require_safe(host, TOKEN)


def test_a_short_token_is_refused_and_this_machine_needs_none() -> None:
    with pytest.raises(OelmError, match="16"):
        require_safe("0.0.0.0", "short")
    for host in ("127.0.0.1", "::1", "localhost", "127.1.2.3"):
        assert is_loopback(host)
        require_safe(host, None)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8265", "127.0.0.1.evil.example", "localhost.evil.example"]
)
def test_a_name_pointed_at_us_is_refused(page, host: str) -> None:
    assert page.get("/api/runs", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost:8265", "127.0.0.1", "[::1]:8265", "LOCALHOST"])
def test_our_own_names_are_answered(page, host: str) -> None:
    assert page.get("/api/runs", headers={"Host": host}).status_code == 200


def test_with_a_token_nothing_is_answered_without_it(suite: Path) -> None:
    asked = client(suite, token=TOKEN)
    for path in ("/", "/api/runs", "/static/main.js", "/?token=wrong", "/api/runs?token=" + TOKEN):
        assert asked.get(path).status_code == 401
    assert asked.get("/api/runs", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert asked.get("/api/runs", headers={"Cookie": f"{asked.app.cookie}=wrong"}).status_code == 401


def test_the_printed_address_opens_the_page_and_leaves_no_token_in_it(suite: Path) -> None:
    asked = client(suite, token=TOKEN)
    answer = asked.get(f"/?token={TOKEN}", follow_redirects=False)
    assert answer.status_code == 303 and answer.headers["location"] == "/"
    assert "HttpOnly" in answer.headers["set-cookie"] and "SameSite=lax" in answer.headers["set-cookie"]
    assert asked.get("/api/runs").status_code == 200


def test_only_reading_is_allowed(page) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert page.request(method, "/api/runs").status_code == 405


@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/main.js", "/nowhere", "/api/run/nobody"])
def test_every_answer_forbids_foreign_scripts_and_frames(page, path: str) -> None:
    headers = page.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2f..%2fruns.py", "/static//etc/passwd",
        "/api/run/..%2f..%2fetc", "/api/run/%2fetc%2fpasswd", "/api/run/../../x/log", "/plotly.min.js/../x",
    ],
)  # fmt: skip
def test_no_path_leads_out(page, path: str) -> None:
    answer = page.get(path)
    assert answer.status_code == 404 and "root:" not in answer.text and "import" not in answer.text


def test_a_link_in_a_run_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root:x:0:0")
    run = factory.make_run(tmp_path / "runs")
    asked = client(tmp_path / "runs")
    number = asked.get("/api/runs").json()["rows"][0]["id"]
    run.log_file.symlink_to(tmp_path / "secret")
    (run.path / "samples.jsonl").symlink_to(tmp_path / "secret")
    for path in (f"/api/run/{number}/log", f"/api/run/{number}"):
        answer = asked.get(path)
        assert answer.status_code == 400 and "root:x" not in answer.text and "training.log is a link" in answer.text


def test_what_lies_beside_a_given_run_but_outside_the_given_folder_is_not_read(suite: Path) -> None:
    whole = client(suite).get("/api/compare").json()["comparisons"][0]
    alone = client(suite / "oelm_freeze-s0", suite / "baseline-s0").get("/api/compare").json()["comparisons"][0]
    assert any("0.957" in cell for row in whole["rows"] for cell in row)
    assert not any("0.957" in cell for row in alone["rows"] for cell in row)


def test_our_scripts_never_write_markup() -> None:
    for file in STATIC.glob("*.js"):
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert word not in file.read_text(), f"{file.name} uses {word}"
    assert "<script>" not in (STATIC / "index.html").read_text() and "style=" not in (STATIC / "index.html").read_text()
