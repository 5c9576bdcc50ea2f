"""One vector a sentence: the mean over real tokens, in digits that a long sentence does not lose."""

import numpy as np
import pytest

from elmokit.embed.pooling import mean_pool


@pytest.mark.parametrize("shape", [(5, 4), (3, 5, 4), (1, 4), (3, 1, 4)])
def test_the_mean_is_over_tokens(shape):
    vectors = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    pooled = mean_pool(vectors)
    assert pooled.dtype == np.float32
    np.testing.assert_allclose(pooled, vectors.mean(axis=-2), atol=1e-6)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0, 4)])
def test_a_sentence_without_tokens_gives_zeros(shape):
    pooled = mean_pool(np.zeros(shape, np.float32))
    np.testing.assert_array_equal(pooled, np.zeros((*shape[:-2], 4), np.float32))


def test_a_long_sentence_loses_no_digits():
    vectors = np.full((1_000_000, 1), 0.1, np.float32)
    assert mean_pool(vectors)[0] == np.float32(0.1)
