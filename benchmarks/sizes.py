"""Which shape of a model in the box learns most in the same time: held-out perplexity of a few, each trained alike.

    python benchmarks/sizes.py small-en|small-zh [--minutes 5] [--cache FOLDER] [--write]

Time is that of the processor, summed over threads, so that other programs on the machine hardly matter. A variant makes
as many steps as fit into it, with the recipe's schedule stretched over them, on a sample of the recipe's corpus, and is
measured on a sample of the text that the recipe holds out. Senses and tasks take no part in the choice.
"""

import argparse
import dataclasses
import json
import math
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import results  # beside this file

from elmokit.train.corpus import Corpus, Sentences, prepare
from elmokit.train.module import BiLMTraining
from elmokit.train.objective import perplexity
from elmokit.train.recipe import Recipe
from elmokit.train.report import Report
from elmokit.train.run import fit

RECIPES = Path(__file__).parents[1] / "recipes"
EVERY = {"train": 10, "held_out": 4}  # sentences of which one is taken
CALIBRATION = 20  # steps
HAN = re.compile("([\u4e00-\u9fff])")
BITS_OF_A_CHARACTER = math.log2(6000)  # what spelling a character of an unknown word costs at the very most


@dataclasses.dataclass(frozen=True)
class Variant:
    """What differs from the recipe.

    Attributes:
        name: of the row.
        encoder: fields of `EncoderConfig`.
        tokens: fields of `CharCNNConfig`.
        corpus: fields of `CorpusRecipe`.
        by_character: whether each Chinese character is a token.
    """

    name: str
    encoder: dict[str, Any] = dataclasses.field(default_factory=dict)
    tokens: dict[str, Any] = dataclasses.field(default_factory=dict)
    corpus: dict[str, Any] = dataclasses.field(default_factory=dict)
    by_character: bool = False


BYTES = {"filters": ((1, 32), (2, 32), (3, 96), (4, 96), (6, 256)), "max_characters_per_token": 50}
VARIANTS = {
    "small-en": (
        Variant("P 192, D 512, as in the recipe"),
        Variant("P 128, D 1024", encoder={"projection_dim": 128, "cell_dim": 1024}),
        Variant("P 256, D 384", encoder={"projection_dim": 256, "cell_dim": 384}),
        Variant("P 128, D 512", encoder={"projection_dim": 128, "cell_dim": 512}),
    ),
    "small-zh": (
        Variant("words of UTF-8 bytes", tokens=BYTES, corpus={"alphabet_size": None}),
        Variant("words of code points, as in the recipe"),
        Variant("single characters, code points", by_character=True),
    ),
}


def sample(corpus: Corpus, folder: Path, *, by_character: bool) -> dict[str, Any]:
    """Write some sentences of each source, one a line, and give the fields of a `CorpusRecipe` that reads them."""
    spell = [HAN.sub(r" \1 ", word).split() if by_character else [word] for word in corpus.types]

    def write(sentences: Sentences, source: int, path: Path, every: int) -> dict[str, Any]:
        start, end = sentences.sources[source : source + 2]
        with path.open("w", encoding="utf-8") as file:
            for index in range(start, end, every):
                file.write(" ".join(piece for t in sentences[index][1:-1] for piece in spell[t]) + "\n")
        return {"files": str(path), "weight": corpus.weights[source]}

    parts: dict[str, Any] = {"train": [], "held_out": []}
    for source in range(len(corpus.weights)):
        for part, found in parts.items():
            path = folder / f"{part}-{source}.txt"
            row = write(getattr(corpus, part), source, path, EVERY[part])
            if path.stat().st_size:
                found.append(row)
    return {"tokenized": True, "sources": parts["train"], "held_out_sources": parts["held_out"]}


