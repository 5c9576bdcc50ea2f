"""`elmokit train`: a recipe to a trained model."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Accelerator(StrEnum):
    """What to compute on."""

    auto = "auto"
    cpu = "cpu"
    gpu = "gpu"


def train(
    recipe: Annotated[Path, typer.Argument(help="TOML recipe; see the folder recipes/.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run; an earlier run in it goes on.")],
    steps: Annotated[int | None, typer.Option(min=1, help="Steps in all, instead of the recipe's.")] = None,
    decay_steps: Annotated[
        int | None, typer.Option(min=0, help="Steps of the final decay, instead of the recipe's.")
    ] = None,
    accelerator: Annotated[Accelerator, typer.Option(help="What to compute on.")] = Accelerator.auto,
    processes: Annotated[int, typer.Option(min=1, help="Processes on each machine; on GPUs, how many GPUs.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines, each of which runs this command.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads of matrix products in each process.")] = 1,
    cache: Annotated[Path | None, typer.Option(help="Folder of prepared corpora.")] = None,
) -> None:
    """Pretrain a biLM, or go on where an earlier run in the same folder stopped."""
    import platformdirs

    from elmokit.errors import require

    require("lightning", extra="train")
    from lightning.pytorch.utilities import rank_zero_only

    from elmokit.train.recipe import Recipe
    from elmokit.train.run import StoppedError
    from elmokit.train.run import train as run

    loaded = Recipe.read(recipe)
    changes = {"steps": steps, "decay_steps": decay_steps}
    changes = {name: value for name, value in changes.items() if value is not None}
    try:
        run(
            loaded.model_copy(update={"training": loaded.training.model_copy(update=changes)}),
            output,
            root=recipe.resolve().parent,
            cache=cache or platformdirs.user_cache_path("elmokit") / "corpora",
            accelerator=accelerator.value,
            processes=processes,
            nodes=nodes,
            threads=threads,
            report=lambda message: typer.echo(message, err=True),
        )
    except StoppedError as error:
        typer.echo(f"elmokit: {error}", err=True)
        raise typer.Exit(128 + error.signal) from None
    if getattr(rank_zero_only, "rank", 0) == 0:  # typed as a function
        typer.echo(str(output / "model"))
