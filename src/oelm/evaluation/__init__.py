"""Looking at trained models: what they write, what they know."""
