"""A training of bilm-tf: `checkpoint`, `model.ckpt-N.{index, data-*}` and `options.json`, read without TensorFlow.

The variables are those of bilm-tf's HDF5 files under their names in the graph (`variables`), with the softmax, so that
training can go on from here. The bytes are `tensor_bundle`'s business. Words are in the vocabulary file of the
training, which has to be put beside.
"""

import re
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

from elmokit.weights.files import TENSOR_BUNDLE, describe, reading
from elmokit.weights.layouts import StoredModel, assemble, check_depth
from elmokit.weights.options import Options, options_beside
from elmokit.weights.tensor_bundle import read_bundle
from elmokit.weights.variables import SOFTMAX, WORD_TABLE, num_words, table
from elmokit.weights.vocabulary import read_softmax, with_words

INDEX: Final = ".index"
SCOPE: Final = "lm/"
# From the names in HDF5 files to those in the graph, which are of TensorFlow 1.2 and later.
_IN_THE_GRAPH: Final = {
    "/RNN/MultiRNNCell/Cell": "/rnn/multi_rnn_cell/cell_",
    "/RNN/LSTMCell/": "/rnn/lstm_cell/",
    "/LSTMCell/": "/lstm_cell/",
    "/W_0": "/kernel",
    "/B": "/bias",
    "/W_P_0": "/projection/kernel",
}


def find(folder: Path) -> tuple[Path, Path] | None:
    """The options and the index of the newest checkpoint of a folder; None without any.

    Raises:
        WeightsError: there are no options beside it.
    """
    found = [
        path
        for path in folder.glob(f"*{INDEX}")
        if path.is_file() and (".ckpt" in path.name or describe(path) == TENSOR_BUNDLE)
    ]
    if not found:
        return None
    latest = _named_latest(folder)
    newest = max(found, key=lambda path: (path.name == latest, _step(path), path.name))
    return options_beside(newest), newest


def _named_latest(folder: Path) -> str | None:
    """The index that the file `checkpoint` names, often by a path on another machine."""
    path = folder / "checkpoint"
    if not path.is_file():
        return None
    with reading(path, "the list of checkpoints"), path.open("rb") as file:
        text = file.read(2**16).decode("utf-8", "replace")
    named = re.search(r'^\s*model_checkpoint_path:\s*"(.*)"', text, re.MULTILINE)
    return PurePosixPath(named[1].replace("\\", "/")).name + INDEX if named else None


def _step(index: Path) -> int:
    """The N of `model.ckpt-N.index`."""
    number = re.search(r"-(\d{1,18})$", index.name.removesuffix(INDEX))
    return int(number[1]) if number else -1


def read(options_file: Path, index: Path, *, words: bool = False, head: bool = False) -> StoredModel:
    """Load a biLM and what lies with it.

    Args:
        options_file: the options, JSON.
        index: `model.ckpt-N.index`.
        words: read the vocabulary of a word-level model.
        head: read the softmax, and the vocabulary where it is there.

    Raises:
        ConfigError: the options describe no biLM.
        InputError: the vocabulary is none.
        WeightsError: a file is missing or damaged, or they do not belong together.
    """
    options = Options.read(options_file)
    everything = {
        name.removeprefix(SCOPE): tensor for name, tensor in read_bundle(index).items() if name.startswith(SCOPE)
    }
    # What is named below a variable is what the optimiser knows of it.
    variables = {name: tensor for name, tensor in everything.items() if name.rpartition("/")[0] not in everything}
    stored = {name: tensor for name, tensor in variables.items() if name not in SOFTMAX}
    source = str(index)
    config = options.config(num_words(stored), source=options_file)
    check_depth(config, len(stored), source=source)
    entries = table(config, bare_cell=config.encoder.num_layers == 1)
    bilm = assemble(
        config, [replace(entry, theirs=_in_the_graph(entry.theirs)) for entry in entries], stored, source=source
    )
    softmax = None
    if head and SOFTMAX[1] in variables:
        matrix = SOFTMAX[0] if SOFTMAX[0] in variables else WORD_TABLE  # `share_embedding_softmax`
        softmax = read_softmax(variables, (matrix, SOFTMAX[1]), dim=config.encoder.projection_dim, source=source)
    return with_words(StoredModel(bilm, head=softmax), index, words=words)


def _in_the_graph(name: str) -> str:
    if name.startswith("RNN"):
        for theirs, graph in _IN_THE_GRAPH.items():
            name = name.replace(theirs, graph)
    return name
