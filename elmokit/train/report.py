"""What a running training says: one line now and then on standard error, the same as JSON lines in the run's folder.

The loss of a sampled softmax is named as such; perplexity is only ever the full softmax's on held-out text.
"""

import json
import time
from pathlib import Path

import lightning
from lightning.pytorch.callbacks import Callback
from rich.console import Console

from elmokit.train.module import BiLMTraining
from elmokit.train.objective import Perplexity, perplexity


class Report(Callback):
    """Prints progress, measures held-out perplexity, writes `metrics.jsonl`."""

    def __init__(self, folder: Path, *, every_seconds: float = 10.0) -> None:
        """Args:
        folder: of the run.
        every_seconds: time between two lines.
        """
        self.folder, self.every_seconds = folder, every_seconds
        self.console = Console(stderr=True, soft_wrap=True, highlight=False)
        self.last: Perplexity | None = None

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Say what is about to happen."""
        assert isinstance(module, BiLMTraining)
        self.begin(trainer.global_step)
        stream = module.stream
        tokens = len(stream.rows) * trainer.world_size * stream.window
        self.say(
            trainer,
            f"{module.total_steps:,} steps of {tokens:,} tokens, "
            f"{stream.steps_per_epoch:,} an epoch of {stream.tokens_per_epoch:,} tokens; "
            f"{module.num_words:,} words to predict; "
            f"softmax: {'sampled' if module.sampler else 'full'}; starting at step {trainer.global_step:,}",
        )

    def begin(self, step: int) -> None:
        """Start a new stretch of measuring."""
        self.since_step, self.since = step, time.monotonic()

    def on_train_batch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule, *_: object) -> None:
        """Report after some seconds, evaluate after some steps."""
        assert isinstance(module, BiLMTraining)
        step = trainer.global_step
        every = module.recipe.training.evaluate_every
        last = step >= module.total_steps
        if last or time.monotonic() - self.since >= self.every_seconds:
            self.progress(trainer, module)
        if last or (every and step % every == 0):
            self.evaluate(trainer, module)

    def progress(self, trainer: lightning.Trainer, module: BiLMTraining) -> None:
        """One line of progress."""
        step, steps = trainer.global_step, trainer.global_step - self.since_step
        if not steps:
            return
        tokens_per_step = len(module.stream.rows) * trainer.world_size * module.stream.window
        rate = steps / (time.monotonic() - self.since)
        forward, backward = (module.losses / steps).tolist()
        module.losses.zero_()
        left = (module.total_steps - step) / rate
        name = "sampled loss" if module.sampler else "loss"
        self.say(
            trainer,
            f"step {step:,}/{module.total_steps:,}  epoch {step / module.stream.steps_per_epoch:.2f}  "
            f"{rate * tokens_per_step:,.0f} tokens/s  {name} {(forward + backward) / 2:.4f}  "
            f"left {int(left // 3600)}:{int(left % 3600 // 60):02}",
        )
        learning_rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.record(
            trainer,
            {
                "step": step,
                f"{name} forward": forward,
                f"{name} backward": backward,
                "tokens per second": rate * tokens_per_step,
                "learning rate": learning_rate,
            },
        )
        self.begin(step)

    def evaluate(self, trainer: lightning.Trainer, module: BiLMTraining) -> None:
        """Measure held-out perplexity on the first process."""
        if trainer.is_global_zero and len(module.corpus.held_out):
            self.last = found = perplexity(module.model, module.corpus, module.corpus.held_out)
            self.say(
                trainer,
                f"held-out perplexity (full softmax): forward {found.forward:.2f}  backward {found.backward:.2f}  "
                f"mean {found.mean:.2f}  on {found.tokens:,} tokens, {found.unknown / found.tokens:.1%} unknown",
            )
            self.record(
                trainer,
                {
                    "step": trainer.global_step,
                    "held-out perplexity forward": found.forward,
                    "held-out perplexity backward": found.backward,
                    "held-out perplexity mean": found.mean,
                    "held-out tokens": found.tokens,
                    "held-out unknown": found.unknown,
                },
            )
        self.begin(trainer.global_step)

    def say(self, trainer: lightning.Trainer, message: str) -> None:
        """Print a line, once over all processes."""
        if trainer.is_global_zero:
            self.console.print(message)

    def record(self, trainer: lightning.Trainer, values: dict[str, float]) -> None:
        """Append to the log, once over all processes."""
        if trainer.is_global_zero:
            with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
