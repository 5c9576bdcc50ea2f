"""When a run is saved and how it stops: checkpoints that appear whole, the last ones kept, and signals.

`module` says what a checkpoint holds; Lightning writes it. All processes of a run save and stop together.
"""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Literal

import lightning
import torch
from lightning.pytorch.callbacks import Callback

from elmokit.train.module import BiLMTraining


def over_processes(trainer: lightning.Trainer, operation: Literal["max", "sum"], *values: float) -> list[float]:
    """The largest or the sum of each value over all processes, so that all of them know the same."""
    if trainer.world_size == 1:
        return list(values)
    own = torch.tensor(values, dtype=torch.float64, device=trainer.strategy.root_device)
    together: list[float] = trainer.strategy.reduce(own, reduce_op=operation).tolist()
    return together


class Checkpoints(Callback):
    """A checkpoint every few minutes, at the end and on SIGINT or SIGTERM, each appearing under its name only whole."""

    def __init__(self, folder: Path, *, minutes: float, keep: int) -> None:
        """Args:
        folder: where.
        minutes: time between two.
        keep: how many.
        """
        self.folder, self.minutes, self.keep = folder, minutes, keep
        self.saved_at = time.monotonic()

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Clean up after a run that was killed, and wait for signals.

        Lightning's own handler of SIGTERM, replaced here, ends a run without saving it, and lets processes wait for
        one another in vain.
        """
        assert isinstance(module, BiLMTraining)
        if trainer.is_global_zero:
            for left in self.folder.glob("*.partial"):
                left.unlink()

        def stop(number: int, frame: object) -> None:
            module.stopped_by = number
            signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once

        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, stop)
            signal.signal(signal.SIGTERM, stop)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, outputs: object, batch: object, index: int
    ) -> None:
        """Save when it is time; never between the batches of one step."""
        assert isinstance(module, BiLMTraining)
        if (index + 1) % trainer.accumulate_grad_batches:
            return
        late = time.monotonic() - self.saved_at >= 60 * self.minutes
        due, stopped_by = over_processes(trainer, "max", late, module.stopped_by)
        module.stopped_by = int(stopped_by)
        trainer.should_stop = trainer.should_stop or bool(stopped_by)
        if due or trainer.should_stop or trainer.global_step >= module.total_steps:
            self.save(trainer)

    def save(self, trainer: lightning.Trainer) -> None:
        """Save now; every process takes part."""
        path = self.folder / f"step-{trainer.global_step}.ckpt"
        temporary = path.with_suffix(".partial")
        trainer.save_checkpoint(temporary)
        if trainer.is_global_zero:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())  # or the new name could outlive its bytes when the machine stops
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
