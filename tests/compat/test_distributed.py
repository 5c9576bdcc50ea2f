import subprocess
import sys
import textwrap

import pytest
import torch

from elmokit.compat.allennlp import Elmo, batch_to_ids

STEPS = [
    [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]],
    [["b", "a", "x"], ["d", "y"], ["f", "e", "z"], ["h"]],
    [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]],
]

# Each process trains on its own two rows of every batch of four, and carries their state.
WORKER = """
    import sys
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel
    from elmokit.compat.allennlp import Elmo, batch_to_ids

    rank, folder = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    elmo = Elmo(f"{folder}/options.json", f"{folder}/weights.hdf5", 1, True, dropout=0.0)
    network = DistributedDataParallel(elmo)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    outputs = []
    for batch in torch.load(f"{folder}/batches.pt"):
        out = network(batch[2 * rank : 2 * rank + 2])["elmo_representations"][0]
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()
        outputs.append(out.detach())
    torch.save((outputs, elmo.state_dict()), f"{folder}/rank{rank}.pt")
    distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_train_as_one_with_state_by_row(files, tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    batches = [batch_to_ids(step, max_characters_per_token=12) for step in STEPS]
    torch.save(batches, tmp_path / "batches.pt")
    processes = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(WORKER), str(rank), str(tmp_path)]) for rank in (0, 1)
    ]
    try:
        assert [process.wait(timeout=120) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    elmo = Elmo(*files, 1, True, dropout=0.0)
    untrained = {name: value.clone() for name, value in elmo.state_dict().items()}
    optimizer = torch.optim.SGD(elmo.parameters(), lr=0.1)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1)]
    for step, batch in enumerate(batches):
        out = elmo(batch)["elmo_representations"][0]
        torch.testing.assert_close(torch.cat([rank[0][step] for rank in ranks]), out.detach(), atol=1e-5, rtol=0)
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()
    for name, value in elmo.state_dict().items():
        torch.testing.assert_close(ranks[0][1][name], value, atol=1e-5, rtol=0)
        assert torch.equal(ranks[0][1][name], ranks[1][1][name])
    changed = [name for name, value in elmo.state_dict().items() if not torch.equal(untrained[name], value)]
    assert "mixes.0.weights" in changed
    assert "bilm.backward_encoder.layers.0.weight_hh" in changed
