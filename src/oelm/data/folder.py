"""What every prepared folder has, whether its texts are for a language model or for a classifier."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class PreparedFolder:
    path: Path
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        return self.manifest["name"]

    @property
    def vocab_size(self) -> int:
        return self.manifest["tokenizer"]["vocab_size"]

    @property
    def tokenizer_hash(self) -> str:
        return self.manifest["tokenizer"]["hash"]

    @property
    def tokenizer_path(self) -> Path:
        return self.path / "tokenizer.json"
