"""What a model is: its facts for `elmokit models show`, and a card to publish it with.

Facts come from the catalog and from the files themselves, so a card says nothing that was not read or given. The front
matter of a card is that of the Hugging Face Hub.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from elmokit import weights
from elmokit.config import BiLMConfig, CharCNNConfig
from elmokit.errors import InputError, WeightsError
from elmokit.weights import hub, native
from elmokit.weights.catalog import PublishedModel, locate, nearest, published
from elmokit.weights.download import cached_path
from elmokit.weights.files import describe, replacing


@dataclass(frozen=True, slots=True)
class Facts:
    """What the files of a model say.

    Attributes:
        path: where they are.
        format: of the files.
        bytes: of all files there.
        parameters: numbers of the biLM.
        layers: with the token layer (L + 1).
        width: of a layer (2 P).
        cell: of the LSTM (D).
        tokens: what a token is read from.
        language: ISO 639-1 code; None if the files do not say.
        licence: of the card; None if there is none.
    """

    path: str
    format: str
    bytes: int
    parameters: int
    layers: int
    width: int
    cell: int
    tokens: str
    language: str | None
    licence: str | None


def facts(path: Path) -> Facts:
    """Load a model and say what it is.

    Raises:
        ElmokitError: as `load_bilm` does.
    """
    bilm = weights.load_bilm(path)
    config = bilm.config
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    tokens = config.tokens
    return Facts(
        path=str(path),
        format=_format(path),
        bytes=sum(file.stat().st_size for file in files),
        parameters=sum(parameter.numel() for parameter in bilm.parameters()),
        layers=config.num_layers,
        width=config.output_dim,
        cell=config.encoder.cell_dim,
        tokens=f"at most {tokens.max_characters_per_token - 2} characters"
        if isinstance(tokens, CharCNNConfig)
        else f"one of {tokens.num_words:,} words",
        language=config.language,
        licence=hub.licence_of((path if path.is_dir() else path.parent) / hub.CARD_NAME),
    )


def show(name_or_path: str) -> dict[str, Any]:
    """All that is known of a model: of the catalog, and where its files are here, of them.

    Args:
        name_or_path: of a built-in or published model, of a repository that has been fetched, or a path.

    Raises:
        WeightsError: there is no such model; the message names the nearest ones.
        ElmokitError: as `load_bilm` does.
    """
    if name_or_path in weights.available_models():
        with resources.as_file(resources.files("elmokit") / "assets" / name_or_path) as path:
            return {"name": name_or_path, "built_in": True, **asdict(facts(path))}
    if Path(name_or_path).exists():
        return asdict(facts(Path(name_or_path)))
    if name_or_path in published():
        model = published()[name_or_path]
        known = model.model_dump() | {"size": model.size, "cached": model.is_cached}
        return known | ({"files_here": asdict(facts(model.path))} if model.is_cached else {})
    if name_or_path.startswith(hub.SCHEME) or hub.may_be_repository(name_or_path):
        return asdict(facts(hub.snapshot(name_or_path, local_only=True)))
    if "://" in name_or_path:
        return asdict(facts(cached_path(name_or_path)))
    raise unknown(name_or_path)


@contextmanager
def fetched(name: str) -> Iterator[Path]:
    """The local file or folder of a model by name, address or path, while it is needed.

    Args:
        name: as for `load_bilm`, but a pair.

    Raises:
        DownloadError: it cannot be fetched.
        WeightsError: there is no such model; the message names the nearest ones.
    """
    if name in weights.available_models():
        with resources.as_file(resources.files("elmokit") / "assets" / name) as path:
            yield path
        return
    path = cached_path(locate(name))
    if not path.exists():
        raise unknown(name)
    yield path


def unknown(name: str) -> WeightsError:
    """The error for a name that is none."""
    near = nearest(name, weights.available_models())
    meant = f"did you mean {' or '.join(near)}?" if near else "see `elmokit models list` for names"
    return WeightsError(f"there is no model {name!r}; {meant}")


def write_card(folder: str | Path, *, licence: str, name: str | None = None, language: str | None = None) -> Path:
    """Write `README.md` beside a saved model, with what its files say.

    Args:
        folder: what `save_bilm` wrote.
        licence: SPDX identifier, such as "apache-2.0" or "cc-by-4.0".
        name: what others will load it by, such as "owner/name"; by default the folder's name.
        language: ISO 639-1 code; by default the model's own.

    Raises:
        InputError: there is a card, or the licence is no identifier.
        ElmokitError: as `load_bilm` does.
    """
    folder = Path(folder)
    target = folder / hub.CARD_NAME
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", licence, re.ASCII):
        raise InputError(f"the licence {licence!r} is no identifier; expected one such as apache-2.0, cc-by-4.0, mit")
    if language is not None and not re.fullmatch(r"[a-z]{2,3}", language):
        raise InputError(f"the language {language!r} is no code; expected one such as en, zh, grc")
    if target.exists():
        raise InputError(f"{target} exists; add `license: {licence}` to its front matter, or remove it first")
    text = _card(facts(folder), licence=licence.lower(), name=name or folder.resolve().name, language=language)
    with replacing(target) as temporary:
        temporary.write_text(text, "utf-8")
    return target


def _card(known: Facts, *, licence: str, name: str, language: str | None) -> str:
    language = language or known.language
    front = [f"language: {language}"] if language else []
    front += [f"license: {licence}", "library_name: elmokit", "pipeline_tag: feature-extraction"]
    front += ["tags:", *(f"- {tag}" for tag in ("elmo", "bilm", "word-vectors", "contextual-embeddings"))]
    rows = {
        "layers": f"{known.layers}, each {known.width} wide: two directions of {known.width // 2}",
        "LSTM": f"cell {known.cell}",
        "tokens": known.tokens,
        "parameters": f"{known.parameters:,}",
        "format": known.format,
        "language": language or "not stated",
        "licence": licence,
    }
    return "\n".join(
        [
            *("---", *front, "---", "", f"# {name}", ""),
            "A bidirectional LSTM language model for contextual word vectors (ELMo, Peters et al. 2018).",
            *("", "| | |", "| --- | --- |"),
            *(f"| {key} | {value} |" for key, value in rows.items()),
            *("", "```python", "import elmokit", ""),
            f'vectors = elmokit.load("{name}").embed([["A", "sentence", "of", "tokens", "."]])',
            *("```", "", "## Text", "", "What it was trained on is not stated.", ""),
        ]
    )


def _format(path: Path) -> str:
    """The name of the format's module, or what a file is by its first bytes."""
    if path.is_dir():
        for layout in weights._LAYOUTS:
            if layout.find(path) is not None:
                return str(getattr(layout, "__name__", "")).rpartition(".")[2]
    return describe(path)


def listed() -> list[dict[str, Any]]:
    """Built-in models, then the catalog: name, language, size in bytes, format, where it is, title."""
    rows: list[dict[str, Any]] = []
    for name in weights.available_models():
        folder = resources.files("elmokit") / "assets" / name
        with resources.as_file(folder) as path:
            config = BiLMConfig.from_json((path / native.CONFIG_NAME).read_text("utf-8"))
            size = sum(file.stat().st_size for file in path.iterdir())
        rows.append(_row(name, config.language, size, "native", "built in", f"{config.output_dim} wide"))
    return rows + [_row(m.name, m.language, m.size, m.format, _place(m), m.title) for m in published().values()]


def _row(name: str, language: str | None, size: int | None, format: str, place: str, title: str) -> dict[str, Any]:
    return {"name": name, "language": language, "size": size, "format": format, "place": place, "title": title}


def _place(model: PublishedModel) -> str:
    if model.is_cached:
        return "cached"
    return "to fetch" if model.files else "by hand"
