"""Text becomes tokens here: corpora (where text comes from), tokenization, prepare (text to token files), tokens (reading them)."""
