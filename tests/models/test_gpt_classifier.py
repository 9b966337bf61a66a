import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import oelm
from oelm.models.huggingface import GPTForSequenceClassification, HFGPTConfig

SMALL = {
    "vocab_size": 64,
    "d_model": 32,
    "num_layers": 2,
    "num_heads": 4,
    "d_ff": 64,
    "max_seq_len": 16,
    "dropout": 0.0,
}
IDS = torch.tensor([[5, 6, 7, 8, 9], [10, 11, 12, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def classifier(**settings) -> GPTForSequenceClassification:
    torch.manual_seed(0)
    return GPTForSequenceClassification(HFGPTConfig(**{**SMALL, "dropout": 0.0, "num_labels": 3, **settings})).eval()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_padding_changes_no_score(causal, positions):
    model = classifier(causal=causal, positions=positions)
    with torch.no_grad():
        both = model(IDS, MASK).logits
        alone = torch.cat([model(IDS[:1]).logits, model(IDS[1:, :3]).logits])
    assert both.shape == (2, 3)
    torch.testing.assert_close(both, alone, atol=1e-6, rtol=1e-5)


def hidden_of_first_token(model, ids):
    with torch.no_grad():
        return model.gpt.hidden(ids)[0, 0]


def test_only_a_bidirectional_classifier_looks_ahead():
    other = IDS.clone()
    other[0, 4] = 20
    for causal in (True, False):
        model = classifier(causal=causal)
        same = torch.equal(hidden_of_first_token(model, IDS[:1]), hidden_of_first_token(model, other[:1]))
        assert same == causal


def test_a_language_model_checkpoint_becomes_a_classifier(tmp_path):
    torch.manual_seed(1)
    language_model = oelm.GPT(oelm.GPTConfig(**SMALL))
    language_model.save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=2).eval()
    assert isinstance(model, GPTForSequenceClassification)
    assert model(IDS, MASK).logits.shape == (2, 2)
    assert model.score.weight.std().item() == pytest.approx(0.02, rel=0.4)
    torch.testing.assert_close(model.gpt.hidden(IDS), language_model.eval().hidden(IDS))
    assert oelm.freeze(model, "oelm_freeze").sites[0].init == "head_qr"


def test_what_a_checkpoint_lacks_is_drawn_and_what_it_has_is_kept(tmp_path, monkeypatch):
    """Memory that nobody wrote to may hold anything; here it holds what nobody could overlook."""
    model = classifier(num_labels=200)
    assert model.score.weight.std().item() == pytest.approx(0.02, rel=0.1)
    oelm.freeze(model, "permutation_qk+mix+rank=2+shift")
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if name.startswith("gpt.blocks.1.")}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    empty = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda like, **k: empty(like, **k).fill_(77))
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    state = loaded.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in kept.items())
    assert loaded.score.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert loaded.gpt.embedding.weight.std().item() == pytest.approx(0.02, rel=0.1)
    attention, norm = loaded.gpt.blocks[0].attention, loaded.gpt.blocks[0].ffn_norm
    assert sorted(attention.query.base.order.tolist()) == list(range(32))
    assert torch.equal(attention.query.mix, torch.eye(8).repeat(4, 1, 1)) and attention.key.up.abs().sum() == 0
    assert norm.weight.eq(1).all() and norm.bias.eq(0).all()


def test_a_classifier_round_trips_and_its_loss_is_the_cross_entropy(tmp_path):
    model = classifier(causal=False)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert not loaded.config.causal
    outputs = loaded(IDS, MASK, labels=torch.tensor([0, 2]))
    torch.testing.assert_close(outputs.logits, model(IDS, MASK).logits)
    torch.testing.assert_close(outputs.loss, torch.nn.functional.cross_entropy(outputs.logits, torch.tensor([0, 2])))


def test_a_bidirectional_language_model_is_refused(tmp_path):
    classifier(causal=False).save_pretrained(tmp_path)
    with pytest.raises(oelm.OelmError, match="sees the tokens it should predict"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(oelm.OelmError, match="causal is 'no'"):
        oelm.GPTConfig(causal="no")
