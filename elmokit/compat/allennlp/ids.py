"""Character ids as AllenNLP passes them around: without boundaries, which its network adds inside.

`batch_to_ids` makes them from tokens; `add_boundaries` turns them into the ids and lengths that a `BiLM` takes.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from elmokit.errors import InputError
from elmokit.text.characters import (
    BYTES,
    SENTENCE_END,
    SENTENCE_START,
    check_tokens,
    token_to_ids,
    tokens_to_ids,
)


def batch_to_ids(batch: Iterable[Sequence[str]], *, max_characters_per_token: int = 50) -> Tensor:
    """Character ids of a batch of sentences, zero-padded to the longest.

    Args:
        batch: B lists of tokens; a token is a string or an object with a string `.text`.
        max_characters_per_token: C, 50 for every published model; `elmo.bilm.config.tokens` knows it.

    Returns:
        (B, T, C) int64.

    Raises:
        InputError: a string stands where a list of tokens belongs.
    """
    encoded = [
        tokens_to_ids(check_tokens(sentence, index), max_characters_per_token) for index, sentence in enumerate(batch)
    ]
    longest = max((len(ids) for ids in encoded), default=0)
    padded = np.zeros((len(encoded), longest, max_characters_per_token), dtype=np.int64)
    for row, ids in zip(padded, encoded, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(padded)


def check_ids(inputs: object, width: int) -> Tensor:
    """Refuse what is no batch of character ids for a model of this width.

    Args:
        inputs: what a caller passed.
        width: characters per token of the model (C).

    Returns:
        The same as int64, (B, T, C) or (B, X, T, C).

    Raises:
        InputError: no tensor, or of another kind, shape or range.
    """
    if not isinstance(inputs, Tensor):
        raise InputError(f"inputs are of type {type(inputs).__name__}, expected the tensor that batch_to_ids makes")
    if inputs.dim() not in (3, 4):
        raise InputError(f"inputs have the shape {tuple(inputs.shape)}, expected (B, T, {width}) or (B, X, T, {width})")
    if inputs.shape[-1] != width:
        raise InputError(
            f"inputs hold {inputs.shape[-1]} characters a token, but this model reads {width}; "
            f"make them with batch_to_ids(batch, max_characters_per_token={width})"
        )
    if inputs.is_floating_point() or inputs.dtype == torch.bool:
        raise InputError(f"inputs are {inputs.dtype}, expected integer character ids as batch_to_ids makes them")
    if inputs.numel() and not 0 <= int(inputs.min()) <= int(inputs.max()) <= BYTES.padding + 1:
        raise InputError(
            f"inputs hold ids from {int(inputs.min())} to {int(inputs.max())}, expected 0 to {BYTES.padding + 1}; "
            "are they word ids?"
        )
    return inputs.long()


def add_boundaries(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Put the sentence boundaries around each row's tokens, within its own length.

    A row of padding becomes a sentence of two boundaries, as in AllenNLP.

    Args:
        ids: (B, T, C), 0 where there is no token.

    Returns:
        ids (B, T + 2, C); lengths (B,), boundaries included.

    Raises:
        InputError: a row has padding before or between its tokens.
    """
    present = ids[..., 0] > 0  # (B, T)
    counts = present.sum(dim=1)
    expected = torch.arange(ids.shape[1], device=ids.device) < counts.unsqueeze(1)
    if not torch.equal(present, expected):
        row = int((present != expected).any(dim=1).nonzero()[0])
        raise InputError(f"row {row} of the inputs has padding before or between its tokens, expected it at the end")
    start, end = (
        torch.as_tensor(token_to_ids(token, ids.shape[2]), dtype=ids.dtype, device=ids.device)
        for token in (SENTENCE_START, SENTENCE_END)
    )
    bounded = torch.nn.functional.pad(ids, (0, 0, 1, 1))
    bounded[:, 0] = start
    bounded[torch.arange(len(ids), device=ids.device), counts + 1] = end
    return bounded, counts + 2
