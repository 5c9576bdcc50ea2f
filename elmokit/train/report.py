"""What a running training says: one line now and then on standard error, the same as JSON lines in the run's folder.

The loss of a sampled softmax is named as such; perplexity is only ever the full softmax's on held-out text. Figures
are those of all processes together.
"""

import dataclasses
import json
import os
import time
from pathlib import Path

import lightning
from lightning.pytorch.callbacks import Callback
from rich.console import Console

from elmokit.model.lm_head import AdaptiveHead
from elmokit.train.checkpoints import over_processes
from elmokit.train.module import BiLMTraining
from elmokit.train.objective import Perplexity, perplexity

SENTENCES_AT_ONCE = 2000  # of held-out text; between them a run can be stopped


class Report(Callback):
    """Prints progress, measures held-out perplexity, writes `metrics.jsonl`."""

    def __init__(self, folder: Path, *, every_seconds: float = 10.0) -> None:
        """Args:
        folder: of the run.
        every_seconds: time between two lines.
        """
        self.metrics, self.every_seconds = folder / "metrics.jsonl", every_seconds
        self.console = Console(stderr=True, soft_wrap=True, highlight=False)
        self.last: Perplexity | None = None

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Say what is about to happen."""
        assert isinstance(module, BiLMTraining)
        if trainer.is_global_zero:
            forget_after(self.metrics, trainer.global_step)
        self.begin(trainer, module)
        exact = "adaptive" if isinstance(module.model.head, AdaptiveHead) else "full"
        kind = "sampled" if module.sampler else exact
        self.say(
            trainer,
            f"{module.total_steps:,} steps of {module.tokens_per_step:,} tokens, "
            f"{module.steps_per_epoch:,.0f} an epoch of {module.stream.tokens_per_epoch:,} tokens; "
            f"{module.num_words:,} words to predict; "
            f"softmax: {kind}; starting at step {trainer.global_step:,}",
        )
        self.say(trainer, memory_needed(module, physical_memory()))

    def begin(self, trainer: lightning.Trainer, module: BiLMTraining) -> None:
        """Start a new stretch of measuring."""
        self.since_step, self.since = trainer.global_step, time.monotonic()
        module.losses.zero_()

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, outputs: object, batch: object, index: int
    ) -> None:
        """Report after some seconds, evaluate after some steps."""
        assert isinstance(module, BiLMTraining)
        if (index + 1) % trainer.accumulate_grad_batches:
            return
        step, every = trainer.global_step, module.recipe.training.evaluate_every
        last = step >= module.total_steps
        evaluate = last or bool(every and step % every == 0)  # its time is not that of steps, so these are told first
        due = time.monotonic() - self.since >= self.every_seconds
        if evaluate or any(over_processes(trainer, "max", due)):
            self.progress(trainer, module)
        if evaluate:
            self.evaluate(trainer, module)
            self.begin(trainer, module)

    def progress(self, trainer: lightning.Trainer, module: BiLMTraining) -> None:
        """One line of progress."""
        step, steps = trainer.global_step, trainer.global_step - self.since_step
        rate = steps / (time.monotonic() - self.since)
        losses = over_processes(trainer, "sum", *module.losses.tolist())
        forward, backward = (x / (steps * trainer.accumulate_grad_batches * trainer.world_size) for x in losses)
        left = (module.total_steps - step) / rate
        name = "sampled loss" if module.sampler else "loss"
        self.say(
            trainer,
            f"step {step:,}/{module.total_steps:,}  epoch {step / module.steps_per_epoch:.2f}  "
            f"{rate * module.tokens_per_step:,.0f} tokens/s  {name} {(forward + backward) / 2:.4f}  "
            f"left {int(left // 3600)}:{int(left % 3600 // 60):02}",
        )
        self.record(
            trainer,
            {
                "step": step,
                f"{name} forward": forward,
                f"{name} backward": backward,
                "tokens per second": rate * module.tokens_per_step,
                "learning rate": trainer.optimizers[0].param_groups[0]["lr"],
            },
        )
        self.begin(trainer, module)

    def evaluate(self, trainer: lightning.Trainer, module: BiLMTraining) -> None:
        """Measure held-out perplexity, each process on its share of the sentences; given up when the run is to stop."""
        held_out = module.corpus.held_out
        if not len(held_out):
            self.say(trainer, "no held-out perplexity: nothing was held out (see held_out in the recipe)")
            return
        found = Perplexity()
        first, stride = trainer.global_rank * SENTENCES_AT_ONCE, trainer.world_size * SENTENCES_AT_ONCE
        for start in range(first, len(held_out), stride):
            if module.stopped_by:
                break
            part = dataclasses.replace(held_out, offsets=held_out.offsets[start : start + SENTENCES_AT_ONCE + 1])
            found += perplexity(module.model, module.corpus, part)
        if any(over_processes(trainer, "max", module.stopped_by)):
            return
        forward, backward, tokens, unknown = over_processes(trainer, "sum", *dataclasses.astuple(found))
        self.last = found = Perplexity(forward, backward, int(tokens), int(unknown))
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

    def say(self, trainer: lightning.Trainer, message: str) -> None:
        """Print a line, once over all processes."""
        if trainer.is_global_zero:
            self.console.print(message)

    def record(self, trainer: lightning.Trainer, values: dict[str, float]) -> None:
        """Append to the log, once over all processes."""
        if trainer.is_global_zero:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")


def forget_after(log: Path, step: int) -> None:
    """Drop what an earlier run logged beyond the step that this one goes on from, and a line it left unfinished."""
    if not log.exists():
        return
    lines = log.read_text("utf-8").splitlines(keepends=True)
    kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
    temporary = log.with_suffix(".partial")
    temporary.write_text("".join(kept), "utf-8")
    temporary.replace(log)


def memory_needed(module: BiLMTraining, available: int) -> str:
    """A line on what the parameters take, with a warning where that is most of the memory.

    Args:
        module: before its first step.
        available: bytes.
    """
    bilm, head = (sum(p.numel() for p in part.parameters()) for part in (module.model.bilm, module.model.head))
    copies = 3 if module.recipe.training.optimizer == "adagrad" else 4  # weight, gradient, moments
    needed = 4 * copies * (bilm + head)
    line = (
        f"{bilm / 1e6:,.1f} M parameters and {head / 1e6:,.1f} M of the softmax; "
        f"with gradients and the optimiser's state {needed / 1e9:,.1f} GB"
    )
    if needed > available / 2:
        line += (
            f", more than half of this machine's {available / 1e9:,.1f} GB: if memory runs out, lower "
            'corpus.vocabulary_size or set training.softmax to "adaptive"'
        )
    return line


def physical_memory() -> int:
    """Bytes of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
