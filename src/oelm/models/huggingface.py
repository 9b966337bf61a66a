"""Our GPT behind transformers' Auto classes: `AutoModelForCausalLM` with `.generate()`, and as a classifier.

Importing transformers takes seconds, so training a language model never comes here; `import oelm` arranges that this
module is loaded as soon as transformers' Auto classes are.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, DynamicCache, GenerationMixin
from transformers.initialization import copy_
from transformers.modeling_outputs import CausalLMOutputWithPast, SequenceClassifierOutput
from transformers.modeling_utils import PreTrainedModel

from oelm.errors import OelmError
from oelm.freezing.projections import CONFIG_KEY, FixedProjection, Projection, has_shift, rebuild
from oelm.models.configuration import HFGPTConfig
from oelm.models.gpt import GPT, INIT_STD, without_prefix


def build_gpt(config: HFGPTConfig) -> GPT:
    """Our GPT with the projections that its config names."""
    gpt = GPT(config.to_gpt_config())
    rebuild(gpt, without_prefix(getattr(config, CONFIG_KEY, {})))
    return gpt


class GPTPreTrainedModel(PreTrainedModel):
    config_class = HFGPTConfig
    base_model_prefix = "gpt"
    _supports_sdpa = True
    _no_split_modules = ["Block"]  # noqa: RUF012
    rebuilds_projections = True  # from its config, in build_gpt
    accepts_loss_kwargs = False  # the loss is a mean: whoever accumulates gradients must divide
    gpt: GPT

    def init_weights(self) -> None:
        """Nothing: a fresh model has drawn its weights by now."""

    def _init_weights(self, module: nn.Module) -> None:
        """Draw what a checkpoint lacks; what was loaded is left alone by transformers' own initialisers."""
        super()._init_weights(module)
        fresh: nn.Module | None = None
        if isinstance(module, Projection):
            fresh = Projection(module.base, module.num_heads, module.adapters)
        elif isinstance(module, FixedProjection):
            fresh = FixedProjection(module.kind, module.out_features, module.in_features, num_heads=module.num_heads)
        if fresh is not None:
            for name, start in [*fresh.named_parameters(recurse=False), *fresh.named_buffers(recurse=False)]:
                copy_(getattr(module, name), start)

    def get_input_embeddings(self) -> nn.Module:
        return self.gpt.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.gpt.embedding = value  # type: ignore[assignment]


class GPTForCausalLM(GPTPreTrainedModel, GenerationMixin):
    def __init__(self, config: HFGPTConfig) -> None:
        super().__init__(config)
        if not config.causal:
            raise OelmError("a GPT with causal: false sees the tokens it should predict; use it as a classifier only")
        self.gpt = build_gpt(config)
        self.post_init()

    def get_output_embeddings(self) -> None:
        """The head reads the embedding matrix itself: there is no second tensor to tie."""
        return None

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As transformers does it; without a cache where a token shift asks for more than one."""
        if has_shift(self):
            kwargs["use_cache"] = False
        return super().generate(*args, **kwargs)  # type: ignore[misc]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Labels follow transformers' convention: the same ids as the input, shifted here; −100 is ignored."""
        if use_cache and past_key_values is None and not has_shift(self):
            past_key_values = DynamicCache()
        if attention_mask is None and past_key_values is not None and past_key_values.get_seq_length():
            seen = past_key_values.get_seq_length() + input_ids.shape[1]
            attention_mask = input_ids.new_ones(input_ids.shape[0], seen)
        hidden = self.gpt.hidden(
            input_ids, position_ids=position_ids, attention_mask=attention_mask, cache=past_key_values
        )
        logits = self.gpt.head(hidden[:, -logits_to_keep:])
        loss = None
        if labels is not None:
            wanted = labels[:, 1:].flatten().to(logits.device)
            nats = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), wanted, reduction="sum")
            loss = nats / (wanted >= 0).sum().clamp(min=1)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)  # type: ignore[arg-type]


class GPTForSequenceClassification(GPTPreTrainedModel):
    """Class scores from the last real token of every text (B, labels)."""

    def __init__(self, config: HFGPTConfig) -> None:
        super().__init__(config)
        self.gpt = build_gpt(config)
        self.score = nn.Linear(config.d_model, config.num_labels or 2, bias=False)
        nn.init.normal_(self.score.weight, std=INIT_STD)
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **kwargs: Any
    ) -> SequenceClassifierOutput:
        hidden = self.gpt.hidden(input_ids, attention_mask=attention_mask)  # (B, T, d_model)
        places = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        last = (places if attention_mask is None else places * attention_mask).argmax(dim=1)  # whichever side is padded
        logits = self.score(hidden[torch.arange(len(hidden), device=hidden.device), last])
        loss = None if labels is None else F.cross_entropy(logits.float(), labels.to(logits.device))
        return SequenceClassifierOutput(loss=loss, logits=logits)  # type: ignore[arg-type]


AutoModelForCausalLM.register(HFGPTConfig, GPTForCausalLM)
AutoModelForSequenceClassification.register(HFGPTConfig, GPTForSequenceClassification)