def measure(recipe: Recipe, variant: Variant, whole: Corpus, folder: Path, seconds: float) -> dict[str, Any]:
    """Train one variant for so many seconds of processor time."""
    values = recipe.model_dump(mode="json")
    values["model"]["encoder"] |= variant.encoder
    values["model"]["tokens"] |= variant.tokens
    values["corpus"] |= {**sample(whole, folder, by_character=variant.by_character), **variant.corpus}
    corpus = prepare(
        Recipe.model_validate(values).corpus, Recipe.model_validate(values).model, root=folder, cache=folder / "cache"
    )

    def run(steps: int) -> tuple[BiLMTraining, float]:
        schedule = {"steps": steps, "warmup_steps": steps // 8, "decay_steps": steps // 2, "evaluate_every": 0}
        changed = Recipe.model_validate({**values, "training": values["training"] | schedule})
        empty = dataclasses.replace(corpus.held_out, offsets=corpus.held_out.offsets[:1])
        module = BiLMTraining(changed, dataclasses.replace(corpus, held_out=empty))
        start = time.process_time()
        fit(module, folder / f"run-{steps}", progress=Report(folder / f"run-{steps}"), threads=1)
        return module, time.process_time() - start

    _, once = run(1)
    _, some = run(1 + CALIBRATION)
    module, spent = run(max(10, round(seconds / ((some - once) / CALIBRATION))))
    found = perplexity(module.model, corpus, corpus.held_out)
    characters = sum(len(word) for word in map(corpus.types.__getitem__, corpus.held_out.tokens.tolist()))
    characters -= sum(len(word) for word in corpus.types[:2]) * len(corpus.held_out)  # boundaries
    unknown = sum(len(corpus.types[t]) for t in corpus.held_out.tokens.tolist() if t >= module.num_words)
    bits = (found.forward_loss + found.backward_loss) / 2 / math.log(2)
    return {
        "variant": variant.name,
        "parameters": sum(p.numel() for p in module.model.parameters()),
        "processor seconds": round(spent),
        "tokens": module.total_steps * module.tokens_per_step,
        "perplexity": found.mean,
        "unknown": found.unknown / found.tokens,
        "bits a character": bits / characters,
        "bits with unknown words spelt": (bits + unknown * BITS_OF_A_CHARACTER) / characters,
    }


def markdown(found: dict[str, Any]) -> str:
    """The table and what it stands on."""
    lines = [
        f"{found['date']}, commit {found['commit']}, {found['machine']}; {found['recipe']}, "
        f"{found['minutes']:g} minutes of processor time each.",
        "",
        "| variant | parameters | tokens read | perplexity | unknown | bits a character | with unknown words spelt |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['variant']} | {row['parameters'] / 1e6:.1f} M | {row['tokens'] / 1e6:.1f} M | {row['perplexity']:.1f} "
        f"| {row['unknown']:.1%} | {row['bits a character']:.3f} | {row['bits with unknown words spelt']:.3f} |"
        for row in found["rows"]
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train, measure, print."""
    parser = argparse.ArgumentParser(description="Held-out perplexity of a few shapes after the same time.")
    parser.add_argument("recipe", choices=VARIANTS)
    parser.add_argument("--minutes", type=float, default=5.0, help="of processor time for each variant")
    parser.add_argument("--cache", type=Path, default=RECIPES.parent / ".cache" / "corpora", help="of prepared corpora")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help=f"also put the table into {results.RESULTS.name}")
    arguments = parser.parse_args()
    recipe = Recipe.read(RECIPES / f"{arguments.recipe}.toml")
    corpus = prepare(recipe.corpus, recipe.model, root=RECIPES, cache=arguments.cache)
    rows = []
    for variant in VARIANTS[arguments.recipe]:
        with tempfile.TemporaryDirectory() as name:
            rows.append(measure(recipe, variant, corpus, Path(name), 60 * arguments.minutes))
    found = {**results.origin(), "recipe": arguments.recipe, "minutes": arguments.minutes, "rows": rows}
    text = markdown(found)
    print(json.dumps(found, indent=2) if arguments.json else text)  # noqa: T201
    if arguments.write:
        results.write(f"## Sizes of {arguments.recipe}", text)


if __name__ == "__main__":
    main()
