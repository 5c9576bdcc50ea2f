"""Tables of (their name, our names, steps), and what every format does with one.

`assemble` turns stored tensors into a biLM: it compares names and shapes before it reads a value or takes memory, and
reports all that is wrong at once. `disassemble` is the way back. Formats (`native`, `hdf5`) bring the table and the
means to read.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elmokit.config import BiLMConfig
from elmokit.errors import WeightsError
from elmokit.model.bilm import BiLM
from elmokit.model.build import build_bilm
from elmokit.model.lm_head import Softmax
from elmokit.text.lexicon import Lexicon
from elmokit.weights.transforms import Step

NAMES_IN_A_MESSAGE = 20
LARGEST_MODEL = 2**40  # parameters; the published ones have 10**8


class Mix(NamedTuple):
    """A scalar mix that a task has learned.

    Attributes:
        weights: one a layer (L + 1), before the softmax.
        gamma: factor of the sum.
    """

    weights: tuple[float, ...]
    gamma: float


@dataclass(frozen=True, slots=True, eq=False)
class StoredModel:
    """What a model's files hold, as far as it was asked for.

    Attributes:
        bilm: in eval mode, float32, on the CPU.
        lexicon: the words of a word-level model's rows, or of the softmax; None where no vocabulary lies beside.
        head: the softmax of the language model.
        mixes: of an AllenNLP task model, in its order.
    """

    bilm: BiLM
    lexicon: Lexicon | None = None
    head: Softmax | None = None
    mixes: tuple[Mix, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored tensor.

    Attributes:
        theirs: its name in the file.
        ours: the parameter of `BiLM` it holds; several where the file keeps them side by side, equally wide.
        steps: from the file's layout to ours.
        dim: the axis on which several lie side by side.
    """

    theirs: str
    ours: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    dim: int = -1

    def read(self, tensor: Tensor) -> dict[str, Tensor]:
        """Their tensor to our parameters."""
        for step in self.steps:
            tensor = step.read(tensor)
        parts = tensor.chunk(len(self.ours), dim=self.dim) if len(self.ours) > 1 else (tensor,)
        # Copies, so that no parameter keeps a bigger tensor alive or shares memory with another.
        return {
            name: part.clone(memory_format=torch.contiguous_format) for name, part in zip(self.ours, parts, strict=True)
        }

    def write(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Our parameters to their tensor."""
        parts = [parameters[name] for name in self.ours]
        tensor = torch.cat(parts, dim=self.dim) if len(parts) > 1 else parts[0]
        for step in reversed(self.steps):
            tensor = step.write(tensor)
        return tensor.contiguous()


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that is still in its file.

    Attributes:
        shape: as the file says.
        dtype: the file's name for its type.
        is_float: whether that is a floating type.
        read: gives its values as float32.
    """

    shape: tuple[int, ...]
    dtype: str
    is_float: bool
    read: Callable[[], Tensor]


def assemble(config: BiLMConfig, table: Sequence[Entry], stored: Mapping[str, StoredTensor], *, source: str) -> BiLM:
    """A biLM of this shape from a file's tensors, in eval mode, float32; other arguments and errors as in `fill`."""
    bilm = skeleton(config, source=source)
    fill(bilm, table, stored, source=source)
    return bilm.eval()


def fill(module: nn.Module, table: Sequence[Entry], stored: Mapping[str, StoredTensor], *, source: str) -> None:
    """Give a module of meta tensors a file's tensors, float32.

    Args:
        module: whose parameters the table names.
        table: every tensor that the file must hold; it must hold no other.
        stored: what it holds.
        source: the file's name for messages.

    Raises:
        WeightsError: tensors are missing, unused, misshaped or no floating numbers (all in one message), or one holds
            NaN or infinity.
    """
    shapes = module.state_dict()
    expected = {entry.theirs: tuple(entry.write(shapes).shape) for entry in table}
    _compare(expected, stored, source=source)
    parameters: dict[str, Tensor] = {}
    for entry in table:
        tensor = stored[entry.theirs].read()
        check_finite(entry.theirs, tensor, source=source)
        parameters |= entry.read(tensor)
    module.load_state_dict(parameters, assign=True)


def disassemble(bilm: BiLM, table: Sequence[Entry], *, source: str) -> Iterator[tuple[str, Tensor]]:
    """Each name and tensor (float32, on the CPU) of a file that is to hold this biLM.

    Raises:
        WeightsError: a parameter holds NaN or infinity: no loader would take the file.
    """
    parameters = plain_tensors(bilm, source=source)
    assert {name for entry in table for name in entry.ours} == set(parameters), "the table leaves out a parameter"
    for entry in table:
        yield entry.theirs, entry.write(parameters)


def plain_tensors(module: nn.Module, *, source: str) -> dict[str, Tensor]:
    """A module's parameters by name, float32, on the CPU, cut from the graph.

    Raises:
        WeightsError: one holds NaN or infinity.
    """
    parameters = {name: tensor.detach().to("cpu", torch.float32) for name, tensor in module.state_dict().items()}
    for name, tensor in parameters.items():
        check_finite(name, tensor, source=source)
    return parameters


def check_depth(config: BiLMConfig, num_tensors: int, *, source: str) -> None:
    """Refuse a configuration with more parts than the file has tensors, before a table or a network is built of it.

    Raises:
        WeightsError: so many parts cannot be in this file.
    """
    parts = config.encoder.num_layers
    if config.characters:
        parts = max(parts, config.characters.num_highways, len(config.characters.filters))
    if parts > num_tensors:
        raise WeightsError(
            f"{source} holds {num_tensors} tensors, but its configuration speaks of {parts} layers of one kind; "
            "the two files do not belong together, or one is damaged"
        )


def skeleton(config: BiLMConfig, *, source: str) -> BiLM:
    """A biLM of meta tensors: shapes without memory, and without touching the random generator.

    Raises:
        WeightsError: the sizes are beyond what a tensor can have.
    """
    try:
        with torch.device("meta"):
            bilm = build_bilm(config)
        size = sum(parameter.numel() for parameter in bilm.parameters())
    except (RuntimeError, OverflowError, TypeError):  # what torch raises for sizes beyond 64 bits
        size = LARGEST_MODEL + 1
    if size > LARGEST_MODEL:
        raise WeightsError(f"the configuration of {source} describes a model larger than any machine; it is damaged")
    return bilm


def check_finite(name: str, tensor: Tensor, *, source: str) -> None:
    """Refuse NaN and infinity.

    Raises:
        WeightsError: the tensor holds one.
    """
    if not bool(torch.isfinite(tensor).all()):
        raise WeightsError(
            f"tensor {name!r} of {source} holds NaN or infinite values; expected finite numbers: "
            "the training diverged or the file is damaged"
        )


def _compare(expected: Mapping[str, tuple[int, ...]], stored: Mapping[str, StoredTensor], *, source: str) -> None:
    """Raise one WeightsError with everything in which the file differs from what it should be."""
    missing = [f"{name!r} {shape}" for name, shape in expected.items() if name not in stored]
    unused = [f"{name!r} {tensor.shape}" for name, tensor in stored.items() if name not in expected]
    misshaped = [
        f"{name!r} is {stored[name].shape}, expected {shape}"
        for name, shape in expected.items()
        if name in stored and stored[name].shape != shape
    ]
    mistyped = [
        f"{name!r} is {stored[name].dtype}, expected floating point"
        for name in expected
        if name in stored and not stored[name].is_float
    ]
    groups = {"missing": missing, "unused": unused, "misshaped": misshaped, "of the wrong type": mistyped}
    findings = [f"{kind}: {_listed(names)}" for kind, names in groups.items() if names]
    if findings:
        raise WeightsError(
            f"the tensors of {source} do not fit its configuration; {'; '.join(findings)}. "
            "Use the configuration or options file that came with these weights"
        )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_IN_A_MESSAGE
    return ", ".join(names[:NAMES_IN_A_MESSAGE]) + (f" and {more} more" if more > 0 else "")
