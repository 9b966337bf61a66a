"""Looking at trained models: what they write, and whether an estimate of their cost came true."""
