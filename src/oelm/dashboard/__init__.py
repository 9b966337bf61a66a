"""The live page over run folders: `oelm dashboard`. It only reads, and asks `analysis` for what `oelm report` says."""
