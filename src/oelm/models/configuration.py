"""Our GPT's shape as a transformers configuration, for `AutoConfig`.

It is apart from the models of `oelm.models.huggingface`, because transformers loads configurations without models.
"""

from dataclasses import asdict, fields
from typing import Any

from transformers.configuration_utils import PreTrainedConfig
from transformers.models.auto.configuration_auto import AutoConfig

from oelm.models.gpt import MODEL_TYPE, GPTConfig


class HFGPTConfig(PreTrainedConfig):
    """GPTConfig's fields as a transformers configuration."""

    model_type = MODEL_TYPE
    attribute_map = {  # noqa: RUF012 - transformers reads it as a plain class attribute
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "max_position_embeddings": "max_seq_len",
        "intermediate_size": "d_ff",
    }

    def __init__(self, **kwargs: Any) -> None:
        defaults = asdict(GPTConfig())
        ours = GPTConfig(**{name: kwargs.pop(name, default) for name, default in defaults.items()})
        for name, value in asdict(ours).items():
            setattr(self, name, value)
        kwargs.setdefault("tie_word_embeddings", True)
        super().__init__(**kwargs)

    def to_gpt_config(self) -> GPTConfig:
        return GPTConfig(**{f.name: getattr(self, f.name) for f in fields(GPTConfig)})


AutoConfig.register(MODEL_TYPE, HFGPTConfig)
