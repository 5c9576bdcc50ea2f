"""The words that lie beside a model's weights, in the file formats of bilm-tf and the NLPL archives.

Formats without words of their own keep them so: `vocab.txt`, `vocab.txt.gz`, or one file with `vocab` in its name such
as the published `vocab-2016-09-10.txt`. They are a word-level model's rows, and what a softmax predicts.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from elmokit.config import CharCNNConfig
from elmokit.errors import WeightsError
from elmokit.model.lm_head import Softmax, build_softmax
from elmokit.text.lexicon import Lexicon
from elmokit.weights.files import reading
from elmokit.weights.layouts import LARGEST_MODEL, Entry, StoredModel, StoredTensor, fill

VOCABULARY_NAME = "vocab.txt"


def lexicon_beside(weights: Path) -> Lexicon | None:
    """The vocabulary beside a weight file; None if there is none.

    Raises:
        InputError: the file is no vocabulary.
        WeightsError: there are several, or it cannot be read.
    """
    folder = weights.parent
    found = [path for path in (folder / VOCABULARY_NAME, folder / f"{VOCABULARY_NAME}.gz") if path.is_file()][:1]
    found = found or sorted(p for p in folder.glob("*vocab*.txt*") if p.suffix in (".txt", ".gz") and p.is_file())
    if not found:
        return None
    if len(found) > 1:
        raise WeightsError(
            f"several vocabularies lie beside {weights} ({', '.join(path.name for path in found)}), expected one; "
            f"name the one that belongs to it {VOCABULARY_NAME}"
        )
    with reading(found[0], "a vocabulary"):
        return Lexicon.read(found[0])


def with_words(stored: StoredModel, weights: Path, *, words: bool) -> StoredModel:
    """Add the words of a softmax that was read, and where wanted those of a word-level model.

    Raises:
        InputError: the vocabulary beside the weights is none.
        WeightsError: it has another number of words.
    """
    tokens = stored.bilm.config.tokens
    wanted = {
        "softmax": None if stored.head is None else stored.head.num_words,
        "table of words": tokens.num_words if words and not isinstance(tokens, CharCNNConfig) else None,
    }
    wanted = {name: rows for name, rows in wanted.items() if rows is not None}
    lexicon = lexicon_beside(weights) if wanted else None
    for name, rows in wanted.items():
        if lexicon is not None and len(lexicon) != rows:
            raise WeightsError(
                f"the vocabulary beside {weights} has {len(lexicon)} words, but its {name} has {rows} rows; "
                "put the one there that the model was trained with"
            )
    return replace(stored, lexicon=lexicon)


def read_softmax(
    stored: Mapping[str, StoredTensor], names: tuple[str, str], *, dim: int, source: str
) -> Softmax | None:
    """The full softmax in a file's tensors; None if there is none.

    Args:
        stored: what the file holds.
        names: of the weight and the bias there.
        dim: P.
        source: the file's name for messages.

    Raises:
        WeightsError: it does not fit, or holds NaN or infinity.
    """
    ours = {name: stored[name] for name in names if name in stored}
    if not ours:
        return None
    head = empty_softmax(max(sum(tensor.shape[:1]) for tensor in ours.values()), dim, source=source)
    table = [Entry(theirs, (name,)) for theirs, name in zip(names, head.state_dict(), strict=True)]
    fill(head, table, ours, source=source)
    return head.eval()


def empty_softmax(rows: int, dim: int, *, adaptive: bool = False, source: str) -> Softmax:
    """A softmax of meta tensors over this many words.

    Raises:
        WeightsError: the sizes are beyond what a tensor can have.
    """
    if rows * dim > LARGEST_MODEL:
        raise WeightsError(f"{source} speaks of a softmax over {rows} words, larger than any machine; it is damaged")
    with torch.device("meta"):
        return build_softmax(rows, dim, adaptive=adaptive)
