"""The figures of two commands: `oelm bench` draws steps split into their phases, `oelm probe` layer × head."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from oelm.analysis.figures.style import FAINT, INK, PAPER, page_style, saved
from oelm.bench.report import PHASES, headline

_SHADES = ("#999933", "#56b4e9", "#0072b2", "#e69f00", "#6a737d")
PANELS = {
    "induction": "weight on what followed last time",
    "previous": "weight on the previous token",
    "entropy": "entropy (nats)",
    "span": "span (tokens back)",
}


def draw(result: dict[str, Any]) -> dict[str, bytes]:
    """Every arm's step split into its phases, beside the least its FLOPs allow, as SVG and PNG."""
    arms = result["arms"]
    with page_style("bench"):
        figure = Figure(figsize=(7.4, 1.9 + 0.45 * len(arms)), layout="constrained")
        axes = figure.subplots()
        for y, arm in enumerate(arms.values()):
            left = 0.0
            for phase, shade in zip(PHASES, _SHADES, strict=True):
                width = 1000 * arm["median_seconds"] * (arm["shares"][phase] or 0)
                axes.barh(y, width, left=left, height=0.6, color=shade, alpha=0.75)
                left += width
            low, high = (1000 * q for q in arm["quartiles_seconds"])
            axes.plot([low, high], [y, y], color=INK, linewidth=1.4)
            axes.plot(1000 * arm["limit_seconds"], y, "|", color="#d55e00", markersize=20, markeredgewidth=2)
            ratio = f"{arm['ratio']:.2f} [{arm['low']:.2f}, {arm['high']:.2f}]"
            beside = f"{'reference' if arm['verdict'] == 'reference' else ratio}, {arm['times_limit']:.2f}× limit"
            axes.text(1.02, y, beside, transform=axes.get_yaxis_transform(), va="center", fontsize=8.5)
        for phase, shade in zip(PHASES, _SHADES, strict=True):
            axes.barh([0], [0], color=shade, label=phase)
        axes.plot([], [], "|", color="#d55e00", markersize=10, markeredgewidth=2, label="FLOPs ÷ matmul peak")
        axes.set_yticks(range(len(arms)), list(arms))
        axes.set_ylim(len(arms) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.set_axisbelow(True)
        axes.set_xlabel("milliseconds per training step (median; line: quartiles)")
        axes.set_title(headline(result), fontsize=9, color=FAINT, fontweight="normal")
        figure.legend(loc="outside lower left", ncols=6, frameon=False, fontsize=8)
        return {suffix: saved(figure, suffix) for suffix in ("svg", "png")}


def heads_figure(heads: dict[str, Any], title: str) -> bytes:
    """Where the weight of every head goes: a PNG of `heads` in a probe's record; grey where it is no probability."""
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
