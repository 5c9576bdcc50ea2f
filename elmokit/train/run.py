"""From a recipe to a trained model in a folder: prepare, train or resume, measure, save.

A run's folder holds `checkpoints/`, `metrics.jsonl` and, in the end, `model/` in the native format with its vocabulary
and softmax. The same call begins a run, goes on with one that was cut short, and lengthens one that was complete.
"""

import logging
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import lightning
import torch

from elmokit.errors import TrainingError
from elmokit.train.checkpoints import Checkpoints, latest_checkpoint
from elmokit.train.corpus import prepare
from elmokit.train.module import BiLMTraining
from elmokit.train.objective import Perplexity, perplexity
from elmokit.train.recipe import Recipe
from elmokit.train.report import Report
from elmokit.weights.native import save_language_model


class StoppedError(TrainingError):
    """A run that was saved and stopped because of a signal.

    Attributes:
        signal: which.
    """

    def __init__(self, number: int, step: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"{self.signal.name}: saved and stopped at step {step:,}; the same command goes on from there")


def train(
    recipe: Recipe,
    folder: Path,
    *,
    root: Path,
    cache: Path,
    accelerator: Literal["auto", "cpu", "gpu"] = "auto",
    processes: int = 1,
    nodes: int = 1,
    threads: int | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> Perplexity | None:
    """Train, or go on from the last checkpoint in the folder.

    With several processes the first one runs the program again for each of the others, with its arguments, unless a
    launcher such as torchrun has done so.

    Args:
        recipe: what to do.
        folder: of the run; made where it is missing. With several machines all of them must see it.
        root: folder that the recipe's relative paths start from.
        cache: folder of prepared corpora.
        accelerator: what to compute on; by default a GPU where there is one.
        processes: on each machine; on GPUs one a GPU.
        nodes: machines, each of which runs this.
        threads: of each process; None for torch's choice.
        report: called with a line of progress while the corpus is prepared.

    Returns:
        held-out perplexity at the end; None where nothing was held out, and in all processes but the first.

    Raises:
        ConfigError, InputError: see `prepare`.
        TrainingError: the run cannot start, cannot go on with this recipe, or its loss is not finite.
        StoppedError: SIGINT or SIGTERM came; the run is saved.
    """
    corpus = prepare(recipe.corpus, recipe.model, root=root, cache=cache, report=report)
    module = BiLMTraining(recipe, corpus)
    progress = Report(folder)
    if not fit(
        module, folder, progress=progress, accelerator=accelerator, processes=processes, nodes=nodes, threads=threads
    ):
        return None
    lexicon = corpus.lexicon(module.num_words)
    save_language_model(module.model.bilm, folder / "model", head=module.model.head, lexicon=lexicon)
    if progress.last is None and len(corpus.held_out):  # the run was complete before
        progress.last = perplexity(module.model, corpus, corpus.held_out)
    return progress.last


def fit(
    module: BiLMTraining,
    folder: Path,
    *,
    progress: Report,
    accelerator: Literal["auto", "cpu", "gpu"] = "auto",
    processes: int = 1,
    nodes: int = 1,
    threads: int | None = None,
) -> bool:
    """Make the steps of a module that are not behind it, from the last checkpoint in the folder.

    Args:
        module: what to run.
        folder: of the run; made where it is missing.
        progress: tells and measures.
        accelerator: as in `train`, like all that follows.
        processes: on each machine.
        nodes: machines.
        threads: of each process.

    Returns:
        whether this is the first process, which is the one to save the model.

    Raises:
        TrainingError: the run cannot go on with this module, or its loss is not finite.
        StoppedError: SIGINT or SIGTERM came; the run is saved.
    """
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)  # their news is not about this run
    folder.mkdir(parents=True, exist_ok=True)
    if threads:
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)  # or Lightning sets another number in each of several processes
    checkpoints = folder / "checkpoints"
    training = module.recipe.training
    trainer = lightning.Trainer(
        accelerator=accelerator,
        devices=processes,
        num_nodes=nodes,
        strategy=_strategy(processes * nodes),
        precision="bf16-mixed" if training.precision == "bf16" else "32-true",
        max_steps=module.total_steps,
        max_epochs=-1,
        accumulate_grad_batches=training.accumulate,
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[
            progress,
            Checkpoints(checkpoints, minutes=training.checkpoint_minutes, keep=training.keep_checkpoints),
        ],
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\.")  # it speaks to those who call it
        trainer.fit(module, ckpt_path=latest_checkpoint(checkpoints), weights_only=True)
    if trainer.is_global_zero and module.stopped_by:
        raise StoppedError(module.stopped_by, trainer.global_step)
    first: bool = trainer.is_global_zero
    return first


def _strategy(processes: int) -> str:
    """How processes work together, by Lightning's names.

    DistributedDataParallel groups gradients anew after its first step, unless it is told to look for unused parameters.
    Three processes or more then sum them in another order, and a run that was resumed would differ by rounding; the
    search costs little, and a warning that it found none.
    """
    if processes == 1:
        return "auto"
    return "ddp" if processes == 2 else "ddp_find_unused_parameters_true"
