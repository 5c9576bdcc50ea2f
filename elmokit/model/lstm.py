"""The LSTM of one direction: projection, clipping, skip connections (Sak et al. 2014; Peters et al. 2018).

`ProjectedLSTMLayer.plain` is the step loop, the reference that every faster path is tested against: `lstm_fast` where
gradients are wanted, packed rows and `recurrence` where none are. State is an argument and a result. PyTorch's gate
order (i, f, g, o); the forget bias is stored as it is used, so files that leave out TensorFlow's +1 add it on reading.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from elmokit.config import EncoderConfig
from elmokit.errors import InputError
from elmokit.model.concurrent import wants_gradient
from elmokit.model.linear import linear
from elmokit.model.lstm_fast import LSTMLayerFunction, product_dtype
from elmokit.model.outputs import LSTMState
from elmokit.model.recurrence import Recurrence

STEPS_AT_ONCE = 512  # bounds the memory of the plain loop's input products, whatever the length of a sentence
TOKENS_AT_ONCE = 256  # the same for packed rows; more would leave the cache, fewer would make products slow


class ProjectedLSTMLayer(nn.Module):
    """One LSTM layer with projection and clipping: (B, T, P) to (B, T, P)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.weight_ih = nn.Parameter(torch.empty(4 * config.cell_dim, config.projection_dim))
        self.weight_hh = nn.Parameter(torch.empty(4 * config.cell_dim, config.projection_dim))
        self.bias = nn.Parameter(torch.empty(4 * config.cell_dim))
        self.weight_hr = (
            nn.Parameter(torch.empty(config.projection_dim, config.cell_dim)) if config.has_projection else None
        )
        self.recurrence = Recurrence()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw initial values as TensorFlow does for bilm-tf: Glorot uniform, forget bias 1."""
        cell, width = self.config.cell_dim, self.config.projection_dim
        bound = math.sqrt(6 / (2 * width + 4 * cell))
        nn.init.uniform_(self.weight_ih, -bound, bound)
        nn.init.uniform_(self.weight_hh, -bound, bound)
        nn.init.zeros_(self.bias)
        with torch.no_grad():
            self.bias[cell : 2 * cell] = 1.0
        if self.weight_hr is not None:
            bound = math.sqrt(6 / (cell + width))
            nn.init.uniform_(self.weight_hr, -bound, bound)

    def forward(self, x: Tensor, mask: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run over a batch; a row's state stands still beyond its length.

        Args:
            x: (B, T, P).
            mask: (B, T) bool, true at the first `length` positions of a row.
            hidden: (B, P) at the start.
            cell: (B, D) at the start.

        Returns:
            output (B, T, P), zero beyond each length; hidden (B, P) and cell (B, D) at each row's end.
        """
        weights = self.weight_ih, self.weight_hh, self.bias, self.weight_hr
        if wants_gradient(x, hidden, cell, *self.parameters()) and x.numel() and bool(mask.all()):
            clips = self.config.cell_clip, self.config.proj_clip
            return LSTMLayerFunction.apply(x, hidden, cell, *weights, *clips, product_dtype(x))  # type: ignore[no-any-return,no-untyped-call]
        return self.plain(x, mask, hidden, cell)

    def packed(
        self, x: Tensor, batch_sizes: Sequence[int], hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run over packed rows without recording gradients, as many steps at a time as memory is meant for.

        Args:
            x: (N, P), step after step, rows sorted by falling length.
            batch_sizes: rows of each step, N in all.
            hidden: (B, P) at the start.
            cell: (B, D) at the start.

        Returns:
            output (N, P); hidden (B, P) and cell (B, D) at each row's end.
        """
        full = torch.promote_types(x.dtype, torch.float32)  # of gates and cells
        dtype = product_dtype(x)
        w_ih, bias = self.weight_ih.to(dtype), self.bias.to(full)
        hidden, cell = hidden.to(full, copy=True), cell.to(full, copy=True)
        outputs = torch.empty_like(x)
        start = 0
        for sizes in blocks(batch_sizes, TOKENS_AT_ONCE):
            rows = slice(start, start := start + sum(sizes))
            outputs[rows] = self.recurrence(
                # Not by a name of its own, which would keep it while the next is made.
                linear(x[rows], w_ih, bias) if dtype == full else linear(x[rows].to(dtype), w_ih).to(full).add_(bias),
                sizes,
                (self.weight_hh, self.weight_hr),
                dtype=dtype,
                cell_clip=self.config.cell_clip,
                proj_clip=self.config.proj_clip,
                hidden=hidden,
                cell=cell,
            )
        return outputs, hidden.to(x.dtype), cell.to(x.dtype)

    def plain(self, x: Tensor, mask: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The step loop itself; arguments and results as in `forward`."""
        outputs = []
        for part, part_mask in zip(x.split(STEPS_AT_ONCE, dim=1), mask.split(STEPS_AT_ONCE, dim=1), strict=True):
            inputs = nn.functional.linear(part, self.weight_ih, self.bias).unbind(1)  # T of (B, 4 D)
            for step, alive in zip(inputs, part_mask.unsqueeze(-1).unbind(1), strict=True):
                new_hidden, new_cell = self._step(step, hidden, cell)
                hidden = torch.where(alive, new_hidden, hidden)
                cell = torch.where(alive, new_cell, cell)
                outputs.append(torch.where(alive, new_hidden, 0.0))
        return torch.stack(outputs, dim=1) if outputs else torch.zeros_like(x), hidden, cell

    def _step(self, inputs: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 4 D), (B, P), (B, D) to the next hidden and cell."""
        gates = inputs + nn.functional.linear(hidden, self.weight_hh)
        i, f, g, o = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        if self.config.cell_clip is not None:
            cell = cell.clamp(-self.config.cell_clip, self.config.cell_clip)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        if self.weight_hr is not None:
            hidden = nn.functional.linear(hidden, self.weight_hr)
            # bilm-tf hands proj_clip to TensorFlow's cell, which clips a projection and nothing else.
            if self.config.proj_clip is not None:
                hidden = hidden.clamp(-self.config.proj_clip, self.config.proj_clip)
        return hidden, cell


class ProjectedLSTM(nn.Module):
    """The stack of one direction, a SequenceEncoder: (B, T, P) to L layers of (B, T, P) and the state to carry on."""

    def __init__(self, config: EncoderConfig, *, dropout: float = 0.0) -> None:
        """Args:
        config: the shape.
        dropout: on every layer's input while training; the skip connection adds the dropped input (bilm-tf).
        """
        super().__init__()
        self.config = config
        self.dropout = dropout
        self.layers = nn.ModuleList(ProjectedLSTMLayer(config) for _ in range(config.num_layers))

    def initial_state(self, batch_size: int, like: Tensor) -> LSTMState:
        """Zeros for `batch_size` rows, of the dtype and device of `like`."""
        shape = (self.config.num_layers, batch_size)
        return LSTMState(
            like.new_zeros(*shape, self.config.projection_dim), like.new_zeros(*shape, self.config.cell_dim)
        )

    def forward(
        self, x: Tensor, mask: Tensor, state: LSTMState | None = None, *, generator: torch.Generator | None = None
    ) -> tuple[tuple[Tensor, ...], LSTMState]:
        """Run the stack.

        Args:
            x: (B, T, P) token vectors in reading order of this direction.
            mask: (B, T) bool, true at the first `length` positions of a row.
            state: what an earlier call returned; None for zeros.
            generator: of the dropout; None for torch's default one.

        Returns:
            L outputs (B, T, P), each with its skip connection and zero beyond each length; the state at the end.

        Raises:
            InputError: the state is of another number of rows.
        """
        x = x.to(next(self.parameters()).dtype)  # autocast may hand over half precision; cells stay in full
        state = state or self.initial_state(len(x), like=x)
        if state.hidden.shape[1] != len(x):  # one row would be spread over all
            raise InputError(
                f"the state is of {state.hidden.shape[1]} rows, but the batch has {len(x)}; "
                "go on with the same rows, or pass no state to start anew"
            )
        drops = self.training and self.dropout > 0
        traced = torch.compiler.is_compiling()  # a graph of torch's own operations is wanted
        if not (drops or traced or wants_gradient(x, state.hidden, state.cell, *self.parameters())) and x.numel():
            return self._packed(x, mask, state)
        outputs, hiddens, cells = [], [], []
        for index, layer in enumerate(self.layers):
            x = dropout(x, self.dropout if self.training else 0.0, generator)
            output, hidden, cell = layer(x, mask, state.hidden[index], state.cell[index])
            if index > 0 and self.config.skip_connections:
                output = output + x  # both are zero beyond the lengths
            outputs.append(output)
            hiddens.append(hidden)
            cells.append(cell)
            x = output
        return tuple(outputs), LSTMState(torch.stack(hiddens), torch.stack(cells))

    def _packed(self, x: Tensor, mask: Tensor, state: LSTMState) -> tuple[tuple[Tensor, ...], LSTMState]:
        """As `forward`, without padding: rows are packed once, and each layer's output is unpacked."""
        order = mask.sum(dim=1).argsort(descending=True, stable=True)
        steps, rows = mask[order].t().nonzero(as_tuple=True)
        batch_sizes = steps.bincount().tolist()
        places = order[rows] * x.shape[1] + steps  # (N,) of each token among B T
        values = x.flatten(0, 1)[places]
        outputs, hiddens, cells = [], [], []
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, ProjectedLSTMLayer)
            start = state.hidden[index, order], state.cell[index, order]
            output, hidden, cell = layer.packed(values, batch_sizes, *start)
            if index > 0 and self.config.skip_connections:
                output += values
            outputs.append(x.new_zeros(x.shape).flatten(0, 1).index_copy_(0, places, output).view(x.shape))
            hiddens.append(torch.empty_like(hidden).index_copy_(0, order, hidden))
            cells.append(torch.empty_like(cell).index_copy_(0, order, cell))
            values = output
        return tuple(outputs), LSTMState(torch.stack(hiddens), torch.stack(cells))


def blocks(batch_sizes: Sequence[int], limit: int) -> Iterator[Sequence[int]]:
    """Runs of steps with at most so many rows in all, one step at least."""
    start = total = 0
    for step, size in enumerate(batch_sizes):
        if step > start and total + size > limit:
            yield batch_sizes[start:step]
            start, total = step, 0
        total += size
    if start < len(batch_sizes):
        yield batch_sizes[start:]


def dropout(x: Tensor, rate: float, generator: torch.Generator | None = None) -> Tensor:
    """Dropout whose random numbers can come from a generator of the caller's own, which torch's cannot."""
    if rate == 0:
        return x
    keep = torch.empty_like(x).bernoulli_(1 - rate, generator=generator)
    return x * keep / (1 - rate)
