"""Two trained runs of a very small GPT, and a stock GPT-2 with the same vocabulary."""

import pytest

from oelm.training.config import RunConfig
from oelm.training.trainer import train

SHAPE = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64, "max_seq_len": 96, "positions": "rotary"}


@pytest.fixture(scope="session")
def runs(fables_folder, tmp_path_factory):
    """Folders of the methods baseline (two seeds), oelm_freeze with offset, and signs_qk."""
    root = tmp_path_factory.mktemp("evaluation")
    for method, seed in (("baseline", 0), ("baseline", 1), ("oelm_freeze+offset", 0), ("signs_qk", 0)):
        config = {
            "method": method,
            "seed": seed,
            "model": {"size": "demo", "overrides": SHAPE},
            "data": {"path": str(fables_folder)},
            "training": {"max_steps": 3, "batch_size": 4, "eval_every": 3},
            "runtime": {"device": "cpu", "threads": 1},
        }
        train(RunConfig.parse(config), root / f"{method.partition('+')[0]}-{seed}")
    return root


@pytest.fixture(scope="session")
def stock(fables_folder, tmp_path_factory):
    """A model folder of transformers that oelm did not make."""
    import shutil

    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("stock")
    config = GPT2Config(vocab_size=512, n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(folder)
    shutil.copy(fables_folder / "tokenizer.json", folder)
    return folder
