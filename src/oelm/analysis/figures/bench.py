"""The figure of `oelm bench`: every arm's step split into its phases, beside the least its FLOPs allow."""

from typing import Any

from matplotlib.figure import Figure

from oelm.analysis.figures.style import FAINT, INK, page_style, saved
from oelm.bench.report import PHASES, headline

_SHADES = ("#999933", "#56b4e9", "#0072b2", "#e69f00", "#6a737d")


def draw(result: dict[str, Any]) -> dict[str, bytes]:
    """As SVG and PNG."""
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
            axes.text(1.02, y, _beside(arm), transform=axes.get_yaxis_transform(), va="center", fontsize=8.5)
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


def _beside(arm: dict[str, Any]) -> str:
    limit = f"{arm['times_limit']:.2f}× limit"
    if arm["verdict"] == "reference":
        return f"reference, {limit}"
    return f"{arm['ratio']:.2f} [{arm['low']:.2f}, {arm['high']:.2f}], {limit}"
