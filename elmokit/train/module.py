"""What Lightning's Trainer runs: the steps of pretraining, optimiser, schedule, carried state and what resuming needs.

Lightning gives the loop, precision and processes; the model, the objective, the place in the data and the carried
state are ours, and a checkpoint holds them for all rows. A batch and all that is random in a step depend on the step
number alone, so a run goes on exactly where its last checkpoint was made, whatever ended it.
"""

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import lightning
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from elmokit.errors import TrainingError
from elmokit.model.build import build_bilm
from elmokit.model.lm_head import Candidates, LMHead, LogUniformSampler, build_softmax
from elmokit.model.outputs import BiLMState, LSTMState
from elmokit.train.corpus import Corpus
from elmokit.train.objective import LanguageModel
from elmokit.train.recipe import Recipe, TrainingRecipe
from elmokit.train.stream import Batch, Stream

# Fields of `training` that a run cannot change on the way: the place in the data and the optimiser's state need them.
FIXED = {"rows", "window", "accumulate", "seed", "optimizer", "weight_decay", "softmax"}


class BatchesFrom(IterableDataset[tuple[int, Batch]]):
    """The batches of a stream from one on, each with its number."""

    def __init__(self, stream: Stream, start: int, stop: int) -> None:
        self.stream, self.start, self.stop = stream, start, stop

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        for number in range(self.start, self.stop):
            yield number, self.stream.batch(number)


