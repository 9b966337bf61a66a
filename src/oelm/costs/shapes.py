"""Parameters and matmuls of a Transformer from its shape alone: plain arithmetic, without torch.

>>> gpt = Shape("decoder", width=512, layers=6, heads=8, ffn=2048, vocabulary=50257, positions=512, sequence_length=512)
>>> gpt.parameters, gpt.qk_parameters
(44896768, 3145728)
>>> round(gpt.saving_by_freezing, 3)
0.023
"""

from dataclasses import dataclass

from oelm.costs.flops import Flops, Matmul, attention_flops, count


@dataclass(frozen=True)
class Shape:
    """A `decoder` as our GPT (no biases in attention, tied head), or an `encoder` as BERT with a classifier."""

    family: str
    width: int
    layers: int
    heads: int
    ffn: int
    vocabulary: int
    positions: int
    sequence_length: int
    labels: int = 0

    @property
    def is_encoder(self) -> bool:
        return self.family == "encoder"

    @property
    def parameters(self) -> int:
        d = self.width
        attention = 4 * d * d + (4 * d if self.is_encoder else 0)
        layer = attention + 2 * d * self.ffn + self.ffn + d + 2 * 2 * d  # two LayerNorms
        embeddings = (self.vocabulary + self.positions + (2 if self.is_encoder else 0)) * d
        head = d * d + d + (d + 1) * self.labels if self.is_encoder else 0  # pooler and classifier
        return embeddings + self.layers * layer + 2 * d + head  # one more LayerNorm, first or last

    @property
    def qk_parameters(self) -> int:
        return self.layers * 2 * (self.width**2 + (self.width if self.is_encoder else 0))

    @property
    def saving_by_freezing(self) -> float:
        """The share of a training step's matmul FLOPs that frozen queries and keys save: an upper bound of the time."""
        return 1 - self.flops(frozen=True).step / self.flops(frozen=False).step

    def flops(self, *, frozen: bool) -> Flops:
        d = self.width
        matmuls = [
            Matmul("qk", self.layers * 2 * d * d, trained=not frozen),
            Matmul("vo", self.layers * 2 * d * d),
            Matmul("ffn", self.layers * 2 * d * self.ffn),
            *([] if self.is_encoder else [Matmul("head", self.vocabulary * d)]),
        ]
        attention = self.layers * attention_flops(d, self.sequence_length, causal=not self.is_encoder)
        return count(matmuls, attention)
