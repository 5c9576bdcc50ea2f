"""Character ids to token vectors: convolutions, max pooling, highways, projection (Kim et al. 2016; bilm-tf).

Context-independent: a token's vector depends on its characters alone. Takes ids from `elmokit.text.characters`.
"""

import math

import torch
from torch import Tensor, nn

from elmokit.config import CharCNNConfig
from elmokit.errors import InputError

TOKENS_AT_ONCE = 256  # of similar length go through the convolutions together: bounds memory, and spares padding


class Highway(nn.Module):
    """y = g * relu(W_t x + b_t) + (1 - g) * x with g = sigmoid(W_c x + b_c) (Srivastava et al. 2015)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.transform = nn.Linear(dim, dim)
        self.carry = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) to (N, F)."""
        gate = torch.sigmoid(self.carry(x))
        return gate * torch.relu(self.transform(x)) + (1 - gate) * x


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
        longest = [int(part[-1:].sum()) for part in lengths.cpu().split(TOKENS_AT_ONCE)]
        parts = zip(tokens[order].split(TOKENS_AT_ONCE), longest, strict=True)
        vectors = torch.cat([self._encode(part, length) for part, length in parts])
        vectors = torch.empty_like(vectors).index_copy(0, order, vectors) * (tokens[:, :1] > 0)
        return vectors.view(*ids.shape[:2], self.output_dim)

    def _lengths(self, tokens: Tensor) -> Tensor:
        """(N, C) to (N,) columns up to the last one that is not padding."""
        columns = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
        return (columns * ((tokens != self.config.padding_id) & (tokens[:, :1] > 0))).amax(1)

    def _encode(self, tokens: Tensor, longest: int) -> Tensor:
        """(N, C) tokens of up to `longest` columns to (N, P).

        A convolution gives one value for all windows of padding alone, so one such window is enough for the maximum:
        columns beyond the longest token and the filter's width are left out.
        """
        # A zero row for "no token here" stands before the learned vectors; the padding character is learned.
        table = torch.cat([self.embedding.new_zeros(1, self.config.embedding_dim), self.embedding])
        widest = max(width for width, _ in self.config.filters)
        characters = nn.functional.embedding(tokens[:, : longest + widest], table).transpose(1, 2)  # (N, E, C)
        convolved = (
            convolution(characters[..., : longest + width])
            for convolution, (width, _) in zip(self.convolutions, self.config.filters, strict=True)
        )
        pooled = torch.cat([values.max(dim=-1).values for values in convolved], dim=-1)
        x = torch.relu(pooled) if self.config.activation == "relu" else torch.tanh(pooled)  # (N, F)
        for highway in self.highways:
            x = highway(x)
        return x if self.projection is None else self.projection(x)
