"""The scalar mix: gamma * sum_k softmax(w)_k h_k, the learned weighting of biLM layers (Peters et al. 2018, eq. 1)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from elmokit.errors import ConfigError


class ScalarMix(nn.Module):
    """Layers (B, T, X) to one (B, T, X), by weights that a task learns.

    A fresh mix is the mean of the layers.
    """

    def __init__(
        self,
        num_layers: int,
        *,
        do_layer_norm: bool = False,
        initial: Sequence[float] | None = None,
        trainable: bool = True,
    ) -> None:
        """Args:
        num_layers: layers to mix (L + 1 for a biLM).
        do_layer_norm: normalise each layer first, with one mean and variance over all unmasked values of the batch.
        initial: weights before the softmax; None for zeros.
        trainable: whether weights and gamma are learned; given weights are usually frozen, and gamma with them.
        """
        super().__init__()
        if initial is not None and len(initial) != num_layers:
            raise ConfigError(f"{len(initial)} mix weights were given for {num_layers} layers: {list(initial)}")
        self.do_layer_norm = do_layer_norm
        values = torch.zeros(num_layers) if initial is None else torch.tensor(initial, dtype=torch.float32)
        self.weights = nn.Parameter(values, requires_grad=trainable)
        self.gamma = nn.Parameter(torch.ones(()), requires_grad=trainable)

    def forward(self, layers: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Mix.

        Args:
            layers: (B, T, X) each.
            mask: (B, T) bool; needed with `do_layer_norm`.
        """
        if len(layers) != len(self.weights):
            raise ConfigError(f"this mix has weights for {len(self.weights)} layers, but {len(layers)} were given")
        if self.do_layer_norm:
            if mask is None:
                raise ConfigError("a mix with do_layer_norm needs the mask of real tokens")
            layers = [normalize(layer, mask) for layer in layers]
        shares = torch.softmax(self.weights, dim=0)
        mixed = layers[0] * shares[0]
        for layer, share in zip(layers[1:], shares[1:], strict=True):
            mixed = mixed + layer * share
        return self.gamma * mixed

    def penalty(self, strength: float) -> Tensor:
        """Lambda * ||w||^2, to add to a task's loss (Peters et al. 2018, section 3.2)."""
        return strength * self.weights.square().sum()


def normalize(layer: Tensor, mask: Tensor) -> Tensor:
    """Zero mean and unit variance over all unmasked values of a batch, epsilon 1e-12 (bilm-tf); zero where masked."""
    # Sums over a batch and this epsilon are beyond half precision.
    weights = mask.unsqueeze(-1).to(torch.promote_types(layer.dtype, torch.float32))
    count = (weights.sum() * layer.shape[-1]).clamp(min=1)  # a batch of empty rows has none
    mean = (layer * weights).sum() / count
    centred = (layer - mean) * weights
    return (centred / torch.sqrt(centred.square().sum() / count + 1e-12)).to(layer.dtype)
