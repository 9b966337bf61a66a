"""What `oelm bench` measured, as a table and a figure. Reads its JSON only; no torch."""

import io
from pathlib import Path
from typing import Any

from oelm.bench.ratios import RULE, ratio
from oelm.files import write_atomically, write_json

PHASES = ("data", "forward", "backward", "optimizer", "other")
TIMES = ("arm", "step", "ratio [95 %]", "by FLOPs", "verdict", "× limit")
SHARES = ("arm", *(f"{phase} %" for phase in PHASES))
MEMORY = ("arm", "peak memory", "predicted", "of the reference")
LEFT = ("arm", "verdict")
_SHADES = ("#999933", "#56b4e9", "#0072b2", "#e69f00", "#6a737d")


def write_bench(result: dict[str, Any], folder: Path) -> list[Path]:
    """bench.json, bench.md, bench.svg and bench.png; each file is complete or absent."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "bench.json", result)
    write_atomically(folder / "bench.md", markdown(result))
    for suffix, content in draw(result).items():
        write_atomically(folder / f"bench.{suffix}", content)
    return [folder / f"bench.{suffix}" for suffix in ("json", "md", "svg", "png")]


def times(result: dict[str, Any]) -> list[list[str]]:
    """One row of text per arm, in the order they were named: the columns of TIMES."""
    table, base = [], result["arms"][result["reference"]].get("seconds", [])
    for name, arm in result["arms"].items():
        interval = f"{arm['ratio']:.3f} [{arm['low']:.3f}, {arm['high']:.3f}]"
        ratios = ["1", "1"] if name == result["reference"] else [interval, f"{arm['predicted']:.3f}"]
        milliseconds = f"{1000 * arm['median_seconds']:,.1f} ms"
        table.append([name, milliseconds, *ratios, _verdict(arm, base), f"{arm['times_limit']:.2f}"])
    return table


def _verdict(arm: dict[str, Any], base: list[float]) -> str:
    """As recorded; of a record from before the sign test, as its rounds say today."""
    if arm["verdict"] == "reference" or "sign_p" in arm or "seconds" not in arm:
        return arm["verdict"]
    return ratio(arm["seconds"], base)["verdict"]


def shares(result: dict[str, Any]) -> list[list[str]]:
    """How every arm's step is divided among its phases, in percent: the columns of SHARES."""
    return [
        [name, *("–" if (share := arm["shares"][phase]) is None else f"{100 * share:.1f}" for phase in PHASES)]
        for name, arm in result["arms"].items()
    ]


def memory(result: dict[str, Any]) -> list[list[str]]:
    """Every arm's measured peak, and the predicted one of our own methods: the columns of MEMORY."""
    held = {name: arm["memory"] for name, arm in result["arms"].items()}
    base = held[result["reference"]]["measured_bytes"]
    megabytes = lambda value: "–" if value is None else f"{value / 1e6:,.0f} MB"  # noqa: E731
    return [
        [name, megabytes(m["measured_bytes"]), megabytes(m["predicted_bytes"]), f"{m['measured_bytes'] / base:.3f}"]
        for name, m in held.items()
    ]


def tables(result: dict[str, Any]) -> list[tuple[tuple[str, ...], list[list[str]]]]:
    """Header and rows of all there is to show."""
    measured = all("memory" in arm for arm in result["arms"].values())
    found = [(TIMES, times(result)), (SHARES, shares(result))]
    return [*found, (MEMORY, memory(result))] if measured else found


def headline(result: dict[str, Any]) -> str:
    """The shape and the protocol, in one line."""
    shape, protocol = result["shape"], result["protocol"]
    dropout = f", dropout {shape['dropout']:g}" if shape["dropout"] else ""
    return (
        f"{shape['size']}, {shape['batch']} × {shape['length']} tokens, vocabulary {shape['vocab']:,}{dropout}; "
        f"{protocol['rounds']} rounds on {protocol['device']} (threads: {protocol['threads']}), "
        f"{protocol['precision']}, {'compiled' if protocol['compiled'] else 'eager'}"
    )


def footnotes(result: dict[str, Any]) -> list[str]:
    best = max(result["gemm"]["shapes"], key=lambda row: row["flops_per_second"])
    shape = " × ".join(map(str, best["shape"]))
    return [
        f"Ratios are to {result['reference']}, taken round by round. {RULE}.",
        f"Matmul peak of this machine in this run: {best['flops_per_second'] / 1e9:,.1f} GFLOP/s ({shape}). "
        "× limit: the step's median time over its matmul FLOPs at that peak.",
    ]


def markdown(result: dict[str, Any]) -> str:
    facts = result["environment"]
    made = f"{facts['processor']}, torch {facts['packages']['torch']}, commit {facts['git_commit'] or 'unknown'}."
    lines = [
        f"# Step times: {headline(result)}",
        "",
        *(line for header, rows in tables(result) for line in (*_markdown_table(header, rows), "")),
        *(f"- {note}" for note in (*footnotes(result), made)),
        "",
        "![step times](bench.svg)",
        "",
    ]
    return "\n".join(lines)


def _markdown_table(header: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    rule = [":--" if name in LEFT else "--:" for name in header]
    return ["| " + " | ".join(cells) + " |" for cells in (header, rule, *rows)]


def draw(result: dict[str, Any]) -> dict[str, bytes]:
    """The figure as SVG and PNG: every arm's step split into its phases, beside the least its FLOPs allow."""
    from matplotlib.figure import Figure

    from oelm.analysis.figures.style import FAINT, INK, page_style

    arms = result["arms"]
    with page_style("bench"):
        figure = Figure(figsize=(7.4, 1.9 + 0.45 * len(arms)), layout="constrained")
        axes = figure.subplots()
        for y, arm in enumerate(arms.values()):
            _bar(axes, y, arm)
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
        return {suffix: _saved(figure, suffix) for suffix in ("svg", "png")}


def _bar(axes: Any, y: int, arm: dict[str, Any]) -> None:
    left = 0.0
    for phase, shade in zip(PHASES, _SHADES, strict=True):
        width = 1000 * arm["median_seconds"] * (arm["shares"][phase] or 0)
        axes.barh(y, width, left=left, height=0.6, color=shade, alpha=0.75)
        left += width


def _beside(arm: dict[str, Any]) -> str:
    limit = f"{arm['times_limit']:.2f}× limit"
    if arm["verdict"] == "reference":
        return f"reference, {limit}"
    return f"{arm['ratio']:.2f} [{arm['low']:.2f}, {arm['high']:.2f}], {limit}"


def _saved(figure: Any, suffix: str) -> bytes:
    out = io.BytesIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type")) if suffix == "svg" else {"Software": None}
    figure.savefig(out, format=suffix, metadata=metadata)
    return out.getvalue()
