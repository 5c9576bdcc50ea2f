"""Token vectors that are made once: from tokens to the token encoder's vectors, the most recent ones kept.

A token's vector depends on the token and the weights alone, so that it can serve every sentence and every call until
the weights change. Nobody can tell whether it came from here: the encoder gives the same bits again.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from elmokit.model.lstm_fast import product_dtype
from elmokit.model.stamp import Stamp
from elmokit.text.token_ids import TokenIds

KEPT_BYTES: Final = 2**26  # of vectors
KEPT_TOKENS: Final = 2**15  # whose strings take memory too
TOKENS_AT_ONCE: Final = 2**13  # whose ids are held


class TokenVectors:
    """A function from distinct tokens to their vectors; threads may share it."""

    def __init__(self, encoder: nn.Module, token_ids: TokenIds) -> None:
        """Args:
        encoder: (1, U, ...) ids to (1, U, P), each token by itself.
        token_ids: makes its ids.
        """
        self._encoder, self._token_ids = encoder, token_ids
        self._lock = threading.Lock()
        self.clear()

    def __reduce__(self) -> tuple[type["TokenVectors"], tuple[nn.Module, TokenIds]]:
        """A copy begins empty."""
        return TokenVectors, (self._encoder, self._token_ids)

    def clear(self) -> None:
        """Forget all vectors; done without being asked when the weights have changed."""
        self._places: OrderedDict[str, int] = OrderedDict()  # rows of the table, the longest unused first
        self._table: Tensor | None = None
        self._stamp = Stamp(())
        self._dtype: torch.dtype | None = None  # of matrix products, which autocast changes

    @torch.inference_mode()
    def __call__(self, tokens: Sequence[str]) -> Tensor:
        """The vectors of U distinct tokens: (U, P), on the encoder's device."""
        with self._lock:
            weights = (*self._encoder.parameters(), *self._encoder.buffers())
            dtype = product_dtype(weights[0])
            if dtype != self._dtype or not self._stamp.holds(weights):
                self.clear()
                self._dtype, self._stamp = dtype, Stamp(weights)
            missing = [token for token in tokens if token not in self._places]
            if len(missing) == len(tokens):
                vectors = self._encode(missing)
            else:
                assert self._table is not None
                rows = [self._places.get(token, 0) for token in tokens]
                vectors = self._table[torch.tensor(rows, device=self._table.device)]
                if missing:
                    absent = [number for number, token in enumerate(tokens) if token not in self._places]
                    made = self._encode(missing)
                    vectors[torch.tensor(absent, device=made.device)] = made
            self._keep(tokens, vectors)
            return vectors

    def _encode(self, tokens: list[str]) -> Tensor:
        """By the encoder, as one sentence."""
        device = next(self._encoder.parameters()).device
        parts = [tokens[start : start + TOKENS_AT_ONCE] for start in range(0, len(tokens), TOKENS_AT_ONCE)]
        ids = (torch.from_numpy(self._token_ids(part)).unsqueeze(0).to(device) for part in parts)
        return torch.cat([self._encoder(part)[0] for part in ids])

    def _keep(self, tokens: Sequence[str], vectors: Tensor) -> None:
        """Put these last into the order, in place of those that are longest unused."""
        limit = min(KEPT_TOKENS, KEPT_BYTES // (vectors.shape[1] * vectors.element_size()))
        rows, sources = [], []
        for number, token in enumerate(tokens[-limit:] if limit else (), start=max(0, len(tokens) - limit)):
            if token in self._places:
                self._places.move_to_end(token)
                continue
            row = len(self._places) if len(self._places) < limit else self._places.popitem(last=False)[1]
            self._places[token] = row
            rows.append(row)
            sources.append(number)
        if rows:
            self._grow(max(rows) + 1, limit, vectors)
            assert self._table is not None
            device = vectors.device
            self._table[torch.tensor(rows, device=device)] = vectors[torch.tensor(sources, device=device)]

    def _grow(self, rows: int, limit: int, like: Tensor) -> None:
        """Make room for so many rows."""
        before = like[:0] if self._table is None else self._table
        if rows > len(before):
            self._table = like.new_empty(min(limit, max(rows, 2 * len(before))), like.shape[1])
            self._table[: len(before)] = before
