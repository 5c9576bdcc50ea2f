"""Adapting a tiny model to the text of another domain: figures, vocabulary, layers, stopping and resuming."""

import random
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

import elmokit
from elmokit.errors import ElmokitError, TrainingError
from elmokit.model.lm_head import LMHead
from elmokit.text.lexicon import SPECIAL, Lexicon
from elmokit.text.sentences import read_token_lines
from elmokit.train.checkpoints import latest_checkpoint
from elmokit.train.corpus import prepare
from elmokit.train.finetune import Plan, add_words, finetune
from elmokit.train.recipe import CorpusRecipe, Recipe, Source
from elmokit.train.run import train
from elmokit.train.scoring import Scorer
from elmokit.train.stream import Stream
from elmokit.weights import load_language_model
from elmokit.weights.native import save_language_model

GENERAL = "the a cat dog sees eats likes small big red house tree in on near".split()  # noqa: SIM905
# Shared words in another order of frequency, and some that the model never met.
DOMAIN = "near on tree house the enzyme binds big receptor a gene in".split()  # noqa: SIM905
NEW = {"enzyme", "binds", "receptor", "gene"}


def write(path, words, *, documents, seed):
    """Documents of ten token lines in which a word is followed by one of the next two."""
    draw = random.Random(seed)
    lines = []
    for _ in range(documents):
        for _ in range(10):
            place = draw.choices(range(len(words)), [len(words) - i for i in range(len(words))])[0]
            line = []
            for _ in range(draw.randint(3, 9)):
                line.append(words[place % len(words)])
                place += draw.choice((1, 1, 2))
            lines.append(" ".join(line))
        lines.append("")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The directory of a model of three layers trained on general text."""
    folder = tmp_path_factory.mktemp("base")
    recipe = {
        "model": {
            "tokens": {"kind": "char_cnn", "embedding_dim": 4, "filters": [(1, 4), (3, 8)],
                       "max_characters_per_token": 12},
            "encoder": {"projection_dim": 8, "cell_dim": 12},
            "language": "en",
        },
        "corpus": {"sources": [{"files": str(write(folder / "general.txt", GENERAL, documents=40, seed=1))}],
                   "tokenized": True},
        "training": {"rows": 4, "window": 5, "steps": 80, "warmup_steps": 3, "learning_rate": 0.01},
    }  # fmt: skip
    train(Recipe.model_validate(recipe), folder / "run", root=folder, cache=folder / "cache", threads=1)
    return folder / "run" / "model"


@pytest.fixture
def sources(tmp_path):
    """Domain text, and more of it to measure on."""
    files = [write(tmp_path / f"{name}.txt", DOMAIN, documents=n, seed=n) for name, n in (("domain", 40), ("test", 8))]
    first, second = (Source(files=str(file)) for file in files)
    return CorpusRecipe(sources=(first,), held_out_sources=(second,), tokenized=True)


@pytest.fixture
def adapt(base, sources, tmp_path):
    """A function that adapts, by default the base to the domain in 40 steps, in a folder of a given name."""

    def work(name="out", *, model=base, text=sources, **plan):
        plan = Plan(**{"steps": 40, "rows": 4, "window": 5, "learning_rate": 0.02, "evaluate_every": 10, **plan})
        return finetune(
            model, text, tmp_path / name, root=tmp_path, cache=tmp_path / "cache", plan=plan, threads=1
        )  # fmt: skip

    return work


@pytest.fixture
def corpus(base, sources, tmp_path):
    return prepare(sources, elmokit.load_bilm(base).config, root=tmp_path, cache=tmp_path / "cache")


@pytest.fixture
def last(tmp_path):
    """A function from the name of a run to the weights of its last step, which may not be the best."""

    def weights(name):
        path = latest_checkpoint(tmp_path / name / "checkpoints")
        return torch.load(path, weights_only=True)["state_dict"]

    return weights


def scored(model, tmp_path):
    """Perplexity by another way: on the file itself, by words rather than types."""
    return Scorer(*load_language_model(model)).perplexity(read_token_lines(tmp_path / "test.txt"))


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def tensors(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_adaptation_lowers_perplexity_and_both_figures_are_those_of_the_models(adapt, base, tmp_path, log_of):
    found = adapt(steps=150, evaluate_every=50)
    assert found.after.mean < found.before.mean / 2 and found.step == 150
    for figures, model in ((found.before, base), (found.after, tmp_path / "out")):
        wanted = scored(model, tmp_path)
        assert (figures.tokens, figures.unknown) == (wanted.tokens, wanted.unknown)
        assert figures.forward == pytest.approx(wanted.forward, rel=1e-5)
        assert figures.backward == pytest.approx(wanted.backward, rel=1e-5)
    means = {r["step"]: r["held-out perplexity mean"] for r in log_of("out") if "held-out perplexity mean" in r}
    assert list(means) == [0, 50, 100, 150]
    assert (means[0], means[150]) == (found.before.mean, found.after.mean)


def test_the_output_is_a_whole_model_with_the_words_of_the_old_one(adapt, base, tmp_path):
    adapt(steps=3)
    assert elmokit.load(tmp_path / "out").embed([["the", "gene"]])[0].shape[-1] == 16
    assert (tmp_path / "out" / "vocab.txt").read_bytes() == (base / "vocab.txt").read_bytes()
    assert (tmp_path / "out" / "config.json").read_bytes() == (base / "config.json").read_bytes()


def test_targets_are_the_models_own_words_whatever_order_the_corpus_has(base, corpus):
    lexicon = load_language_model(base)[2]
    assert list(lexicon.words[3:8]) != list(corpus.types[3:8])
    plain = Stream(corpus, rows=4, window=5, seed=1).batch(0)
    mapped = Stream(replace(corpus, type_words=lexicon.ids(corpus.types)), rows=4, window=5, seed=1).batch(0)
    for name in ("forward_targets", "backward_targets"):
        words = [corpus.types[index] for index in getattr(plain, name).flatten()]
        assert getattr(mapped, name).flatten().tolist() == lexicon.ids(words).tolist()
    assert torch.equal(mapped.characters, plain.characters) and torch.equal(mapped.forward, plain.forward)


def test_a_vocabulary_in_any_other_order_gives_the_same_figures(adapt, base, tmp_path):
    bilm, head, lexicon = load_language_model(base)
    order = torch.randperm(len(lexicon), generator=torch.Generator().manual_seed(1)).tolist()  # special words too
    other = LMHead(len(lexicon), 8)
    with torch.no_grad():
        other.weight.copy_(head.weight[order])
        other.bias.copy_(head.bias[order])
    words = Lexicon([lexicon.words[index] for index in order])
    save_language_model(bilm, tmp_path / "other", head=other, lexicon=words)
    first, second = adapt("first", dropout=0.0), adapt("second", dropout=0.0, model=tmp_path / "other")
    assert first.before.unknown == second.before.unknown > 0
    assert second.before.mean == pytest.approx(first.before.mean, rel=1e-5)
    assert second.after.mean == pytest.approx(first.after.mean, rel=1e-3)


def test_new_words_are_added_only_when_asked_for_the_most_frequent_first(adapt, base, corpus, tmp_path):
    found = adapt(steps=20, add_words=2)
    lexicon = load_language_model(base)[2]
    new = [word for word in corpus.types if word in NEW]
    assert load_language_model(tmp_path / "out")[2].words == (*lexicon.words, *new[:2])
    assert (found.added, found.num_words) == (2, len(lexicon) + 2)
    assert 0 < found.before.unknown < scored(base, tmp_path).unknown
    assert adapt("all", steps=20, add_words=1000).added == len(NEW)


def test_adding_words_shares_out_what_was_unknown_and_changes_no_other_probability(base, corpus):
    _, head, lexicon = load_language_model(base)
    larger, words = add_words(head, lexicon, corpus, 3)
    hidden = torch.randn(50, 8, generator=torch.Generator().manual_seed(1))
    before, after = head.log_probs(hidden).exp().detach(), larger.log_probs(hidden).exp().detach()
    unknown = lexicon.ids(["<UNK>"])[0]
    others = [index for index in range(len(lexicon)) if index != unknown]
    torch.testing.assert_close(after[:, others], before[:, others], rtol=1e-4, atol=1e-7)
    new = after[:, len(lexicon) :]
    torch.testing.assert_close(new.sum(1) + after[:, unknown], before[:, unknown], rtol=1e-4, atol=1e-7)
    counts = np.bincount(corpus.train.tokens)
    ids = [corpus.types.index(word) for word in words.words[len(lexicon) :]]
    torch.testing.assert_close(
        new[0] / new[0, 0], torch.from_numpy(counts[ids] / counts[ids[0]]).float(), rtol=1e-4, atol=0
    )
    assert head.num_words == len(lexicon), "the old one is as it was"


def test_text_that_the_model_does_not_know_is_refused_with_both_sizes_before_anything_is_made(adapt, base, tmp_path):
    text = write(tmp_path / "greek.txt", ["αλφα", "βητα", "γαμμα", "δελτα", "the"], documents=30, seed=1)
    recipe = CorpusRecipe(sources=(Source(files=str(text)),), held_out=0.2, tokenized=True)
    size = len(load_language_model(base)[2])
    with pytest.raises(TrainingError, match=rf"of 5 words in the corpus 1 are among the {size} of .*--add-words"):
        adapt(text=recipe)
    assert not (tmp_path / "out").exists()
    assert adapt(text=recipe, add_words=4).after.unknown == 0


def test_a_vocabulary_that_is_not_the_softmaxs_is_refused_with_both_sizes(adapt, base, tmp_path):
    bilm, head, lexicon = load_language_model(base)
    save_language_model(bilm, tmp_path / "longer", head=head, lexicon=lexicon)
    Lexicon([*lexicon.words, "one-more"]).write(tmp_path / "longer" / "vocab.txt")
    with pytest.raises(
        ElmokitError, match=rf"{len(lexicon)}\D.*{len(lexicon) + 1}\D|{len(lexicon) + 1}\D.*{len(lexicon)}\D"
    ):
        adapt(model=tmp_path / "longer")
    assert not (tmp_path / "out").exists()


def block_of(name):
    """Of the three of this model, from the top."""
    return 2 if "token_encoder" in name else 1 if "layers.0" in name else 0


@pytest.mark.parametrize(("steps", "learning"), [(2, {0}), (4, {0, 1}), (5, {0, 1, 2})])
def test_lower_layers_join_one_after_the_other(adapt, base, last, steps, learning):
    adapt(steps=steps, unfreeze_every=2, evaluate_every=1, patience=9)
    before = tensors(base)
    for name, value in last("out").items():
        same = torch.equal(
            value, before[name.removeprefix("model.").removeprefix("bilm.").replace("head.", "lm_head.")]
        )
        assert same == (block_of(name) not in learning), name


def test_each_layer_further_down_learns_more_slowly(adapt, base, last):
    adapt(steps=1, layer_decay=4.0, dropout=0.0, learning_rate=1e-3)
    before, change = tensors(base), {0: 0.0, 1: 0.0, 2: 0.0}
    for name, value in last("out").items():
        if value.dim() == 1:  # without weight decay AdamW's first step is the rate, wherever there is a gradient
            old = before[name.removeprefix("model.").removeprefix("bilm.").replace("head.", "lm_head.")]
            change[block_of(name)] = max(change[block_of(name)], float((value - old).abs().max()))
    assert list(change.values()) == pytest.approx([1e-3, 1e-3 / 4, 1e-3 / 16], rel=0.01)


def test_a_run_that_only_gets_worse_stops_and_leaves_the_model_as_it_was(adapt, base, tmp_path, log_of):
    def spoil():
        return adapt(steps=100, evaluate_every=3, patience=2, learning_rate=5.0)

    found = spoil()
    assert (found.step, found.steps) == (0, 6)
    assert found.after == found.before
    assert equal(tensors(tmp_path / "out"), tensors(base))
    log = log_of("out")
    assert spoil() == found and log_of("out") == log, "a run that has given up does nothing more"


def test_the_best_of_the_measured_models_is_saved_not_the_last(adapt, sources, tmp_path, log_of, last):
    text = (Source(files=str(write(tmp_path / "short.txt", DOMAIN, documents=1, seed=5))),)  # soon known by heart
    found = adapt(
        text=sources.model_copy(update={"sources": text}), steps=400, evaluate_every=20, learning_rate=0.1, dropout=0.0
    )
    means = {r["step"]: r["held-out perplexity mean"] for r in log_of("out") if "held-out perplexity mean" in r}
    assert found.after.mean == min(means.values()) == means[found.step]
    assert found.step < found.steps, "else this shows nothing"
    assert scored(tmp_path / "out", tmp_path).mean == pytest.approx(found.after.mean, rel=1e-5)
    assert not torch.equal(last("out")["model.head.weight"], tensors(tmp_path / "out")["lm_head.weight"])


PROGRAM = """
from elmokit.train.finetune import finetune
finetune(model, text, folder, **options)
"""


def test_a_run_cut_short_again_and_again_ends_like_the_uninterrupted_one(
    adapt, base, sources, server, tmp_path, log_of
):
    plan = {"steps": 60, "evaluate_every": 2, "dropout": 0.3, "unfreeze_every": 7, "add_words": 2, "patience": 50}
    whole = adapt("whole", **plan)
    options = {"root": tmp_path, "cache": tmp_path / "cache", "threads": 1,
               "plan": Plan(rows=4, window=5, learning_rate=0.02, **plan)}  # fmt: skip
    values = {"model": base, "text": sources, "folder": tmp_path / "parts", "options": options}
    log = tmp_path / "parts" / "metrics.jsonl"
    stopped = 0
    for wanted in (0, 10, 30):  # the first one is stopped as soon as it has measured the model as it was
        process = server.Process(target=exec, args=(PROGRAM, values))
        process.start()
        end = time.monotonic() + 60
        while not (log.exists() and f'"step": {wanted},' in log.read_text("utf-8")) and process.is_alive():
            assert time.monotonic() < end
            time.sleep(0.002)
        process._popen._send_signal(signal.SIGTERM)
        process.join(60)
        stopped += process.exitcode == 1
    assert stopped, "it was cut short"
    assert adapt("parts", **plan) == whole
    assert equal(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))

    def measured(name):
        return [record for record in log_of(name) if "held-out perplexity mean" in record]

    assert measured("whole") == measured("parts")


def test_a_longer_run_goes_on(adapt):
    assert adapt(steps=4, evaluate_every=2).steps == 4
    assert adapt(steps=8, evaluate_every=2).steps == 8


def test_another_model_or_other_words_are_refused_by_name(adapt, tmp_path):
    adapt(steps=3)
    adapt("second", steps=3)
    with pytest.raises(TrainingError, match="adapted model was"):
        adapt(steps=3, model=tmp_path / "second")
    with pytest.raises(TrainingError, match=r"corpus\.vocabulary_size was 18, is 19"):
        adapt(steps=3, add_words=1)


def test_nothing_to_measure_on_is_an_error(adapt, sources):
    nothing = sources.model_copy(update={"held_out_sources": (), "held_out": 0.0})
    with pytest.raises(TrainingError, match="no text was held out"):
        adapt(text=nothing)


def test_the_model_itself_is_not_replaced(adapt, base, tmp_path):
    (tmp_path / "out").symlink_to(base)
    with pytest.raises(TrainingError, match="is the model itself"):
        adapt()


def test_steps_follow_from_epochs_and_a_tenth_of_them_from_there(corpus):
    training = Plan(epochs=2, rows=4, window=5).training(corpus)
    stream = Stream(corpus, rows=4, window=5, seed=1)
    assert training.steps == 2 * stream.steps_per_epoch
    assert training.evaluate_every == training.warmup_steps == training.steps // 10
    assert training.decay_steps == training.steps - training.warmup_steps
    assert len(SPECIAL) == 3
