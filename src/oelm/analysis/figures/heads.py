"""Layer × head: where the weight of every attention head goes."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from oelm.analysis.figures.style import FAINT, PAPER, page_style, saved

PANELS = {
    "induction": "weight on what followed last time",
    "previous": "weight on the previous token",
    "entropy": "entropy (nats)",
    "span": "span (tokens back)",
}


def heads_figure(heads: dict[str, Any], title: str) -> bytes:
    """A PNG of `heads` in a probe's record; grey where weights are no probabilities."""
    shape = np.array(heads["entropy"], dtype=float).shape
    with page_style():
        figure = Figure(figsize=(2.6 + shape[1], 2.2 + 0.9 * shape[0]))
        for axes, (name, what) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
            values = np.array(heads[name], dtype=float)
            axes.set_facecolor(FAINT)
            shares = {"vmin": 0.0, "vmax": 1.0} if name in ("induction", "previous") else {}
            image = axes.imshow(values, cmap="viridis", aspect="auto", **shares)
            axes.set(title=what, xlabel="head", ylabel="layer", xticks=range(shape[1]), yticks=range(shape[0]))
            axes.grid(visible=False)
            figure.colorbar(image, ax=axes).outline.set_edgecolor(PAPER)
        figure.suptitle(f"{title}: {heads['text']}")
        figure.tight_layout()
        return saved(figure, "png", dpi=130)
