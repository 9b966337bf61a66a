"""Reading finished runs: what was reached, what it cost, how sure that is. Reads run folders only; loads no torch.

    for comparison in compare("runs/demo"):  # compare/: results -> arms -> comparison -> statistics -> record
        print(comparison.records)            # one typed record per arm: all that follows reads it
    pictures(load_runs("runs/demo"))         # figures/
    write_report("runs/demo", "runs/demo")   # report/: a self-contained page

A new metric is a row of `statistics.METRICS`; a new sentence is a line of `report/sentences.json`.
"""