class BiLMTraining(lightning.LightningModule):
    """Pretraining of one biLM."""

    def __init__(self, recipe: Recipe, corpus: Corpus, *, model: LanguageModel | None = None) -> None:
        """Args:
        recipe: what to train and how.
        corpus: prepared from the recipe's files.
        model: what to go on with; None for a new one of the recipe's shape.
        """
        super().__init__()
        self.recipe, self.corpus = recipe, corpus
        training = recipe.training
        torch.manual_seed(training.seed)
        self.model = model or LanguageModel(
            build_bilm(corpus.model(recipe.model), dropout=training.dropout),
            build_softmax(
                min(recipe.corpus.vocabulary_size, len(corpus.types)),
                recipe.model.encoder.projection_dim,
                adaptive=training.softmax == "adaptive",
            ),
            dropout=training.dropout,
        )
        self.num_words = self.model.head.num_words
        self.sampler = (
            LogUniformSampler(self.num_words, training.num_samples, seed=training.seed)
            if training.softmax == "sampled"
            and isinstance(self.model.head, LMHead)
            and training.num_samples < self.num_words
            else None
        )
        self.losses = torch.zeros(2)  # summed since the last report: forward, backward
        self.carried: BiLMState | None = None
        self.start_step = 0
        self.stopped_by = 0  # the signal that asked this run to stop
        self.stream = Stream(corpus, rows=training.rows, window=training.window, seed=training.seed)
        self.steps_per_epoch = self.stream.steps_per_epoch / training.accumulate
        self.tokens_per_step = training.rows * training.window * training.accumulate
        self.total_steps = training.steps or max(1, int(training.epochs * self.steps_per_epoch))

    def train_dataloader(self) -> DataLoader[tuple[int, Batch]]:
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
        start, stop = (step * training.accumulate for step in (self.start_step, self.total_steps))
        return DataLoader(BatchesFrom(self.stream, start, stop), batch_size=None)

    def on_train_batch_start(self, *_: object) -> None:
        """Set the learning rate: a function of the step, so that no schedule has a state to keep."""
        training = self.recipe.training
        for group in self.trainer.optimizers[0].param_groups:
            factor = learning_rate_factor(self.trainer.global_step, training, self.total_steps)
            group["lr"] = training.learning_rate * factor

    def training_step(self, numbered: tuple[int, Batch], index: int) -> Tensor:
        """One window of all rows."""
        number, batch = numbered
        training = self.recipe.training
        candidates = None
        if self.sampler:
            drawn = self.sampler.draw(number)
            candidates = Candidates(drawn.words.to(self.device), self.log_expected)
        forward, backward, self.carried = self.model(batch, self.carried, candidates, seed=self._seed(number))
        self.losses += torch.stack([forward.detach(), backward.detach()])
        loss: Tensor = (forward + backward) / 2
        # bilm-tf's learning rate and clip are meant for gradients of the loss summed over the window.
        scale = training.window if training.optimizer == "adagrad" else 1
        # Some infinite losses have finite gradients. This one gets none, so that every process sees it below.
        return loss * torch.where(loss.detach().isfinite(), scale, math.nan)

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *_: object, **__: object) -> None:
        """Clip the gradients of all processes, or stop before a step that would spoil the weights.

        Raises:
            TrainingError: the loss or a gradient is not finite.
        """
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.recipe.training.clip_norm)
        if not norm.isfinite():
            raise TrainingError(
                f"the loss or its gradient is not finite at step {self.trainer.global_step}; the step was not made and "
                "the last checkpoint is kept. Lower learning_rate or clip_norm, then resume"
            )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The recipe's optimiser."""
        training = self.recipe.training
        if training.optimizer == "adagrad":
            alike = [{"params": parameters} for parameters in self.blocks()]
            return torch.optim.Adagrad(alike, training.learning_rate, initial_accumulator_value=1.0)
        groups = []
        for parameters in self.blocks():
            matrices = [p for p in parameters if p.dim() > 1]
            rest = [p for p in parameters if p.dim() <= 1]
            groups += [{"params": matrices, "weight_decay": training.weight_decay}]
            groups += [{"params": rest, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, training.learning_rate, betas=(0.9, 0.98))

    def blocks(self) -> list[list[nn.Parameter]]:
        """Parameters that learn alike: here all of them."""
        return [list(self.model.parameters())]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the carried state of all rows and what the run is; runs on every process."""
        own = [tensor.cpu() for tensor in _pack(self.carried)] if self.carried else []
        shares = [own]
        if self.trainer.world_size > 1:
            shares = [[] for _ in range(self.trainer.world_size)]
            torch.distributed.all_gather_object(shares, own)
        carried = [torch.cat(parts, dim=1) for parts in zip(*shares, strict=True)]
        checkpoint["elmokit"] = {"step": self.trainer.global_step, "carried": carried, "identity": self._identity()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take back this process's rows, whatever the number of processes was.

        Raises:
            TrainingError: the checkpoint is of another model, corpus or order of the data.
        """
        saved = checkpoint["elmokit"]
        before, now = saved["identity"], self._identity()
        changed = [f"{name} was {before[name]}, is {now.get(name)}" for name in before if before[name] != now.get(name)]
        if changed:
            raise TrainingError(
                f"the checkpoint belongs to another run: {'; '.join(changed)}. Put the recipe or the files back, or "
                "start anew in another folder"
            )
        self.start_step = saved["step"]
        self.carried = _unpack(saved["carried"])

    def on_train_start(self) -> None:
        """Keep the state of this process's rows, and have all that a step needs on its device."""
        self.losses = self.losses.to(self.device)
        if self.sampler:
            self.log_expected = self.sampler.log_expected.to(self.device)
        if self.carried is not None:
            rows = slice(self.stream.rows.start, self.stream.rows.stop)
            self.carried = _unpack([tensor[:, rows].to(self.device) for tensor in _pack(self.carried)])

    def _identity(self) -> dict[str, Any]:
        """What must not change between the parts of a run, by dotted name."""
        digest = hashlib.sha256(np.ascontiguousarray(self.corpus.train.offsets).tobytes())
        digest.update("\n".join(self.corpus.types).encode("utf-8", "surrogatepass"))
        values = self.recipe.model_dump(mode="json", include={"training": FIXED})
        values["model"] = self.corpus.model(self.recipe.model).model_dump(mode="json")
        tokens = values["model"]["tokens"]
        tokens["alphabet"] = (
            hashlib.sha256(tokens["alphabet"].encode()).hexdigest()[:12] if "alphabet" in tokens else "bytes"
        )
        values["corpus"] = {
            "text": digest.hexdigest()[:12],
            "weights": list(self.corpus.weights),
            "vocabulary_size": self.num_words,
        }
        return _flat(values)

    def _seed(self, number: int) -> int:
        """Of the random numbers of one batch of this process: nothing random is carried from batch to batch."""
        words = np.random.SeedSequence([self.recipe.training.seed, number, self.trainer.global_rank]).generate_state(1)
        return int(words[0])


def learning_rate_factor(step: int, training: TrainingRecipe, total_steps: int) -> float:
    """Share of the peak learning rate at a step: linear rise, level, fall to zero in a line or a half cosine."""
    rise = (step + 1) / training.warmup_steps if step < training.warmup_steps else 1.0
    fall = (total_steps - step) / training.decay_steps if training.decay_steps else 1.0
    fall = max(0.0, min(1.0, fall))
    if training.decay == "cosine":
        fall = (1 - math.cos(math.pi * fall)) / 2
    return min(rise, fall)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _pack(state: BiLMState) -> list[Tensor]:
    return [state.forward.hidden, state.forward.cell, state.backward.hidden, state.backward.cell]


def _unpack(tensors: list[Tensor]) -> BiLMState | None:
    return BiLMState(LSTMState(*tensors[:2]), LSTMState(*tensors[2:])) if tensors else None
