"""`elmokit train`: a recipe to a trained model."""

from pathlib import Path
from typing import Annotated

import typer


def train(
    recipe: Annotated[Path, typer.Argument(help="TOML recipe; see the folder recipes/.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run; an earlier run in it goes on.")],
    steps: Annotated[int | None, typer.Option(help="Steps in all, instead of the recipe's.")] = None,
    decay_steps: Annotated[int | None, typer.Option(help="Steps of the final decay, instead of the recipe's.")] = None,
    processes: Annotated[int, typer.Option(help="Processes on this machine.")] = 1,
    threads: Annotated[int | None, typer.Option(help="Threads of matrix products in each process.")] = 1,
    cache: Annotated[Path | None, typer.Option(help="Folder of prepared corpora.")] = None,
) -> None:
    """Pretrain a biLM, or go on where an earlier run in the same folder stopped."""
    import platformdirs

    from elmokit.errors import require

    require("lightning", extra="train")
    from elmokit.train.recipe import Recipe
    from elmokit.train.run import train as run

    loaded = Recipe.read(recipe)
    changes = {"steps": steps, "decay_steps": decay_steps}
    changes = {name: value for name, value in changes.items() if value is not None}
    run(
        loaded.model_copy(update={"training": loaded.training.model_copy(update=changes)}),
        output,
        root=recipe.resolve().parent,
        cache=cache or platformdirs.user_cache_path("elmokit") / "corpora",
        processes=processes,
        threads=threads,
        report=lambda message: typer.echo(message, err=True),
    )
    typer.echo(str(output / "model"))
