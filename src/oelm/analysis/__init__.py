"""Reading finished runs: what was reached, what it cost, how sure that is. Reads run folders only; loads no torch.

    loaded = load_runs("runs/demo")          # compare/: results -> arms -> comparison -> statistics -> record
    loaded.comparisons[0].records            # one typed record per arm: all that follows reads it
    pictures(loaded)                         # figures/
    write_report("runs/demo", "runs/demo")   # report/: a self-contained page

A new metric is a row of `statistics.METRICS`; a new sentence is a line of `report/sentences.json`.
"""
