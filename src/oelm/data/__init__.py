"""Text becomes tokens.

corpora: where text comes from (sources; hub and textfiles read it) · tokenization: which tokenizer · prepare: text to
token files (staging makes it resumable) · tokens: reading them · order: in which order.
"""
