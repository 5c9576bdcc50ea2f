"""ELMoForManyLangs' format (Che et al. 2018): a directory of two pickles, two dictionaries and two JSON files.

`token_embedder.pkl` and `encoder.pkl` hold the tensors, `char.dic` and `word.dic` name the rows of their tables, and
`config.json` names the file with the architecture (`manylangs_architecture`). Tensors are laid out as in AllenNLP; the
character table is brought into our order, which is where its exchanged word markers are taken care of.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import torch

from elmokit.config import BiLMConfig, CharCNNConfig, EncoderConfig, WordAndCharConfig
from elmokit.errors import InputError, WeightsError
from elmokit.text.characters import SENTENCE_END, SENTENCE_START
from elmokit.text.lexicon import UNKNOWN, Lexicon
from elmokit.weights.dictionary import read_dictionary, write_dictionary
from elmokit.weights.files import replacing
from elmokit.weights.layouts import Entry, StoredModel, StoredTensor, assemble, check_depth, disassemble
from elmokit.weights.manylangs_architecture import Architecture, read_architecture
from elmokit.weights.pickles import read_tensors
from elmokit.weights.transforms import HIGHWAY_GATE, Step

CONFIG_NAME: Final = "config.json"
ARCHITECTURE_NAME: Final = "architecture.json"
TOKENS_NAME: Final = "token_embedder.pkl"
ENCODER_NAME: Final = "encoder.pkl"
CHARACTERS_NAME: Final = "char.dic"
WORDS_NAME: Final = "word.dic"
CHARACTER_TABLE: Final = "char_emb_layer.embedding.weight"
WORD_TABLE: Final = "word_emb_layer.embedding.weight"

# As ELMoForManyLangs numbers them, behind the characters.
SPECIAL_CHARACTERS: Final = ("<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>")
# In our order. Its code begins a word with the row of <eow> and ends it with that of <bow>, in training as in use.
OUR_MARKERS: Final = ("<bos>", "<eos>", "<eow>", "<bow>", "<pad>", "<oov>")
# Both ways, so that a word of the text that looks like one of ours keeps a row and a name of its own.
RENAMED: Final = {
    theirs: ours
    for pair in (("<bos>", SENTENCE_START), ("<eos>", SENTENCE_END), ("<oov>", UNKNOWN))
    for theirs, ours in (pair, pair[::-1])
}


def find(folder: Path) -> tuple[Path, Path] | None:
    """The configuration and the encoder's weights of a folder in this format; None if it is in another."""
    weights = folder / ENCODER_NAME
    return (folder / CONFIG_NAME, weights) if weights.is_file() else None


def read(config_file: Path, weights: Path, *, words: bool = True, head: bool = False) -> StoredModel:
    """Load a biLM and its words.

    Args:
        config_file: the arguments of the training, JSON.
        weights: the encoder's; the other files lie beside.
        words: of no meaning here, since the words are a part of the model.
        head: of no meaning here: a softmax in `classifier.pkl` is not read.

    Raises:
        ConfigError: the JSON describes no biLM.
        WeightsError: a file is missing or damaged, or belongs to another model.
    """
    folder = weights.parent
    architecture, source = read_architecture(config_file, folder)
    stored = {**read_tensors(folder / TOKENS_NAME), **read_tensors(weights)}
    embedder = architecture.token_embedder
    characters = _keys(folder / CHARACTERS_NAME, stored, CHARACTER_TABLE) if embedder.char_dim > 0 else []
    known = _keys(folder / WORDS_NAME, stored, WORD_TABLE) if embedder.word_dim > 0 else []
    alphabet = _alphabet(characters, folder / CHARACTERS_NAME)
    config = architecture.config(alphabet, len(known), source=source)
    check_depth(config, len(stored), source=str(folder))
    bilm = assemble(config, table(config, characters), stored, source=str(folder))
    return StoredModel(bilm, lexicon=_lexicon(known, folder / WORDS_NAME) if known else None)


def write(stored: StoredModel, folder: Path) -> None:
    """Save a biLM and its words, as ELMoForManyLangs reads them; all files appear whole, or none.

    Args:
        stored: the model; a softmax and mixes have no place in the format.
        folder: where; it is made, and files of these names in it are replaced.

    Raises:
        InputError: a model of words comes without them.
        WeightsError: the format cannot hold such a model, a weight is not finite, or a file cannot be written.
    """
    config = stored.bilm.config
    architecture = Architecture.of(config)
    if stored.lexicon is None and not isinstance(config.tokens, CharCNNConfig):
        raise InputError(f"{folder}: this model reads words, which the format holds too; convert it from its files")
    alphabet = config.characters.alphabet if config.characters else None
    characters = [*alphabet, *SPECIAL_CHARACTERS] if alphabet else []
    tensors = {
        name: tensor.clone()  # torch.save would write all that a view is cut from
        for name, tensor in disassemble(stored.bilm, table(config, characters), source=str(folder))
    }
    encoder = {name: tensor for name, tensor in tensors.items() if name.startswith(("forward_", "backward_"))}
    tokens = {name: tensor for name, tensor in tensors.items() if name not in encoder}
    with ExitStack() as files:

        def new(name: str) -> Path:
            return files.enter_context(replacing(folder / name))

        new(ARCHITECTURE_NAME).write_text(architecture.model_dump_json(indent=2) + "\n", "utf-8")
        new(CONFIG_NAME).write_text(json.dumps({"config_path": ARCHITECTURE_NAME}) + "\n", "utf-8")
        for name, part in ((TOKENS_NAME, tokens), (ENCODER_NAME, encoder)):
            torch.save(part, new(name), _use_new_zipfile_serialization=False)  # or PyTorch 0.4 could not read it
        if characters:
            write_dictionary(new(CHARACTERS_NAME), characters)
        if stored.lexicon is not None and not isinstance(config.tokens, CharCNNConfig):
            write_dictionary(new(WORDS_NAME), [RENAMED.get(word, word) for word in stored.lexicon.words])


