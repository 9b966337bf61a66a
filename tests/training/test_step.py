"""What decays and what does not."""

import oelm
from oelm.training.step import parameter_groups


def test_what_does_not_start_near_zero_does_not_decay_towards_it():
    model = oelm.GPT(oelm.GPTConfig.of_size("demo", vocab_size=64))
    oelm.freeze(model, "baseline+scale+gain+mix+shift+rank=2")
    decay = {name: group["weight_decay"] for group in parameter_groups(model, 0.1) for name in group["names"]}
    assert decay.keys() == dict(model.named_parameters()).keys()
    query = "blocks.0.attention.query"
    assert all(decay[f"{query}.{adapter}"] == 0 for adapter in ("scale", "gain", "mix", "shift"))
    assert all(decay[f"{query}.{adapter}"] == 0.1 for adapter in ("base.weight", "up", "down"))
