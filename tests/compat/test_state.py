import pytest
import torch

from elmokit.compat.allennlp import Elmo, batch_to_ids
from elmokit.errors import InputError
from elmokit.text.characters import sentences_to_ids

WORDS = ["Sparks", "fly", "at", "noon", ".", "A", "cat", "sat"]


def sentence(generator, longest=5):
    length = int(torch.randint(0, longest + 1, (), generator=generator))
    return [WORDS[int(i)] for i in torch.randint(len(WORDS), (length,), generator=generator)]


# R40: sizes grow and shrink, and any size works.
@pytest.mark.parametrize("sizes", [(1, 200, 3, 129, 200), (4, 2, 1, 4, 6)])
def test_batches_of_changing_size_equal_rows_that_are_carried_by_hand(make_bilm, sizes):
    bilm = make_bilm()
    elmo = Elmo(None, None, 0, module=bilm).eval()
    generator = torch.Generator().manual_seed(1)
    by_hand = {}
    watched = {0, 1, 2, 3, 5, 77, 128, 129, 199}
    for size in sizes:
        batch = [sentence(generator) for _ in range(size)]
        with torch.no_grad():
            out = elmo.run(batch_to_ids(batch, max_characters_per_token=12)).bilm
            for row in sorted(watched & set(range(size))):
                tokens = batch[row]
                # A row's own call with its own state; an empty sentence is one of two boundaries.
                ids, lengths = sentences_to_ids([tokens], 12)
                alone = bilm(torch.from_numpy(ids), torch.from_numpy(lengths), by_hand.get(row))
                by_hand[row] = alone.state
                for got, expected in zip(out.layers, alone.layers, strict=True):
                    torch.testing.assert_close(got[row, : lengths[0]], expected[0], atol=2e-5, rtol=0)


def test_any_batch_size_works_without_state(make_bilm):
    elmo = Elmo(None, None, 1, module=make_bilm(), stateful=False).eval()
    alone = None
    for size in (1, 200, 3, 129):
        with torch.no_grad():
            out = elmo(batch_to_ids([["Sparks", "fly"]] * size, max_characters_per_token=12))
        vectors = out["elmo_representations"][0]
        alone = vectors[0] if alone is None else alone
        torch.testing.assert_close(vectors, alone.expand(size, -1, -1), atol=1e-5, rtol=0)


def test_a_batch_that_fails_leaves_the_state_as_it_was(make_bilm):
    elmo = Elmo(None, None, 1, module=make_bilm()).eval()
    good = batch_to_ids([["Sparks", "fly"]], max_characters_per_token=12)
    elmo(good)
    second = elmo(good)["elmo_representations"][0]
    elmo.reset_states()
    elmo(good)
    with pytest.raises(InputError, match="characters a token"):
        elmo(good[..., :5])
    assert torch.equal(elmo(good)["elmo_representations"][0], second)