def table(config: BiLMConfig, characters: Sequence[str]) -> list[Entry]:
    """Every tensor of both pickles.

    Args:
        config: the biLM's shape.
        characters: keys of the character table, by row.
    """
    return [*_token_entries(config, characters), *_encoder_entries(config.encoder)]


def _token_entries(config: BiLMConfig, characters: Sequence[str]) -> Iterator[Entry]:
    ours = "token_encoder."
    if isinstance(config.tokens, WordAndCharConfig):
        yield Entry(WORD_TABLE, (ours + "embedding.weight",))
    if config.characters:
        cnn = ours if isinstance(config.tokens, CharCNNConfig) else ours + "char_cnn."
        yield Entry(CHARACTER_TABLE, (cnn + "embedding",), (_in_our_order(characters),))
        for i in range(len(config.characters.filters)):
            for part in ("weight", "bias"):
                yield Entry(f"convolutions.{i}.{part}", (f"{cnn}convolutions.{i}.{part}",))
        for k in range(config.characters.num_highways):
            for part in ("weight", "bias"):
                pair = tuple(f"{cnn}highways.{k}.{gate}.{part}" for gate in ("transform", "carry"))
                yield Entry(f"highways._layers.{k}.{part}", pair, (HIGHWAY_GATE,), dim=0)
    for part in ("weight", "bias"):
        yield Entry(f"projection.{part}", (f"{ours}projection.{part}",))


def _encoder_entries(encoder: EncoderConfig) -> Iterator[Entry]:
    names = {
        "input_linearity.weight": "weight_ih",
        "state_linearity.weight": "weight_hh",
        "state_linearity.bias": "bias",
        "state_projection.weight": "weight_hr",
    }
    for direction in ("forward", "backward"):
        for layer in range(encoder.num_layers):
            for theirs, ours in names.items():
                yield Entry(f"{direction}_layer_{layer}.{theirs}", (f"{direction}_encoder.layers.{layer}.{ours}",))


def _in_our_order(characters: Sequence[str]) -> Step:
    """Their rows to ours: code points in their order, then our markers."""
    rows = {key: row for row, key in enumerate(characters)}
    order = torch.tensor([row for key, row in rows.items() if key not in OUR_MARKERS] + [rows[m] for m in OUR_MARKERS])
    back = order.argsort()
    return Step(lambda x: x[order], lambda x: x[back])


def _keys(path: Path, stored: Mapping[str, StoredTensor], table_name: str) -> list[str]:
    """The keys of a table's rows.

    Raises:
        WeightsError: as `read_dictionary` does, or there are more or fewer than rows.
    """
    keys = read_dictionary(path)
    shape = stored[table_name].shape if table_name in stored else ()
    if shape and shape[0] != len(keys):
        raise WeightsError(
            f"{path} has {len(keys)} entries, but the table {table_name!r} beside it has {shape[0]} rows; "
            "the two belong to different models: put the dictionary there that came with these weights"
        )
    return keys


def _alphabet(keys: Sequence[str], path: Path) -> str:
    """The code points among the keys of the character table.

    Raises:
        WeightsError: a marker is missing, or a key is neither.
    """
    missing = [marker for marker in OUR_MARKERS if marker not in keys] if keys else []
    ordinary = [key for key in keys if key not in OUR_MARKERS]
    longer = [key for key in ordinary if len(key) != 1]
    if missing or longer:
        raise WeightsError(
            f"{path} is no dictionary of characters: "
            + (f"it lacks {', '.join(missing)}" if missing else f"{longer[0]!r} is no single character")
        )
    return "".join(ordinary)


def _lexicon(keys: Sequence[str], path: Path) -> Lexicon:
    """The words of the word table's rows; the special ones by our names.

    Raises:
        WeightsError: one of them is missing.
    """
    try:
        return Lexicon([RENAMED.get(key, key) for key in keys])
    except InputError as error:
        raise WeightsError(f"{path} is no dictionary of words (<bos>, <eos> and <oov> among them): {error}") from error
