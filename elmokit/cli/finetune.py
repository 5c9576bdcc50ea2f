"""`elmokit finetune`: a model to one that knows the text of a task."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmokit.cli.train import Accelerator

if TYPE_CHECKING:
    from elmokit.train.finetune import Adapted
    from elmokit.train.objective import Perplexity
    from elmokit.train.recipe import CorpusRecipe


def finetune(
    model: Annotated[str, typer.Argument(help="Name, directory of a language model, or a checkpoint of bilm-tf.")],
    corpus: Annotated[
        list[str],
        typer.Argument(metavar="CORPUS...", help="Files or patterns: text, .jsonl, .parquet; .gz, .xz, .zst unpacked."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the new model; an earlier run goes on.")],
    tokenized: Annotated[
        bool, typer.Option("--tokenized", help="A line is a sentence of tokens. Else raw text is split and tokenised.")
    ] = False,
    held_out: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Measure on this text; may be given again.")
    ] = None,
    held_out_share: Annotated[
        float, typer.Option(min=0, max=0.9, help="Share of the corpus to measure on, without --held-out.")
    ] = 0.1,
    add_words: Annotated[int, typer.Option(min=0, help="Frequent new words to add to the softmax.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps in all, instead of --epochs.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the corpus.")] = 3,
    rows: Annotated[int, typer.Option(min=1, help="Streams of text read side by side, 20 tokens of each a step.")] = 32,
    learning_rate: Annotated[float, typer.Option(min=1e-9, help="Of the top layer, at its peak.")] = 1e-3,
    layer_decay: Annotated[float, typer.Option(min=1, help="How many times smaller it is a layer further down.")] = 2.6,
    unfreeze_every: Annotated[
        int, typer.Option(min=0, help="Steps until the next layer down joins; 0 for all at once.")
    ] = 0,
    dropout: Annotated[float, typer.Option(min=0, max=0.9, help="On LSTM inputs and before the softmax.")] = 0.1,
    evaluate_every: Annotated[
        int | None, typer.Option(min=1, help="Steps between measurements.", show_default="a tenth of all")
    ] = None,
    patience: Annotated[int, typer.Option(min=1, help="Stop after so many measurements without a better one.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Of order, negatives and dropout.")] = 1,
    accelerator: Annotated[Accelerator, typer.Option(help="What to compute on.")] = Accelerator.auto,
    threads: Annotated[int, typer.Option(min=1, help="Threads of matrix products.")] = 1,
    cache: Annotated[Path | None, typer.Option(help="Folder of prepared corpora.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Adapt a language model to unlabelled text, and print held-out perplexity before and after.

    The model that comes out is the best of all that were measured. Words outside the vocabulary are read by their
    characters as ever, and predicted as <UNK>.
    """
    import platformdirs

    from elmokit.errors import require

    require("lightning", extra="train")
    from elmokit.train.finetune import Plan
    from elmokit.train.finetune import finetune as run
    from elmokit.train.run import StoppedError

    try:
        found = run(
            model,
            _sources(corpus, held_out or [], tokenized=tokenized, share=held_out_share),
            output,
            root=Path.cwd(),
            cache=cache or platformdirs.user_cache_path("elmokit") / "corpora",
            plan=Plan(
                steps=steps,
                epochs=epochs,
                rows=rows,
                learning_rate=learning_rate,
                layer_decay=layer_decay,
                unfreeze_every=unfreeze_every,
                dropout=dropout,
                add_words=add_words,
                evaluate_every=evaluate_every,
                patience=patience,
                seed=seed,
            ),
            accelerator=accelerator.value,
            threads=threads,
            report=lambda message: typer.echo(message, err=True),
        )
    except StoppedError as error:
        typer.echo(f"elmokit: {error}", err=True)
        raise typer.Exit(128 + error.signal) from None
    typer.echo(json.dumps({"model": str(output), **_record(found)}) if as_json else f"{_table(found)}\n{output}")


def _sources(corpus: list[str], held_out: list[str], *, tokenized: bool, share: float) -> "CorpusRecipe":
    from elmokit.train.recipe import CorpusRecipe, Source

    return CorpusRecipe(
        sources=tuple(Source(files=files) for files in corpus),
        tokenized=tokenized,
        held_out=share,
        held_out_sources=tuple(Source(files=files) for files in held_out),
    )


def _record(found: "Adapted") -> dict[str, Any]:
    def figures(of: "Perplexity") -> dict[str, float]:
        return {"forward": of.forward, "backward": of.backward, "mean": of.mean}

    return {
        "softmax": "full",
        "vocabulary": found.num_words,
        "added": found.added,
        "step": found.step,
        "steps": found.steps,
        "tokens": found.before.tokens,
        "unknown": found.before.unknown,
        "before": figures(found.before),
        "after": figures(found.after),
    }


def _table(found: "Adapted") -> str:
    """Figures in columns."""
    lines = [
        f"held-out perplexity by the full softmax over {found.num_words:,} words, {found.before.tokens:,} tokens, "
        f"{found.before.unknown / found.before.tokens:.1%} unknown",
        f"{'':16}  {'forward':>10}  {'backward':>10}  {'mean':>10}",
    ]
    for name, figures in (("before", found.before), (f"at step {found.step:,}", found.after)):
        values = "  ".join(f"{value:10,.2f}" for value in (figures.forward, figures.backward, figures.mean))
        lines.append(f"{name:16}  {values}")
    if not found.step:
        lines.append(f"no measurement in {found.steps:,} steps was better than the model itself, which was kept")
    return "\n".join(lines)
