"""The run itself on Lightning's Trainer: optimiser, schedule, carried state, checkpoints, resume.

Lightning gives the loop, precision and processes; the model, the objective, the place in the data and the carried
state are ours, and every checkpoint holds them for every process. A batch depends on the step number alone, so a run
goes on exactly where its last checkpoint was made.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from elmokit.errors import TrainingError
from elmokit.model.build import build_bilm
from elmokit.model.lm_head import LMHead, LogUniformSampler
from elmokit.model.outputs import BiLMState, LSTMState
from elmokit.train.corpus import Corpus
from elmokit.train.objective import LanguageModel
from elmokit.train.recipe import Recipe, TrainingRecipe
from elmokit.train.stream import Batch, Stream


class BatchesFrom(IterableDataset[Batch]):
    """The batches of a stream from a step on."""

    def __init__(self, stream: Stream, start: int, stop: int) -> None:
        self.stream, self.start, self.stop = stream, start, stop

    def __iter__(self) -> Iterator[Batch]:
        for step in range(self.start, self.stop):
            yield self.stream.batch(step)


class BiLMTraining(lightning.LightningModule):
    """Pretraining of one biLM."""

    def __init__(self, recipe: Recipe, corpus: Corpus) -> None:
        """Args:
        recipe: what to train and how.
        corpus: prepared from the recipe's files.
        """
        super().__init__()
        self.recipe, self.corpus = recipe, corpus
        training = recipe.training
        torch.manual_seed(training.seed)
        self.num_words = min(recipe.corpus.vocabulary_size, len(corpus.types))
        self.model = LanguageModel(
            build_bilm(recipe.model, dropout=training.dropout),
            LMHead(self.num_words, recipe.model.encoder.projection_dim),
            dropout=training.dropout,
        )
        self.sampler = (
            LogUniformSampler(self.num_words, training.num_samples, seed=training.seed)
            if training.num_samples < self.num_words
            else None
        )
        self.carried: BiLMState | None = None
        self.losses = torch.zeros(2)  # summed since the last report: forward, backward
        self.start_step = 0
        self.stream = Stream(corpus, rows=training.rows, window=training.window, seed=training.seed)
        self.total_steps = training.steps or training.epochs * self.stream.steps_per_epoch

    def train_dataloader(self) -> DataLoader[Batch]:
        """Batches from where the run stands; called again on resume."""
        training = self.recipe.training
        self.stream = Stream(
            self.corpus,
            rows=training.rows,
            window=training.window,
            seed=training.seed,
            rank=self.trainer.global_rank,
            num_ranks=self.trainer.world_size,
        )
        return DataLoader(BatchesFrom(self.stream, self.start_step, self.total_steps), batch_size=None)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """One window of all rows."""
        candidates = self.sampler.draw(self.trainer.global_step) if self.sampler else None
        forward, backward, self.carried = self.model(
            batch, self.carried, candidates, seed=self._seed(self.trainer.global_step)
        )
        self.losses += torch.stack([forward.detach(), backward.detach()])
        loss: Tensor = (forward + backward) / 2
        if not torch.isfinite(loss.detach()):
            raise TrainingError(
                f"the loss is {loss.detach().item()} at step {self.trainer.global_step}; the last checkpoint is kept. "
                "Lower learning_rate or clip_norm, then resume"
            )
        return loss

    def configure_optimizers(self) -> Any:  # noqa: ANN401  Lightning's union of many shapes
        """The recipe's optimiser and schedule."""
        training = self.recipe.training
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        optimizer: torch.optim.Optimizer
        if training.optimizer == "adagrad":
            optimizer = torch.optim.Adagrad(parameters, training.learning_rate, initial_accumulator_value=1.0)
        else:
            matrices = [p for p in parameters if p.dim() > 1]
            rest = [p for p in parameters if p.dim() <= 1]
            groups = [
                {"params": matrices, "weight_decay": training.weight_decay},
                {"params": rest, "weight_decay": 0.0},
            ]
            optimizer = torch.optim.AdamW(groups, training.learning_rate, betas=(0.9, 0.98))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate_factor(step, training, self.total_steps)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what every process carries; runs on all of them."""
        shares: list[Any] = [_pack(self.carried)]
        if self.trainer.world_size > 1:
            shares = [None] * self.trainer.world_size
            torch.distributed.all_gather_object(shares, _pack(self.carried))
        checkpoint["elmokit"] = {"step": self.trainer.global_step, "shares": shares}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take back this process's part."""
        saved = checkpoint["elmokit"]
        self.start_step = saved["step"]
        if len(saved["shares"]) != self.trainer.world_size:
            raise TrainingError(
                f"the checkpoint was written by {len(saved['shares'])} processes, this run has "
                f"{self.trainer.world_size}; resume with as many"
            )
        self.carried = _unpack(saved["shares"][self.trainer.global_rank])

    def _seed(self, step: int) -> int:
        """Of the random numbers of one step of this process: nothing random is carried from step to step."""
        words = np.random.SeedSequence([self.recipe.training.seed, step, self.trainer.global_rank]).generate_state(1)
        return int(words[0])


def learning_rate_factor(step: int, training: TrainingRecipe, total_steps: int) -> float:
    """Share of the peak learning rate at a step: linear rise, level, linear fall."""
    rise = (step + 1) / training.warmup_steps if step < training.warmup_steps else 1.0
    fall = (total_steps - step) / training.decay_steps if training.decay_steps else 1.0
    return max(0.0, min(1.0, rise, fall))


def _pack(state: BiLMState | None) -> list[Tensor] | None:
    if state is None:
        return None
    return [state.forward.hidden, state.forward.cell, state.backward.hidden, state.backward.cell]


def _unpack(tensors: list[Tensor] | None) -> BiLMState | None:
    return None if tensors is None else BiLMState(LSTMState(*tensors[:2]), LSTMState(*tensors[2:]))


class Checkpoints(Callback):
    """A checkpoint every few minutes and at the end, the last ones kept, each appearing under its name only whole."""

    def __init__(self, folder: Path, *, minutes: float, keep: int = 2) -> None:
        """Args:
        folder: where.
        minutes: time between two.
        keep: how many.
        """
        self.folder, self.minutes, self.keep = folder, minutes, keep
        self.saved_at = time.monotonic()

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        """Save when it is time, by the first process's clock."""
        due = time.monotonic() - self.saved_at >= 60 * self.minutes
        if trainer.world_size > 1:
            due = trainer.strategy.broadcast(due)
        if due:
            self.save(trainer)

    def on_train_end(self, trainer: lightning.Trainer, *_: object) -> None:
        """Save the end."""
        self.save(trainer)

    def save(self, trainer: lightning.Trainer) -> None:
        """Save now; every process takes part."""
        path = self.folder / f"step-{trainer.global_step}.ckpt"
        temporary = path.with_suffix(".partial")
        trainer.save_checkpoint(temporary)
        if trainer.is_global_zero:
            temporary.replace(path)
            for old in _numbered(self.folder)[: -self.keep]:
                old.unlink()
        self.saved_at = time.monotonic()


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that a run goes on from."""
    found = _numbered(folder)
    return found[-1] if found else None


def _numbered(folder: Path) -> list[Path]:
    """Checkpoints by step."""
    return sorted(folder.glob("step-*.ckpt"), key=lambda path: int(path.stem.removeprefix("step-")))
