"""Text becomes tokens: corpora (where text comes from), tokenization, prepare (text to token files), tokens (read)."""
