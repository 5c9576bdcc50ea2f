"""Character ids to token vectors: convolutions, max pooling, highways, projection (Kim et al. 2016; bilm-tf).

Context-independent: a token's vector depends on its characters alone. Takes ids from `elmokit.text.characters`.
"""

import itertools
import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from elmokit.config import CharCNNConfig
from elmokit.errors import InputError
from elmokit.model.concurrent import side_by_side, wants_gradient, workers_for
from elmokit.model.linear import linear

TOKENS_AT_ONCE = 256  # of similar length go through the convolutions together: bounds memory, and spares padding
TOKENS_A_TASK = 128  # the same without gradients, where what a product leaves is soon needed again
TOKENS_AT_LEAST = 16  # matrix products of fewer rows round otherwise: a token's vector would depend on the others
SPARE_WINDOWS = 128  # convolving so many in vain takes as long as making another block of tokens


class Highway(nn.Module):
    """y = g * relu(W_t x + b_t) + (1 - g) * x with g = sigmoid(W_c x + b_c) (Srivastava et al. 2015)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.transform = nn.Linear(dim, dim)
        self.carry = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) to (N, F)."""
        products = [partial(linear, x, part.weight, part.bias) for part in (self.carry, self.transform)]
        gate, transformed = side_by_side(products, workers=workers_for(x, *self.parameters()))
        gate, transformed = torch.sigmoid(gate), torch.relu(transformed)
        return gate * transformed + (1 - gate) * x


