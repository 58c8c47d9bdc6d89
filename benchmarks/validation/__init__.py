"""The simulator against a GPU: what is run on both, and how the answers compare. Each part is a file here."""
