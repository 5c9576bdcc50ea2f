"""Token vectors of one sentence to one vector, for `Embedder` and whoever has vectors from a file."""

from typing import Literal

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Pooling = Literal["mean"]


def mean_pool(vectors: Vectors) -> Vectors:
    """The mean over tokens, (..., T, X) to (..., X); zeros where T is 0."""
    total = vectors.sum(axis=-2, dtype=np.float64)  # a long sentence would lose digits in float32
    return np.asarray(total / max(vectors.shape[-2], 1), dtype=np.float32)
