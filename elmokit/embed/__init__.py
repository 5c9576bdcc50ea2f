"""Strings to vectors and vectors to files: the `Embedder`, pooling, writers."""