class CharCNN(nn.Module):
    """Character ids (B, T, C) to token vectors (B, T, P)."""

    def __init__(self, config: CharCNNConfig, output_dim: int) -> None:
        super().__init__()
        self.config = config
        self.output_dim = output_dim
        self.embedding = nn.Parameter(torch.empty(config.num_characters, config.embedding_dim))
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.embedding_dim, count, width) for width, count in config.filters
        )
        self.highways = nn.ModuleList(Highway(config.num_filters) for _ in range(config.num_highways))
        # As in bilm-tf, there is no projection where the filters already have the right sum.
        self.projection = nn.Linear(config.num_filters, output_dim) if config.num_filters != output_dim else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values of bilm-tf."""
        nn.init.uniform_(self.embedding, -1.0, 1.0)
        for convolution, (width, _) in zip(self.convolutions, self.config.filters, strict=True):
            assert isinstance(convolution, nn.Conv1d)
            assert convolution.bias is not None
            if self.config.activation == "relu":
                nn.init.uniform_(convolution.weight, -0.05, 0.05)
            else:
                nn.init.normal_(convolution.weight, 0.0, math.sqrt(1 / (width * self.config.embedding_dim)))
            nn.init.zeros_(convolution.bias)
        for highway in self.highways:
            assert isinstance(highway, Highway)
            nn.init.normal_(highway.transform.weight, 0.0, math.sqrt(1 / self.config.num_filters))
            nn.init.normal_(highway.carry.weight, 0.0, math.sqrt(1 / self.config.num_filters))
            nn.init.zeros_(highway.transform.bias)
            nn.init.constant_(highway.carry.bias, -2.0)
        if self.projection is not None:
            nn.init.normal_(self.projection.weight, 0.0, math.sqrt(1 / self.config.num_filters))
            nn.init.zeros_(self.projection.bias)

    def forward(self, ids: Tensor) -> Tensor:
        """Encode each token by itself.

        Args:
            ids: (B, T, C) character ids shifted by one, 0 where there is no token.

        Returns:
            (B, T, P) token vectors; zero where there is no token.

        Raises:
            InputError: ids of another width, which were cut for another model.
        """
        width = self.config.max_characters_per_token
        if ids.dim() != 3 or ids.shape[2] != width:
            raise InputError(
                f"character ids have the shape {tuple(ids.shape)}, expected (sentences, tokens, {width}); "
                f"encode the tokens with this model's max_characters_per_token, {width}"
            )
        tokens = ids.flatten(0, 1)
        lengths, order = self._lengths(tokens).sort(stable=True)
        if wants_gradient(*self.parameters()):
            longest = [int(part[-1:].sum()) for part in lengths.cpu().split(TOKENS_AT_ONCE)]
            parts = zip(tokens[order].split(TOKENS_AT_ONCE), longest, strict=True)
            vectors = torch.cat([self._combine(self._convolve(part, length)) for part, length in parts])
        else:
            vectors = self._infer(tokens[order], lengths)
        vectors = torch.empty_like(vectors).index_copy(0, order, vectors) * (tokens[:, :1] > 0)
        return vectors.view(*ids.shape[:2], self.output_dim)

    def _lengths(self, tokens: Tensor) -> Tensor:
        """(N, C) to (N,) columns up to the last one that is not padding."""
        columns = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
        return (columns * ((tokens != self.config.padding_id) & (tokens[:, :1] > 0))).amax(1)

    def _infer(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(N, C) tokens by rising length to (N, P), each with the same bits whatever tokens come along."""
        workers = workers_for(*self.parameters())
        share = -(-len(tokens) // (workers * TOKENS_AT_LEAST)) * TOKENS_AT_LEAST
        size = min(TOKENS_A_TASK, max(share, TOKENS_AT_LEAST))

        def task(part: Tensor, part_lengths: list[int]) -> Tensor:
            sizes = blocks(part_lengths)
            ends = itertools.accumulate(sizes)
            pieces = zip(part.split(sizes), ends, strict=True)
            pooled = torch.cat([self._convolve(piece, part_lengths[end - 1]) for piece, end in pieces])
            filled = nn.functional.pad(pooled, (0, 0, 0, -len(pooled) % TOKENS_AT_LEAST))
            return self._combine(filled)[: len(pooled)]

        parts = zip(tokens.split(size), lengths.cpu().split(size), strict=True)
        tasks = [partial(task, part, part_lengths.tolist()) for part, part_lengths in parts if len(part)]
        return torch.cat([self.embedding.new_empty(0, self.output_dim), *side_by_side(tasks, workers=workers)])

    def _convolve(self, tokens: Tensor, longest: int) -> Tensor:
        """(N, C) tokens of up to `longest` columns to (N, F), the maximum of each filter.

        A convolution gives one value for all windows of padding alone, so one such window is enough for the maximum:
        columns beyond the longest token and the filter's width are left out.
        """
        # A zero row for "no token here" stands before the learned vectors; the padding character is learned.
        table = torch.cat([self.embedding.new_zeros(1, self.config.embedding_dim), self.embedding])
        widest = max(width for width, _ in self.config.filters)
        characters = nn.functional.embedding(tokens[:, : longest + widest], table)  # (N, C, E)
        convolve = _train_convolution if wants_gradient(*self.parameters()) else _convolution
        return torch.cat(
            [
                convolve(convolution, characters[:, : longest + width])
                for convolution, (width, _) in zip(self.convolutions, self.config.filters, strict=True)
            ],
            dim=-1,
        )

    def _combine(self, pooled: Tensor) -> Tensor:
        """(N, F) to (N, P): what comes after the convolutions."""
        x = torch.relu(pooled) if self.config.activation == "relu" else torch.tanh(pooled)
        for highway in self.highways:
            x = highway(x)
        return x if self.projection is None else linear(x, self.projection.weight, self.projection.bias)


def blocks(lengths: Sequence[int]) -> list[int]:
    """How many tokens to convolve together, given their rising lengths: few windows in vain, few blocks."""
    sizes, spare = [0], 0
    for before, length in itertools.pairwise([lengths[0], *lengths]):
        spare += sizes[-1] * (length - before)
        if spare > SPARE_WINDOWS:
            sizes.append(0)
            spare = 0
        sizes[-1] += 1
    return sizes


def _train_convolution(convolution: nn.Module, characters: Tensor) -> Tensor:
    """(N, C, E) to the maximum over all windows, (N, count)."""
    maximum: Tensor = convolution(characters.transpose(1, 2)).max(dim=-1).values
    return maximum


def _convolution(convolution: nn.Module, characters: Tensor) -> Tensor:
    """The same as one matrix product, which takes half the time of torch's convolution and less memory."""
    assert isinstance(convolution, nn.Conv1d)
    number, columns, dim = characters.shape
    count, _, width = convolution.weight.shape
    windows = characters.unfold(1, width, 1).reshape(-1, dim * width)
    values = linear(windows, convolution.weight.view(count, dim * width), convolution.bias)
    return values.view(number, columns - width + 1, count).amax(dim=1)
