"""From a recipe to a trained model in a folder: prepare, train or resume, measure, save.

A run's folder holds `checkpoints/`, `metrics.jsonl` and, in the end, `model/` in the native format with its vocabulary
and softmax.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import lightning
import torch

from elmokit.train.corpus import prepare
from elmokit.train.module import BiLMTraining, Checkpoints, latest_checkpoint
from elmokit.train.objective import Perplexity
from elmokit.train.recipe import Recipe
from elmokit.train.report import Report
from elmokit.weights.native import save_language_model


def train(
    recipe: Recipe,
    folder: Path,
    *,
    root: Path,
    cache: Path,
    processes: int = 1,
    threads: int | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> Perplexity | None:
    """Train, or go on from the last checkpoint in the folder.

    Args:
        recipe: what to do.
        folder: of the run; made where it is missing.
        root: folder that the recipe's relative paths start from.
        cache: folder of prepared corpora.
        processes: on this machine.
        threads: of each process; None for torch's choice.
        report: called with a line of progress while the corpus is prepared.

    Returns:
        held-out perplexity at the end; None where nothing was held out.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # its news is not about this run
    folder.mkdir(parents=True, exist_ok=True)
    if threads:
        torch.set_num_threads(threads)
    corpus = prepare(recipe.corpus, recipe.model, root=root, cache=cache, report=report)
    module = BiLMTraining(recipe, corpus)
    progress = Report(folder)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        precision="bf16-mixed" if recipe.training.precision == "bf16" else "32-true",
        max_steps=module.total_steps,
        max_epochs=-1,
        gradient_clip_val=recipe.training.clip_norm,
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[
            progress,
            Checkpoints(folder / "checkpoints", minutes=recipe.training.checkpoint_minutes),
        ],
    )
    trainer.fit(module, ckpt_path=latest_checkpoint(folder / "checkpoints"), weights_only=True)
    if trainer.is_global_zero:
        lexicon = corpus.lexicon(module.num_words)
        save_language_model(module.model.bilm, folder / "model", head=module.model.head, lexicon=lexicon)
    return progress.last
