"""elmokit: ELMo, whole and alive.

The names below are the public door. They are resolved when first used, so that `import elmokit` loads no torch.

    load(name_or_path)       an `Embedder`: text in, vectors out             elmokit.embed
    Elmo, batch_to_ids       what AllenNLP scripts import                    elmokit.compat
    ElmoEmbedder
    BiLM, build_bilm         the network                                     elmokit.model
    ElmoModule, ScalarMix
    BiLMConfig               its shape                                       elmokit.config
    load_bilm, save_bilm     weight files of every format                    elmokit.weights

Folders: `text` (strings to ids), `model` (ids to layers), `weights` (files), `embed` (vectors to files), `compat`,
`train`, `cli`. Code lower in docs/design.md's list imports code above it, never the reverse.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elmokit.compat.allennlp import Elmo, ElmoEmbedder, batch_to_ids
    from elmokit.config import BiLMConfig
    from elmokit.embed.embedder import Embedder, load
    from elmokit.errors import ElmokitError
    from elmokit.model.bilm import BiLM
    from elmokit.model.build import build_bilm
    from elmokit.model.elmo import ElmoModule
    from elmokit.model.mix import ScalarMix
    from elmokit.weights import available_models, load_bilm, save_bilm

__version__ = "0.1.0"

__all__ = [
    "BiLM",
    "BiLMConfig",
    "Elmo",
    "ElmoEmbedder",
    "ElmoModule",
    "ElmokitError",
    "Embedder",
    "ScalarMix",
    "__version__",
    "available_models",
    "batch_to_ids",
    "build_bilm",
    "load",
    "load_bilm",
    "save_bilm",
]

_HOMES = {
    "BiLM": "elmokit.model.bilm",
    "BiLMConfig": "elmokit.config",
    "Elmo": "elmokit.compat.allennlp",
    "ElmoEmbedder": "elmokit.compat.allennlp",
    "ElmoModule": "elmokit.model.elmo",
    "ElmokitError": "elmokit.errors",
    "Embedder": "elmokit.embed.embedder",
    "ScalarMix": "elmokit.model.mix",
    "available_models": "elmokit.weights",
    "batch_to_ids": "elmokit.compat.allennlp",
    "build_bilm": "elmokit.model.build",
    "load": "elmokit.embed.embedder",
    "load_bilm": "elmokit.weights",
    "save_bilm": "elmokit.weights",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'elmokit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
