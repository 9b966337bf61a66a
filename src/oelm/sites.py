"""Where queries and keys live in each architecture.

A `Layout` describes one attention class: the names of its query and key modules and of its head counts. Sites are found
by the class of the attention module, so every model built from it is covered, whatever its head. A new architecture
is a row of LAYOUTS (or, from outside, `register_sites`).

>>> from oelm import GPT, GPTConfig
>>> attention_sites(GPT(GPTConfig.of_size("demo", vocab_size=64)))[0].path
'blocks.0.attention.query'
"""

import re
from dataclasses import dataclass

from torch import nn

from oelm.errors import OelmError


@dataclass(frozen=True)
class Layout:
    """The names by which an attention class holds its query and key projections."""

    query: str
    key: str
    num_heads: str
    """Attribute with the number of query heads."""
    num_key_heads: str | None = None
    """Attribute with the number of key heads, where it differs (grouped-query attention)."""

    def fits(self, module: nn.Module) -> bool:
        """Another project may have an attention class of the same name that is built differently."""
        names = [self.query, self.key, self.num_heads, *filter(None, [self.num_key_heads])]
        return all(hasattr(module, name) for name in names)


@dataclass(frozen=True)
class Site:
    """One query or key projection of a model."""

    path: str
    role: str
    layer: int
    num_heads: int

    def module(self, model: nn.Module) -> nn.Module:
        return model.get_submodule(self.path)


LAYOUTS: dict[str, Layout] = {
    "CausalSelfAttention": Layout("query", "key", "num_heads"),  # oelm.models.gpt
}


def register_sites(attention_class: str, layout: Layout) -> None:
    """Teach oelm another attention class, by the name of the class."""
    LAYOUTS[attention_class] = layout


def attention_sites(model: nn.Module) -> list[Site]:
    """Every query and key projection, in the order of the model's modules."""
    sites = [site for path, module in model.named_modules() for site in _sites_of(path, module)]
    if not sites:
        raise OelmError(
            f"{type(model).__name__} has no attention that oelm knows; known: {', '.join(LAYOUTS)}. "
            "Another class is added with oelm.register_sites(class_name, Layout(...))"
        )
    return sites


def _sites_of(path: str, module: nn.Module) -> list[Site]:
    layout = LAYOUTS.get(type(module).__name__)
    if layout is None or not layout.fits(module):
        return []
    numbers = re.findall(r"(?<=\.)\d+(?=\.)", f".{path}.")
    layer = int(numbers[-1]) if numbers else 0
    heads = getattr(module, layout.num_heads)
    key_heads = getattr(module, layout.num_key_heads) if layout.num_key_heads else heads
    prefix = f"{path}." if path else ""
    return [
        Site(prefix + layout.query, "query", layer, heads),
        Site(prefix + layout.key, "key", layer, key_heads),
    ]
