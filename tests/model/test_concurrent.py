"""Tasks side by side: results in order, the caller's modes, one thread each, errors, forks, tasks within tasks."""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from elmokit.model.concurrent import conducted, num_workers, side_by_side, workers_for


def test_results_come_in_order_and_tasks_run_at_the_same_time():
    together = threading.Barrier(3)

    def task(number):
        together.wait(60)
        return number

    assert side_by_side([lambda number=number: task(number) for number in range(3)], workers=3) == [0, 1, 2]


@pytest.mark.parametrize("workers", [1, 2])
def test_tasks_have_the_callers_modes(workers):
    def modes():
        return (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
        )

    for context in (
        torch.no_grad(),
        torch.inference_mode(),
        torch.enable_grad(),
        torch.autocast("cpu", dtype=torch.float16),
    ):
        with context:
            assert side_by_side([modes, modes], workers=workers) == [modes()] * 2


def test_a_task_has_one_thread_and_the_caller_keeps_his():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert side_by_side([torch.get_num_threads] * 4) == [1] * 4
        assert torch.get_num_threads() == 3
        later = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert later == [3]
    finally:
        torch.set_num_threads(before)


def test_a_task_that_cuts_its_own_work_does_not_wait_for_itself():
    def outer():
        return sum(side_by_side([lambda: 1] * 5))

    assert side_by_side([outer] * 8, workers=2) == [5] * 8


def test_an_error_is_raised_when_all_have_ended():
    ended = []

    def fail():
        raise ValueError("this one")

    def slow():
        time.sleep(0.2)
        ended.append(1)

    with pytest.raises(ValueError, match="this one"):
        side_by_side([fail, slow], workers=2)
    assert ended


def test_gradients_are_recorded_by_one_worker_alone():
    weight = torch.ones(2, requires_grad=True)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        assert workers_for(weight) == 1
        with torch.no_grad():
            assert workers_for(weight) == 4
        assert workers_for(weight.detach()) == 4
        assert workers_for(torch.empty(1, device="meta")) == 1
    finally:
        torch.set_num_threads(before)


def test_a_conductor_cuts_for_the_callers_threads_and_splits_nothing_itself():
    def task():
        within = side_by_side([num_workers] * 3)
        return num_workers(), torch.get_num_threads(), within, torch.is_inference_mode_enabled()

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with torch.inference_mode():
            assert conducted(task) == (3, 1, [1, 1, 1], True)
            assert conducted(lambda: conducted(task)) == (3, 1, [1, 1, 1], True)
        assert torch.get_num_threads() == 3
        torch.set_num_threads(1)
        assert conducted(threading.current_thread) is threading.current_thread()
    finally:
        torch.set_num_threads(before)


CODE = """
import os, threading
import torch
from elmokit.model.concurrent import side_by_side
import elmokit.embed.embedder
assert threading.active_count() == 1, threading.enumerate()
torch.set_num_threads(2)
x = torch.ones(64, 64)
assert [float(y.sum()) for y in side_by_side([lambda: x @ x] * 4)] == [64.0**3] * 4
child = os.fork()
if not child:
    os._exit(0 if [float(y.sum()) for y in side_by_side([lambda: x @ x] * 4)] == [64.0**3] * 4 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_no_thread_at_import_and_a_forked_process_starts_its_own():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
