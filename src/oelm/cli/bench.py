"""`oelm bench`: step times that nobody can argue with."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from typer import Argument, Option

from oelm.bench.names import DECODERS, PEERS, arm_name
from oelm.cli.console import AsJson, command_console, echo_json
from oelm.cli.progress import counting_progress
from oelm.errors import OelmError
from oelm.models.shape import GPTConfig


def bench(
    arms: Annotated[
        list[str] | None,
        Argument(
            help="Methods ('oelm methods'), also with modifiers (permutation_qk+rank=8), and peers of the same shape: "
            "gpt2 (Hugging Face), gpt2_fused (with fused AdamW like ours), plain (a GPT of torch's own parts). "
            "(default: baseline oelm_freeze gpt2)",
            metavar="[ARM]…",
            show_default=False,
        ),
    ] = None,
    reference: Annotated[str | None, Option(help="What the others are divided by. (default: the first)")] = None,
    size: Annotated[str, Option(help="demo, tiny, small, medium-512, medium or large.")] = "tiny",
    batch: Annotated[int | None, Option(min=1, help="Sequences. (default: 4 per step; 1 with --decode)")] = None,
    length: Annotated[int | None, Option(min=1, help="Tokens per sequence. (default: the size's own)")] = None,
    vocab: Annotated[int, Option(min=2, help="Vocabulary.")] = 4096,
    dropout: Annotated[float, Option(min=0, max=0.99, help="In every arm: attention, residuals, embedding.")] = 0.0,
    rounds: Annotated[int, Option(help="Rounds; one timed step of every arm in each.")] = 24,
    compiled: Annotated[bool, Option("--compile", help="torch.compile for every arm, peers too.")] = False,
    memory: Annotated[bool, Option("--memory", help="Also measure peak memory, in a process per arm (CPU).")] = False,
    decode: Annotated[bool, Option("--decode", help="Time writing instead: tokens per second, and the cache.")] = False,
    keep_freed: Annotated[bool, Option("--keep-freed/--return-freed", help="Of memory; our trainer keeps it.")] = True,
    device: Annotated[str, Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int | None, Option(min=1, help="CPU threads. (default: torch's own choice)")] = None,
    out: Annotated[Path | None, Option(help="Folder for bench.json, .md, .svg, .png; or decode.json, .md.")] = None,
    as_json: AsJson = False,
    quiet: Annotated[bool, Option("--quiet", help="No progress.")] = False,
) -> None:
    """Time training steps of methods and peers side by side, beside what their FLOPs and this machine allow.

    All arms have one shape and the same made-up batches, and take the trainer's own steps in one process, after a
    warm-up, with the device synchronised. Each round visits every arm once; the order rotates from round to round. The
    table has each step's time, its ratio to the reference with a 95 % interval, the ratio that matmul FLOPs predict,
    how the time is shared among data, forward, backward and optimizer, and how far the step is above the time its FLOPs
    would take at the matmul peak measured in the same run. An arm is called faster or slower only if the interval
    excludes 1 and a sign test over the rounds agrees (p < 0.05).

    With --decode, methods and Hugging Face's models of the same shape (gpt2, llama) write with a key–value cache after
    128, 1,024 and 4,096 tokens (or --length); reading those is timed apart, and the bytes of the cache are counted.

    Leave the machine alone meanwhile. On all sides: float32, SDPA, AdamW, gradients clipped at 1.

    Example: oelm bench baseline oelm_freeze gpt2 --size medium-512 --batch 4 --out results/bench
    """
    if decode and (compiled or memory or dropout):
        raise OelmError("--decode writes with the plain model: leave --compile, --memory and --dropout out")
    usual = ["baseline", "oelm_freeze", *(["signs_qk", *DECODERS] if decode else ["gpt2"])]
    names = [arm_name(name, DECODERS if decode else PEERS) for name in arms or usual]
    GPTConfig.of_size(size)  # what is misspelt is refused before torch is loaded
    import torch

    from oelm.bench.measure import Shape
    from oelm.bench.measure import bench as measure
    from oelm.bench.report import write_bench
    from oelm.training.setup import choose_device

    chosen = choose_device(device, "fp32")
    if threads:
        torch.set_num_threads(threads)
    shape = Shape(size, batch or (1 if decode else 4), length, vocab, dropout)
    if out:
        out.mkdir(parents=True, exist_ok=True)  # minutes of measuring must not be lost to a folder that cannot be made
    with counting_progress(quiet or as_json) as say:
        if decode:
            from oelm.bench.decode import CONTEXTS, bench_decode

            asked = [*([reference] if reference else []), *names]
            contexts = [length] if length else CONTEXTS
            result = bench_decode(asked, shape, contexts=contexts, rounds=rounds, device=chosen, say=say)
        else:
            how = {"reference": reference, "rounds": rounds, "compiled": compiled, "keep_freed": keep_freed}
            result = measure(names, shape, device=chosen, memory=memory, say=say, **how)  # type: ignore[arg-type]
    (echo_json if as_json else _print)(result)
    if out:
        from oelm.analysis.figures.commands import draw

        written = write_bench(result, out, {} if decode else draw(result))
        typer.echo(f"{out}: {', '.join(path.name for path in written)}", err=as_json)


def _print(result: dict[str, Any]) -> None:
    from oelm.bench import report

    console = command_console()
    console.print(report.headline(result), style="bold")
    for header, rows in report.tables(result):
        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in header:
            table.add_column(name, justify="left" if name in report.LEFT else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table, "")
    for note in report.footnotes(result):
        console.print(note, style="dim", markup=False)
