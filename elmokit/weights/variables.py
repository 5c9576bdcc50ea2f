"""bilm-tf's variables and the parameters of `BiLM` that they are: one table for its files of both kinds.

The names are those of its HDF5 files; `hdf5` reads and writes them, `tf_checkpoint` translates them into those of a
TensorFlow training. All steps but that of the forget bias only move numbers.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from elmokit.config import BiLMConfig, CharCNNConfig, EncoderConfig, WordEmbeddingConfig
from elmokit.errors import WeightsError
from elmokit.weights.layouts import Entry, StoredTensor
from elmokit.weights.transforms import CONVOLUTION, FORGET_BIAS, GATE_ORDER, TRANSPOSE

CHARACTER_TABLE: Final = "char_embed"
WORD_TABLE: Final = "embedding"
SOFTMAX: Final = ("softmax/W", "softmax/b")


def table(config: BiLMConfig, *, bare_cell: bool = False) -> tuple[Entry, ...]:
    """Every variable of a biLM.

    Args:
        config: the biLM's shape.
        bare_cell: a one-layer model as bilm-tf's training dumps it, without the level of `MultiRNNCell`.
    """
    return (*_token_entries(config), *_encoder_entries(config.encoder, bare_cell=bare_cell))


def num_words(stored: Mapping[str, StoredTensor]) -> int | None:
    """The rows of a word-level model's table; None where the tensors are of another."""
    word_table = stored.get(WORD_TABLE)
    if word_table is None or CHARACTER_TABLE in stored or len(word_table.shape) != 2:
        return None
    return word_table.shape[0]


def _token_entries(config: BiLMConfig) -> Iterator[Entry]:
    tokens = config.tokens
    if isinstance(tokens, WordEmbeddingConfig):
        yield Entry(WORD_TABLE, ("token_encoder.embedding.weight",))
        return
    if not isinstance(tokens, CharCNNConfig) or tokens.alphabet is not None:
        raise WeightsError(
            "this model reads code points, or words beside characters, which bilm-tf's format cannot hold; "
            "save it to a directory instead"
        )
    yield Entry(CHARACTER_TABLE, ("token_encoder.embedding",))
    for i in range(len(tokens.filters)):
        yield Entry(f"CNN/W_cnn_{i}", (f"token_encoder.convolutions.{i}.weight",), (CONVOLUTION,))
        yield Entry(f"CNN/b_cnn_{i}", (f"token_encoder.convolutions.{i}.bias",))
    for k in range(tokens.num_highways):
        for gate in ("carry", "transform"):
            ours = f"token_encoder.highways.{k}.{gate}"
            yield Entry(f"CNN_high_{k}/W_{gate}", (f"{ours}.weight",), (TRANSPOSE,))
            yield Entry(f"CNN_high_{k}/b_{gate}", (f"{ours}.bias",))
    if tokens.num_filters != config.encoder.projection_dim:
        yield Entry("CNN_proj/W_proj", ("token_encoder.projection.weight",), (TRANSPOSE,))
        yield Entry("CNN_proj/b_proj", ("token_encoder.projection.bias",))


def _encoder_entries(encoder: EncoderConfig, *, bare_cell: bool) -> Iterator[Entry]:
    for number, direction in enumerate(("forward", "backward")):
        for layer in range(encoder.num_layers):
            theirs = f"RNN_{number}/RNN/{'' if bare_cell else f'MultiRNNCell/Cell{layer}/'}LSTMCell"
            ours = f"{direction}_encoder.layers.{layer}"
            # The first P rows of W_0 are input weights, the other P recurrent ones.
            yield Entry(f"{theirs}/W_0", (f"{ours}.weight_ih", f"{ours}.weight_hh"), (TRANSPOSE, GATE_ORDER))
            yield Entry(f"{theirs}/B", (f"{ours}.bias",), (GATE_ORDER, FORGET_BIAS))
            if encoder.has_projection:
                yield Entry(f"{theirs}/W_P_0", (f"{ours}.weight_hr",), (TRANSPOSE,))
