"""Work that is cut into tasks, each with one processor for itself.

The products of an LSTM step are too small to split: threads that share one wait for each other at every product, a
hundred times longer than they work where anything else runs on the machine. Tasks that share nothing (directions,
rows, distinct tokens) meet once, at their end. As many run at a time as torch has threads; a task that cuts its own
work has one, so that nothing ever waits for its own thread.
"""

import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch
from torch import Tensor

R = TypeVar("R")

CONDUCTORS = 32  # calls at a time; more wait for their turn


class _Here(threading.local):
    """What holds in a thread of ours, in place of torch's number of threads."""

    workers: int | None = None


_here = _Here()


def num_workers() -> int:
    """How many tasks run at a time here."""
    return _here.workers or torch.get_num_threads()


def side_by_side(tasks: Sequence[Callable[[], R]], *, workers: int | None = None) -> list[R]:
    """The results of all tasks, in order; each runs under the caller's modes (gradients, inference, autocast).

    Args:
        tasks: that share nothing they write to.
        workers: how many run at a time; None for `num_workers`.
    """
    workers = num_workers() if workers is None else workers
    if workers < 2 or len(tasks) < 2:
        return [task() for task in tasks]
    pool = _pool(workers, os.getpid())
    futures = [pool.submit(_as_here(task)) for task in tasks]
    wait(futures)  # none is left running when one of them has failed
    return [future.result() for future in futures]


def conducted(task: Callable[[], R]) -> R:
    """The result of a task that cuts its work, in a thread whose own work torch does not split.

    What is left between `side_by_side` is little, but torch's own threads, once woken for it, go on spinning where the
    tasks want to work.
    """
    workers = num_workers()
    if workers < 2:
        return task()

    def conduct() -> R:
        _here.workers = workers
        return task()

    before = torch.get_num_threads()
    result = _conductors(os.getpid()).submit(_as_here(conduct)).result()
    torch.set_num_threads(before)  # what a new conductor set counts for threads that the caller starts later
    return result


def wants_gradient(*tensors: Tensor) -> bool:
    """Whether a function of these has to be recorded."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def workers_for(*tensors: Tensor) -> int:
    """How many tasks on these may run at a time.

    One where gradients are recorded, and on a GPU, whose kernels run beside the program as it is.
    """
    if wants_gradient(*tensors) or any(tensor.device.type != "cpu" for tensor in tensors):
        return 1
    return num_workers()


def use_threads(number: int | None) -> None:
    """Let so many tasks run at a time from now on; None for torch's own choice, all processors."""
    if number is not None:
        torch.set_num_threads(number)


def _as_here(task: Callable[[], R]) -> Callable[[], R]:
    """The task under the modes that torch keeps for each thread by itself."""
    inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    autocast, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def work() -> R:
        with (
            torch.inference_mode(inference),
            torch.set_grad_enabled(gradients),
            torch.autocast("cpu", dtype=dtype, enabled=autocast),
        ):
            return task()

    return work


def _settle() -> None:
    """Give this thread one processor."""
    _here.workers = 1
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread that has never asked would take the number that another sets later


@functools.cache
def _pool(workers: int, process: int) -> ThreadPoolExecutor:
    """Kept for the next call: a thread's first products set up memory of its own, which its end does not give back.

    A forked process must not wait for threads that stayed in its parent, hence the second argument.
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="elmokit", initializer=_settle)
    before = torch.get_num_threads()
    together = threading.Barrier(workers + 1)  # so that all of them are there
    for _ in range(workers):
        pool.submit(together.wait)
    together.wait()
    torch.set_num_threads(before)  # what the last of them set counts for threads that the caller starts later
    return pool


@functools.cache
def _conductors(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CONDUCTORS, thread_name_prefix="elmokit-conductor", initializer=_settle)
