"""AllenNLP's `Elmo`: the module of its first tutorials, whose constructor line stands in thousands of scripts.

A thin subclass of `ElmoModule` that opens the files itself, takes ids without boundaries, carries state as AllenNLP's
encoder does (`state`), and answers with a dict.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from torch import Tensor

from elmokit.compat.allennlp.ids import add_boundaries, check_ids
from elmokit.compat.allennlp.state import CarriedState
from elmokit.compat.allennlp.vocabulary_cache import CachingBiLM
from elmokit.config import CharCNNConfig
from elmokit.errors import ConfigError, InputError
from elmokit.model.bilm import BiLM
from elmokit.model.elmo import ElmoModule
from elmokit.model.outputs import ElmoOutput
from elmokit.weights import load_bilm


class Representations(TypedDict):
    """What `Elmo` returns.

    Attributes:
        elmo_representations: K mixes of all layers, (B, T, 2 P) or (B, X, T, 2 P); not the layers themselves.
        mask: (B, T) or (B, X, T) bool, true at tokens.
    """

    elmo_representations: list[Tensor]
    mask: Tensor


class Elmo(ElmoModule):
    """Character ids to K mixed representations, with AllenNLP's signature, shapes and numbers.

    **Repeated calls differ, as they did in AllenNLP**: row k of a batch goes on with the LSTM state that row k of the
    batch before ended with, also in `eval()` and while training (detached there). `reset_states()` starts anew;
    `Elmo(..., stateful=False)` makes a sentence's vectors depend on nothing but the sentence.

    State is in no `state_dict`; a deep copy takes its own along. Under DistributedDataParallel each process carries the
    state of its own rows. `nn.DataParallel` would lose it in its replicas and is refused unless `stateful=False`.

    The mixes are `scalar_mix_0`, `scalar_mix_1`, ..., each with `weights` (before the softmax) and `gamma`; in the
    `state_dict` they are `mixes.0.weights` and so on. Single layers: `elmokit.load().embed(..., layers="all")`.
    """

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        num_output_representations: int,
        requires_grad: bool = False,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        vocab_to_cache: Sequence[str] | None = None,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: Sequence[float] | None = None,
        module: BiLM | None = None,
        *,
        stateful: bool = True,
    ) -> None:
        """Args:
        options_file: path or URL of the options (JSON).
        weight_file: path or URL of the weights (HDF5).
        num_output_representations: independent mixes (K), 0 or more.
        requires_grad: whether the biLM is trained too.
        do_layer_norm: normalise layers before they are mixed.
        dropout: on the representations while training; `eval()` turns it off.
        vocab_to_cache: words whose token vectors are computed once, here; not with `requires_grad`.
        keep_sentence_boundaries: return T + 2 positions, the boundaries' included.
        scalar_mix_parameters: weights before the softmax for every mix; they and gamma are then frozen.
        module: a biLM to use in place of files, which are then None.
        stateful: whether to carry state from call to call.

        Raises:
            ConfigError: arguments that do not go together, or a model that reads no characters.
            WeightsError: files that are missing, damaged, swapped or of different models.
        """
        if isinstance(vocab_to_cache, str) or not all(isinstance(word, str) for word in vocab_to_cache or ()):
            raise ConfigError("vocab_to_cache holds something other than strings, expected a list of words")
        if vocab_to_cache and requires_grad:
            raise ConfigError(
                "vocab_to_cache keeps token vectors that training changes; pass it without requires_grad=True"
            )
        bilm = _bilm(options_file, weight_file, module)
        super().__init__(
            CachingBiLM(bilm, vocab_to_cache) if vocab_to_cache else bilm,
            num_output_representations,
            dropout=dropout,
            requires_grad=requires_grad,
            do_layer_norm=do_layer_norm,
            keep_sentence_boundaries=keep_sentence_boundaries,
            scalar_mix_parameters=scalar_mix_parameters,
        )
        self.stateful = stateful
        self._state = CarriedState()

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> Representations:  # type: ignore[override]
        """Run the model; the arguments are AllenNLP's, not `ElmoModule`'s.

        Args:
            inputs: (B, T, C) or (B, X, T, C) character ids without boundaries, from `batch_to_ids`.
            word_inputs: (B, T) or (B, X, T) word ids with `vocab_to_cache`. They may be left out: words are found by
                their characters, and those that are not in the list go through the character CNN.

        Raises:
            InputError: ids of another model or shape, or a word id where there are no characters.
        """
        output = self.run(inputs, word_inputs)
        leading = inputs.shape[:-2]  # (B,) or (B, X)
        return {
            "elmo_representations": [x.reshape(*leading, *x.shape[1:]) for x in output.representations],
            "mask": output.mask.reshape(*leading, output.mask.shape[1]),
        }

    def run(self, inputs: Tensor, word_inputs: Tensor | None = None) -> ElmoOutput:
        """As `forward`, with the biLM's layers in the result, and the rows of a 4-D batch below one another."""
        characters = self.bilm.config.tokens
        assert isinstance(characters, CharCNNConfig)
        inputs = check_ids(inputs, characters.max_characters_per_token)
        if word_inputs is not None and isinstance(self.bilm, CachingBiLM):
            _check_word_ids(word_inputs, inputs)
        ids, lengths = add_boundaries(inputs.flatten(0, -3))
        if not self.stateful:
            return super().forward(ids, lengths)
        if getattr(self, "_is_replica", False):  # set by torch on the copies that nn.DataParallel makes for a call
            raise ConfigError(
                "nn.DataParallel runs copies that cannot carry state; use DistributedDataParallel or stateful=False"
            )
        output = super().forward(ids, lengths, self._state.first(len(ids), like=next(self.bilm.parameters())))
        self._state.update(output.bilm.state)
        return output

    def reset_states(self) -> None:
        """Forget what was carried: the next call is like the first."""
        self._state.reset()

    def get_output_dim(self) -> int:
        """Width of a representation (2 P)."""
        return self.output_dim

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as in nn.Module
        """AllenNLP's names of the mixes, `scalar_mix_0` and so on."""
        prefix, _, number = name.rpartition("_")
        if prefix == "scalar_mix" and number.isdecimal() and int(number) < len(self.mixes):
            return self.mixes[int(number)]
        return super().__getattr__(name)


