"""The dashboard over folders of made runs, asked as a browser would ask."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

import factory
from oelm.cli.report import judge
from oelm.dashboard import board as board_module
from oelm.dashboard.server import build


@pytest.fixture(autouse=True)
def every_look_is_a_scan(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "browser" in request.module.__name__:
        return
    monkeypatch.setattr(board_module, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(board_module, "MOST_SECONDS", 0.0)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return factory.make_suite(tmp_path / "runs", ("baseline", "oelm_freeze"), (0, 1, 2))


def client(*folders: Path, **options) -> TestClient:
    return TestClient(build(list(folders), judge, **options), base_url="http://127.0.0.1:8265")


@pytest.fixture
def page(suite: Path) -> TestClient:
    return client(suite)
