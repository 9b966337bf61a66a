"""How close `oelm data prepare` comes to the bare tokenizers library on the same text and cores.

    python benchmarks/tokenize_throughput.py                                   # the embedded corpus, bpe:4096
    python benchmarks/tokenize_throughput.py PATH --tokenizer GPT2_FOLDER      # text and tokenizer of your own

The bare loop has its texts in memory and does nothing but `encode_batch_fast` and `.ids`, on the library's own
threads. `prepare` reads the files, hashes them, encodes, writes ids durably with a journal and reads them back to hash
them. Both load the tokenizer inside their clock. The two take turns (A-B-B-A); ratios are taken pair by pair.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from oelm.data.corpora import documents, find_source
from oelm.data.prepare import prepare
from oelm.data.tokenization import load_tokenizer

BATCH = 1000  # documents per call of the bare loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", default="fables", help="corpus name or path")
    parser.add_argument("--tokenizer", default="bpe:4096", help="gpt2, bpe:SIZE, or a path")
    parser.add_argument("--megabytes", type=float, default=8.0, help="amount of fables")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of measurements, at least 3")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="cores for both sides")
    options = parser.parse_args()

    os.environ["RAYON_NUM_THREADS"] = str(options.workers)
    source = find_source([options.source], megabytes=options.megabytes)
    texts = {split: list(documents(source, split)) for split in ("train", "validation")}
    everything = texts["train"] + texts["validation"]
    megabytes = sum(len(text.encode()) for text in everything) / 1e6
    tokenizer = load_tokenizer(options.tokenizer, texts["train"])

    with tempfile.TemporaryDirectory() as folder:
        if options.source == "fables":  # telling stories is not tokenising: write them down first
            for split, stories in texts.items():
                rows = "".join(json.dumps({"text": text}) + "\n" for text in stories)
                (Path(folder) / f"{split}.jsonl").write_text(rows)
        saved = Path(folder) / "tokenizer.json"
        tokenizer.save(str(saved))

        def bare() -> Clock:
            clock = Clock()
            fresh = load_tokenizer(saved)  # a fresh one: no cache from an earlier round
            for first in range(0, len(everything), BATCH):
                _ = [encoding.ids for encoding in fresh.encode_batch_fast(everything[first : first + BATCH])]
            return clock.stop()

        def ours() -> Clock:
            source = find_source([options.source if options.source != "fables" else folder])  # forgets file hashes
            clock = Clock()
            prepare(source, Path(folder) / "out", saved, workers=options.workers, force=True)
            return clock.stop()

        bare(), ours()  # warm-up, not counted
        pairs = [_pair(bare, ours, swap=bool(number % 2)) for number in range(max(3, options.repeats))]

    print(f"{options.source}: {len(everything):,} documents, {megabytes:.1f} MB")
    print(f"tokenizer {options.tokenizer}, {options.workers} cores, {len(pairs)} pairs: median (lowest to highest)")
    for name, clocks in zip(("bare encode_batch_fast", "oelm data prepare"), zip(*pairs, strict=True), strict=True):
        print(f"  {name:<24}{_spread([megabytes / clock.wall for clock in clocks])} MB/s")
    print(f"  {'ratio of throughput':<24}{_spread([bare.wall / ours.wall for bare, ours in pairs])}, target 0.90")
    # On a busy machine the steadier number: what each needs of a core, whoever else wants it.
    print(f"  {'ratio per CPU second':<24}{_spread([bare.cpu / ours.cpu for bare, ours in pairs])}")


class Clock:
    """Wall and CPU seconds (of all threads) since it was made."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def stop(self) -> "Clock":
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        return self


def _pair(bare: Callable[[], Clock], ours: Callable[[], Clock], swap: bool) -> tuple[Clock, Clock]:
    if swap:
        our_clock = ours()
        return bare(), our_clock
    bare_clock = bare()
    return bare_clock, ours()


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):6.2f}  ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
