"""ELMo as a part of a task's network: a biLM and K scalar mixes of its layers (Peters et al. 2018, section 3)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from elmokit.errors import ConfigError
from elmokit.model.bilm import BiLM
from elmokit.model.mix import ScalarMix
from elmokit.model.outputs import BiLMState, ElmoOutput


class ElmoModule(nn.Module):
    """Ids to K mixed representations, with dropout, boundaries removed."""

    def __init__(
        self,
        bilm: BiLM,
        num_output_representations: int = 1,
        *,
        dropout: float = 0.5,
        requires_grad: bool = False,
        do_layer_norm: bool = False,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: Sequence[float] | None = None,
    ) -> None:
        """Args:
        bilm: the language model.
        num_output_representations: independent mixes (K), one for each place of a network; 0 for layers alone.
        dropout: on the representations while training.
        requires_grad: whether the biLM is trained too; it is the caller's own module, whose flags are set here.
        do_layer_norm: normalise layers before they are mixed.
        keep_sentence_boundaries: return the boundaries' vectors too.
        scalar_mix_parameters: weights before the softmax for every mix; they and gamma are then frozen.
        """
        super().__init__()
        if num_output_representations < 0:
            raise ConfigError(f"num_output_representations is {num_output_representations}, expected 0 or more")
        self.bilm = bilm.requires_grad_(requires_grad)
        self.dropout = nn.Dropout(dropout)
        self.keep_sentence_boundaries = keep_sentence_boundaries
        self.mixes = nn.ModuleList(
            ScalarMix(
                bilm.config.num_layers,
                do_layer_norm=do_layer_norm,
                initial=scalar_mix_parameters,
                trainable=scalar_mix_parameters is None,
            )
            for _ in range(num_output_representations)
        )

    @property
    def output_dim(self) -> int:
        """Width of a representation (2 P)."""
        return self.bilm.config.output_dim

    def forward(self, ids: Tensor, lengths: Tensor, state: BiLMState | None = None) -> ElmoOutput:
        """Run the model; arguments as in `BiLM.forward`.

        Returns:
            T representations a row, or T + 2 with the boundaries kept; zero beyond each sentence.
        """
        output = self.bilm(ids, lengths, state)
        layers, mask = output.layers, output.mask
        mixed = [mix(layers, mask) for mix in self.mixes]
        if not self.keep_sentence_boundaries:
            mask = mask[:, 2:]
            mixed = [x[:, 1:-1] * mask.unsqueeze(-1) for x in mixed]
        return ElmoOutput(tuple(self.dropout(x) for x in mixed), mask, output)

    def penalty(self, strength: float) -> Tensor:
        """Lambda * ||w||^2 over all mixes."""
        mixes = [mix for mix in self.mixes if isinstance(mix, ScalarMix)]
        return sum((mix.penalty(strength) for mix in mixes), start=torch.zeros(()))
