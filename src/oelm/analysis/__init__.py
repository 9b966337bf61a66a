"""Reading finished runs: what was reached, what it cost, how sure that is. Reads run folders only; loads no torch.

    loaded = load_runs(["runs/demo"])        # results.py: folders -> runs; comparisons.py: runs -> arms -> comparisons
    print(summary_table(loaded).markdown())  # tables.py, cells.py; rendering.py: terminal, CSV, markdown, HTML
    pictures(loaded)                         # plots.py; curves.py, forest.py, pareto.py in one figure_style.py
    write_report("runs/demo", "runs/demo")   # report.py: a self-contained page

A new metric is a row of `statistics.METRICS`; a new sentence is a row of `sentences.TEXTS`.
"""
