"""What `oelm bench` measured, as tables. Reads its JSON only; no torch. `analysis/figures/commands.py` draws it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oelm.bench.ratios import RULE, ratio
from oelm.files import write_atomically, write_json

PHASES = ("data", "forward", "backward", "optimizer", "other")
TIMES = ("arm", "step", "ratio [95 %]", "by FLOPs", "verdict", "× limit")
SHARES = ("arm", *(f"{phase} %" for phase in PHASES))
MEMORY = ("arm", "peak memory", "predicted", "of the reference")
WRITING = ("context", "arm", "prefill tok/s", "tok/s", "time [95 %]", "verdict", "cache", "stream cache")
LEFT = ("arm", "verdict")


def write_bench(result: dict[str, Any], folder: Path, figure: Mapping[str, bytes]) -> list[Path]:
    """bench.json (or decode.json), the same as .md, and the figure's formats; each file is complete or absent."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = "decode" if "contexts" in result else "bench"
    write_json(folder / f"{stem}.json", result)
    write_atomically(folder / f"{stem}.md", markdown(result))
    for suffix, content in figure.items():
        write_atomically(folder / f"{stem}.{suffix}", content)
    return [folder / f"{stem}.{suffix}" for suffix in ("json", "md", *figure)]


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


def writing(result: dict[str, Any]) -> list[list[str]]:
    """What `oelm bench --decode` measured: the columns of WRITING."""
    mebibytes = lambda value: "–" if value is None else f"{value / 2**20:,.2f} MiB"  # noqa: E731
    return [
        [
            f"{int(context):,}",
            name,
            *(f"{arm[f'{what}tokens_per_second']:,.0f}" for what in ("prefill_", "")),
            "1" if arm["verdict"] == "reference" else f"{arm['ratio']:.3f} [{arm['low']:.3f}, {arm['high']:.3f}]",
            arm["verdict"],
            *(mebibytes(arm[f"{what}_bytes"]) for what in ("cache", "stream")),
        ]
        for context, arms in result["contexts"].items()
        for name, arm in arms.items()
    ]


def tables(result: dict[str, Any]) -> list[tuple[tuple[str, ...], list[list[str]]]]:
    """Header and rows of all there is to show."""
    if "contexts" in result:
        return [(WRITING, writing(result))]
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
    if "contexts" in result:
        return [
            f"Time per token ÷ {result['reference']}'s, round by round. {RULE}.",
            "Stream cache: where keys are a fixed map of the stream, a cache could hold the stream instead of keys and "
            "values, which would then be computed again. Counted, not built.",
        ]
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
        f"# {'Writing' if 'contexts' in result else 'Step times'}: {headline(result)}",
        "",
        *(line for header, rows in tables(result) for line in (*_markdown_table(header, rows), "")),
        *(f"- {note}" for note in (*footnotes(result), made)),
        "",
        *([] if "contexts" in result else ["![step times](bench.svg)", ""]),
    ]
    return "\n".join(lines)


def _markdown_table(header: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    rule = [":--" if name in LEFT else "--:" for name in header]
    return ["| " + " | ".join(cells) + " |" for cells in (header, rule, *rows)]
