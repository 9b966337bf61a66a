from types import SimpleNamespace

import pytest
import torch
from torch import nn

import oelm
from architectures import ARCHITECTURES
from oelm.freezing.sites import LAYOUTS, Layout, attention_sites


def test_a_gpt_has_one_query_and_one_key_per_layer():
    model = oelm.GPT(oelm.GPTConfig.of_size("demo", vocab_size=64))
    sites = attention_sites(model)
    assert [(s.layer, s.role) for s in sites] == [(layer, role) for layer in range(2) for role in ("query", "key")]
    assert all(s.num_heads == 4 for s in sites)
    assert sites[3].path == "blocks.1.attention.key"
    assert sites[3].module(model) is model.blocks[1].attention.key


def test_a_model_without_attention_is_refused_with_the_way_out():
    with pytest.raises(oelm.OelmError, match=r"Sequential has no attention that oelm knows.*register_sites"):
        attention_sites(nn.Sequential(nn.Linear(4, 4)))


def test_a_class_of_the_same_name_that_is_built_differently_is_refused_not_crashed_into():
    other = type("CausalSelfAttention", (nn.Module,), {})  # as in other projects, with a fused projection
    with pytest.raises(oelm.OelmError, match="has no attention that oelm knows"):
        attention_sites(nn.Sequential(other()))


@pytest.mark.parametrize(
    ("layout", "missing"),
    [(Layout("to_q", "to_k", "num_heads"), "num_heads"), (Layout("to_query", "to_k", "heads"), "to_query"),
     (Layout("to_q", "to_k", "config.heads"), "config.heads"),
     (Layout("to_q", "to_k", "heads", "config.kv"), "config.kv")],
)  # fmt: skip
def test_a_layout_that_names_what_is_not_there_is_told_so(monkeypatch, layout, missing):
    monkeypatch.setattr("oelm.freezing.sites.LAYOUTS", {**LAYOUTS, "PairwiseAttention": layout})
    with pytest.raises(oelm.OelmError, match=f": its PairwiseAttention at '0' has no '{missing}'; a class is added"):
        attention_sites(nn.ModuleList([PairwiseAttention()]))


class PairwiseAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.heads = nn.Linear(16, 16), nn.Linear(16, 8), 4
        self.kv_heads, self.config = 2, SimpleNamespace(layers=1)


def test_all_attention_is_treated_or_none(monkeypatch):
    layout = Layout("to_q", "to_k", "heads", num_key_heads="kv_heads")
    monkeypatch.setattr("oelm.freezing.sites.LAYOUTS", {**LAYOUTS, "PairwiseAttention": layout})
    model = nn.ModuleList([PairwiseAttention(), PairwiseAttention()])
    model[1].heads = None
    with pytest.raises(oelm.OelmError, match=r"1 of 2 attention modules .* at '1' has None as 'heads' where a number"):
        oelm.freeze(model, "oelm_freeze")
    assert all(p.requires_grad for p in model.parameters())


def test_layers_are_counted_inside_a_container():
    model = nn.Sequential(ARCHITECTURES["bert"].model())
    report = oelm.freeze(model, "oelm_freeze+layers=last1")
    (last,) = {site.layer for site in report.sites if site.frozen}
    assert last == max(site.layer for site in report.sites) > 0


def test_what_is_no_layout_is_not_registered():
    with pytest.raises(oelm.OelmError, match=r"needs a Layout\(query, key, num_heads, …\), not 'to_q'"):
        oelm.register_sites(PairwiseAttention, "to_q")


@pytest.mark.parametrize("named", ["PairwiseAttention", PairwiseAttention])
def test_a_user_can_register_an_attention_class(monkeypatch, named):
    monkeypatch.setattr("oelm.freezing.sites.LAYOUTS", dict(LAYOUTS))
    oelm.register_sites(named, Layout("to_q", "to_k", "heads", num_key_heads="kv_heads"))
    model = nn.ModuleList([PairwiseAttention()])
    report = oelm.freeze(model, "oelm_freeze")
    assert [(s.path, s.num_heads) for s in report.sites] == [("0.to_q", 4), ("0.to_k", 2)]
    assert report.frozen_parameters == 16 * 16 + 16 + 8 * 16 + 8  # biases are frozen too
    assert oelm.orthonormality_error(model[0].to_k.weight, 2) < 1e-5
    assert not any(p.requires_grad for p in model.parameters())
    assert torch.isfinite(model[0].to_q.weight).all()
