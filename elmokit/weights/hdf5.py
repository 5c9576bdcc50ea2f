"""AllenNLP's and bilm-tf's format: `options.json` and an HDF5 file of TensorFlow's variables, read and written.

One table serves both directions, and all steps but one only move numbers. The forget bias differs by 1 between file
and network, and float32 cannot undo every sum. What is exact: elmokit -> file -> elmokit for every model that came from
such a file, and for any other whose forget biases are 0.5 or more. What is not: a forget bias below 0.5 that was
trained here, and a file's own forget bias in file -> elmokit -> file, may come back changed by one rounding (6e-8
within -1..1).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor

from elmokit.errors import WeightsError
from elmokit.model.lm_head import LMHead
from elmokit.weights.files import HDF5, check_expansion, reading, replacing
from elmokit.weights.layouts import StoredModel, StoredTensor, assemble, check_depth, disassemble, plain_tensors
from elmokit.weights.options import Options, options_beside
from elmokit.weights.variables import SOFTMAX, num_words, table
from elmokit.weights.vocabulary import VOCABULARY_NAME, read_softmax, with_words

SUFFIXES = (".hdf5", ".h5")


def find(folder: Path) -> tuple[Path, Path] | None:
    """The options and weights of a folder with HDF5 files; None without any.

    Raises:
        WeightsError: several of them are models, or there are no options beside the one.
    """
    found = _hdf5_files(folder)
    if len(found) > 1:  # others may hold a softmax, or the vectors that some program made
        found = [path for path in found if "RNN_0" in _groups(path)] or found
    if len(found) > 1:
        raise WeightsError(
            f"{folder} holds several HDF5 files ({', '.join(path.name for path in found)}), expected one; "
            "name the options and the weights: (options, weights)"
        )
    return (options_beside(found[0]), found[0]) if found else None


def _hdf5_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def _groups(path: Path) -> set[str]:
    """What an HDF5 file has at its root; nothing where it is none."""
    try:
        with reading(path, HDF5), h5py.File(path, "r") as file:
            return set(file)
    except WeightsError:
        return set()


def read(options_file: Path, weights: Path, *, words: bool = False, head: bool = False) -> StoredModel:
    """Load a biLM and what lies with it.

    Args:
        options_file: the options, JSON.
        weights: the HDF5 file.
        words: read the vocabulary of a word-level model.
        head: read the softmax, from this file or the one beside it that holds it, and its words.

    Raises:
        ConfigError: the options describe no biLM.
        InputError: the vocabulary is none.
        WeightsError: the weights are damaged, or belong to other options or another vocabulary.
    """
    options = Options.read(options_file)
    source = str(weights)
    with _opened(weights) as everything:
        stored = {name: tensor for name, tensor in everything.items() if name not in SOFTMAX}
        config = options.config(num_words(stored), source=options_file)
        check_depth(config, len(stored), source=source)
        bare_cell = config.encoder.num_layers == 1 and any(name.startswith("RNN_0/RNN/LSTMCell/") for name in stored)
        bilm = assemble(config, table(config, bare_cell=bare_cell), stored, source=source)
        softmax = read_softmax(everything, SOFTMAX, dim=config.encoder.projection_dim, source=source) if head else None
    if head and softmax is None:
        beside = [path for path in _hdf5_files(weights.parent) if _groups(path) == {"softmax"}]
        if len(beside) == 1:
            with _opened(beside[0]) as stored:
                softmax = read_softmax(stored, SOFTMAX, dim=config.encoder.projection_dim, source=str(beside[0]))
    return with_words(StoredModel(bilm, head=softmax), weights, words=words)


def write(stored: StoredModel, weights: Path, *, options_file: Path) -> None:
    """Save a biLM, a full softmax and the words; all files appear whole, or none.

    Args:
        stored: the model; an adaptive softmax and mixes have no place in the format and are left out.
        weights: the HDF5 file.
        options_file: the options, JSON.

    Raises:
        WeightsError: the format cannot hold the model, a weight is not finite, a file cannot be written, or options or
            words of other weights are in the way.
    """
    bilm = stored.bilm
    options = Options.of(bilm.config)
    vocabulary_file = weights.with_name(VOCABULARY_NAME)
    for path in (options_file, vocabulary_file) if stored.lexicon is not None else (options_file,):
        if path.exists() and not weights.exists():
            raise WeightsError(
                f"{path} is there and belongs to other weights than {weights.name}, which are new; "
                "save into another folder, or name another options file"
            )
    # No `char_cnn` means a word-level model to bilm-tf, but AllenNLP wants the clips to be there, if only as null.
    absent = {name for name, value in options if value is None}
    with replacing(options_file) as new_options, replacing(weights) as new_weights:
        new_options.write_text(options.model_dump_json(indent=2, exclude=absent) + "\n", "utf-8")
        with h5py.File(new_weights, "w") as file:
            # One layer, too, goes below MultiRNNCell: that is the only place where AllenNLP and bilm-tf look.
            for name, tensor in disassemble(bilm, table(bilm.config), source=str(weights)):
                file.create_dataset(name, data=tensor.numpy())
            if isinstance(stored.head, LMHead):
                for name, tensor in zip(SOFTMAX, plain_tensors(stored.head, source=str(weights)).values(), strict=True):
                    file.create_dataset(name, data=tensor.numpy())
        if stored.lexicon is not None:
            with replacing(vocabulary_file) as new_vocabulary:
                stored.lexicon.write(new_vocabulary)


@contextmanager
def _opened(path: Path) -> Iterator[dict[str, StoredTensor]]:
    """All datasets of a file, unread."""
    with reading(path, HDF5):
        file = h5py.File(path, "r")
    datasets: dict[str, h5py.Dataset] = {}

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            datasets[name] = item

    with file:
        with reading(path, HDF5):
            file.visititems(visit)
            stored = {name: _stored_tensor(dataset, path) for name, dataset in datasets.items()}
            claimed = sum(dataset.size * dataset.dtype.itemsize for dataset in datasets.values())
            size = path.stat().st_size
        check_expansion(claimed, size, source=path)
        yield stored


def _stored_tensor(dataset: h5py.Dataset, path: Path) -> StoredTensor:
    if dataset.shape is None or dataset.external is not None or dataset.is_virtual:
        raise WeightsError(f"dataset {dataset.name!r} of {path} keeps its values in another file or has none")

    def read() -> Tensor:
        with reading(path, HDF5):
            values = np.asarray(dataset[...])
        with np.errstate(over="ignore"):  # becomes infinite, and is reported as such
            return torch.from_numpy(values.astype(np.float32))

    return StoredTensor(tuple(dataset.shape), str(dataset.dtype), dataset.dtype.kind == "f", read)