def _bilm(options_file: str | Path | None, weight_file: str | Path | None, module: BiLM | None) -> BiLM:
    """The biLM of the constructor's arguments."""
    if module is not None:
        if options_file is not None or weight_file is not None:
            raise ConfigError(
                "both a module and files were given; pass Elmo(None, None, ..., module=bilm), or files alone"
            )
        bilm = module
    elif options_file is None or weight_file is None:
        raise ConfigError("options_file and weight_file are both needed where no module is given")
    else:
        bilm = load_bilm((options_file, weight_file))
    if not isinstance(bilm.config.tokens, CharCNNConfig) or bilm.config.tokens.alphabet is not None:
        raise ConfigError(
            "this model reads whole words or code points, expected one that reads UTF-8 bytes, as AllenNLP's ids are; "
            "use elmokit.load for it"
        )
    return bilm


def _check_word_ids(word_inputs: Tensor, inputs: Tensor) -> None:
    """Refuse word ids at places without characters; where it is the other way round, the characters count."""
    if word_inputs.shape != inputs.shape[:-1]:
        raise InputError(
            f"word_inputs have the shape {tuple(word_inputs.shape)}, expected that of the tokens in inputs, "
            f"{tuple(inputs.shape[:-1])}"
        )
    alone = (word_inputs > 0) & (inputs[..., 0] == 0)
    if alone.any():
        place = tuple(alone.nonzero()[0].tolist())
        raise InputError(
            f"word_inputs hold word {int(word_inputs[place])} at {place}, where inputs hold no characters; "
            "pass the character ids of the same tokens"
        )
