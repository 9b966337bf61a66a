"""Text becomes tokens.

corpora: where text comes from (sources; hub, localfiles, textfiles and rows read it) · tokenization: which tokenizer ·
prepare: text to token files (staging and journal make it resumable) · tokens: reading them · order: in which order.
"""
