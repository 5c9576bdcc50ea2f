"""Adaptation: a trained language model goes on learning from the unlabelled text of a task.

Takes what `elmokit.weights.load_language_model` gives and files, which `corpus` prepares as for pretraining, and runs
the same steps, with what Howard and Ruder (2018) found to keep a model from forgetting: a learning rate a layer,
smaller further down, and layers that join from the top. Perplexity on held-out text is measured before the first step
and now and then; the best weights of all that were measured are what comes out.
"""

import hashlib
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import lightning
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from elmokit.errors import TrainingError
from elmokit.model.build import build_bilm
from elmokit.model.lm_head import LMHead
from elmokit.text.lexicon import SPECIAL, UNKNOWN, Lexicon
from elmokit.train.corpus import Corpus, prepare
from elmokit.train.module import BiLMTraining
from elmokit.train.objective import LanguageModel, Perplexity
from elmokit.train.recipe import CorpusRecipe, Recipe, TrainingRecipe
from elmokit.train.report import Report, forget_after
from elmokit.train.run import fit
from elmokit.train.stream import Stream
from elmokit.weights import load_language_model
from elmokit.weights.native import save_language_model

MOST_UNKNOWN: Final = 0.5  # share of a corpus outside the vocabulary from which on they do not belong together
EVALUATIONS: Final = 10  # of a whole run, unless another rhythm is asked for


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to adapt.

    Attributes:
        steps: optimiser steps in all; None for `epochs`.
        epochs: passes over the corpus where `steps` is not given.
        rows: streams that are read side by side (B).
        window: tokens of each in a step (T).
        learning_rate: peak rate of the top block: it rises for a tenth of the steps, then falls to zero.
        layer_decay: how many times smaller the rate is one block further down.
        unfreeze_every: steps after which the next block down joins; 0 for all from the start.
        dropout: on LSTM inputs and before the softmax.
        add_words: how many of the corpus's most frequent words that the model lacks are added to its softmax.
        evaluate_every: steps between two measurements of held-out perplexity; None for ten in all.
        patience: measurements in a row without a better one after which the run ends.
        seed: of order, negatives and dropout.
    """

    steps: int | None = None
    epochs: int = 3
    rows: int = 32
    window: int = 20
    learning_rate: float = 1e-3
    layer_decay: float = 2.6
    unfreeze_every: int = 0
    dropout: float = 0.1
    add_words: int = 0
    evaluate_every: int | None = None
    patience: int = 3
    seed: int = 1

    def training(self, corpus: Corpus) -> TrainingRecipe:
        """The same for a corpus of this size."""
        stream = Stream(corpus, rows=self.rows, window=self.window, seed=self.seed)
        steps = self.steps or self.epochs * stream.steps_per_epoch
        rise = steps // 10
        return TrainingRecipe(
            steps=steps,
            rows=self.rows,
            window=self.window,
            learning_rate=self.learning_rate,
            warmup_steps=rise,
            decay_steps=steps - rise,
            clip_norm=1.0,
            dropout=self.dropout,
            seed=self.seed,
            evaluate_every=self.evaluate_every or max(1, steps // EVALUATIONS),
            keep_checkpoints=1,
        )


@dataclass(frozen=True)
class Adapted:
    """What came of it.

    Attributes:
        before: held-out perplexity of the model as it was, with the same vocabulary.
        after: of the model that was saved, on the same text.
        step: at which that was; 0 where no step was better than none.
        steps: that were made.
        num_words: of the softmax (V).
        added: of these, new ones.
    """

    before: Perplexity
    after: Perplexity
    step: int
    steps: int
    num_words: int
    added: int


def finetune(
    model: str | Path,
    sources: CorpusRecipe,
    folder: Path,
    *,
    root: Path,
    cache: Path,
    plan: Plan = Plan(),
    accelerator: Literal["auto", "cpu", "gpu"] = "auto",
    threads: int | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> Adapted:
    """Adapt a language model to text, or go on from the last checkpoint in the folder.

    Args:
        model: the name of a built-in model, or a directory that `elmokit train` or this left.
        sources: the text. `vocabulary_size` means nothing here: words to predict are the model's.
        folder: where the adapted model goes, in native format, with its vocabulary, softmax, log and checkpoints.
        root: folder that relative paths start from.
        cache: folder of prepared corpora.
        plan: how.
        accelerator: what to compute on; by default a GPU where there is one.
        threads: None for torch's choice.
        report: called with a line of progress before the first step.

    Raises:
        ConfigError, InputError, WeightsError: the model or the text cannot be read.
        TrainingError: they do not belong together, nothing is held out, the text is too short, or the run cannot go on.
        StoppedError: SIGINT or SIGTERM came; the run is saved.
    """
    if Path(model).exists() and folder.exists() and Path(model).samefile(folder):
        raise TrainingError(f"{folder} is the model itself, which would be replaced; give another output folder")
    bilm, head, lexicon = load_language_model(model)
    corpus = prepare(sources, bilm.config, root=root, cache=cache, report=report)
    if not len(corpus.held_out):
        raise TrainingError(
            "no text was held out to measure on: whole documents are, or blocks of 200 lines of long ones. Hold out a "
            "larger share (--held-out-share), or give a file of its own (--held-out)"
        )
    digest = _digest([*bilm.state_dict().values(), *head.state_dict().values()])
    own = len(lexicon)
    if plan.add_words:
        if not isinstance(head, LMHead):
            raise TrainingError(f"{model} has an adaptive softmax, which takes no new words; leave out --add-words")
        head, lexicon = add_words(head, lexicon, corpus, plan.add_words)
    corpus = replace(corpus, type_words=lexicon.ids(corpus.types))
    share = _check_fit(corpus, lexicon, name=str(model))
    report(
        f"{own:,} words of the model, {len(lexicon) - own:,} added; {share:.1%} of the text to train on is outside and "
        "read as <UNK> where it is predicted"
    )
    network = build_bilm(bilm.config, dropout=plan.dropout)
    network.load_state_dict(bilm.state_dict())
    recipe = Recipe(
        model=bilm.config,
        corpus=sources.model_copy(update={"vocabulary_size": len(lexicon)}),
        training=plan.training(corpus),
    )
    module = Adaptation(
        recipe, corpus, model=LanguageModel(network, head.train(), dropout=plan.dropout), plan=plan, origin=digest
    )
    fit(module, folder, progress=AdaptationReport(folder), accelerator=accelerator, threads=threads)
    save_language_model(module.model.bilm.eval(), folder, head=module.model.head, lexicon=lexicon)
    best = module.best
    assert best, "a run measures before its first step"
    return Adapted(module.before, best.found, best.step, module.measured_at, len(lexicon), len(lexicon) - own)


def add_words(head: LMHead, lexicon: Lexicon, corpus: Corpus, number: int) -> tuple[LMHead, Lexicon]:
    """A softmax that also predicts the most frequent words of a corpus that it lacked.

    What the model gave to `<UNK>` is shared out by how often each new word occurs among unknown ones: a new word gets
    the row of `<UNK>` and its bias, lowered by the logarithm of that share, and `<UNK>` keeps the rest. So no other
    word's probability changes anywhere, and training begins from a model that is no worse.

    Args:
        head: the softmax; it stays as it is.
        lexicon: its words.
        corpus: what to count in; of its held-out part nothing is taken.
        number: of words to add at most.

    Returns:
        The new softmax and its words, the old ones first, in their order.
    """
    counts = _counts(corpus)
    lacking = [index for index in range(len(SPECIAL), len(counts)) if corpus.types[index] not in lexicon]
    outside = counts[lacking].sum() + 1  # one for what is yet unseen
    chosen = [index for index in lacking if counts[index]][:number]  # types are sorted by frequency
    shares = torch.from_numpy(counts[chosen] / outside)
    unknown = int(lexicon.ids([UNKNOWN])[0])
    larger = LMHead(head.num_words + len(chosen), head.weight.shape[1])
    with torch.no_grad():
        larger.weight[: head.num_words] = head.weight
        larger.weight[head.num_words :] = head.weight[unknown]
        larger.bias[: head.num_words] = head.bias
        larger.bias[head.num_words :] = head.bias[unknown] + shares.log()
        larger.bias[unknown] += torch.log1p(-shares.sum())
    return larger, Lexicon([*lexicon.words, *(corpus.types[index] for index in chosen)])


def _check_fit(corpus: Corpus, lexicon: Lexicon, *, name: str) -> float:
    """The share of a corpus that is outside a vocabulary.

    Raises:
        TrainingError: it is most of it.
    """
    assert corpus.type_words is not None
    counts = _counts(corpus)
    counts[: len(SPECIAL) - 1] = 0  # boundaries are always known
    outside = corpus.type_words == lexicon.ids([UNKNOWN])[0]
    share = float(counts[outside].sum() / max(1, counts.sum()))
    if share > MOST_UNKNOWN:
        known = int((~outside).sum()) - len(SPECIAL) + 1
        raise TrainingError(
            f"the corpus and {name} do not fit together: of {len(corpus.types) - len(SPECIAL):,} words in the corpus "
            f"{known:,} are among the {len(lexicon):,} of the model, and {share:.0%} of the text is unknown to it. "
            "Check language and tokens (--tokenized), or add the corpus's own words to the softmax (--add-words)"
        )
    return share


def _counts(corpus: Corpus) -> npt.NDArray[np.int64]:
    """(types,) how often each type stands in the text to train on."""
    counts = np.zeros(len(corpus.types), dtype=np.int64)
    for start in range(0, len(corpus.train.tokens), 1 << 22):
        counts += np.bincount(corpus.train.tokens[start : start + (1 << 22)], minlength=len(counts))
    return counts


@dataclass(frozen=True)
class Best:
    """The best model so far: when it was, what it measured, its weights."""

    step: int
    found: Perplexity
    weights: dict[str, Tensor]


class Adaptation(BiLMTraining):
    """Training with a rate a layer, and with a memory of the best weights."""

    def __init__(self, recipe: Recipe, corpus: Corpus, *, model: LanguageModel, plan: Plan, origin: str) -> None:
        """Args:
        recipe: as in `BiLMTraining`.
        corpus: with the words of the model's softmax.
        model: what to adapt.
        plan: how.
        origin: which model that is.
        """
        super().__init__(recipe, corpus, model=model)
        self.plan, self.origin = plan, origin
        self.before = Perplexity()
        self.best: Best | None = None
        self.measured_at = -1

    def blocks(self) -> list[list[nn.Parameter]]:
        """From the top: the softmax and the highest LSTM layer, each lower layer, the token encoder."""
        bilm: Any = self.model.bilm  # its encoders are any modules
        pairs = zip(bilm.forward_encoder.layers, bilm.backward_encoder.layers, strict=True)
        layers = [[*forward.parameters(), *backward.parameters()] for forward, backward in pairs]
        layers[-1] += self.model.head.parameters()
        return [*reversed(layers), list(bilm.token_encoder.parameters())]

    def on_train_batch_start(self, *_: object) -> None:
        """Set the learning rate of each block."""
        super().on_train_batch_start()
        for index, group in self._numbered():
            group["lr"] *= self.plan.layer_decay**-index

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *_: object, **__: object) -> None:
        """Keep blocks as they are whose time has not come: without a gradient they have no part in its norm either."""
        every = self.plan.unfreeze_every
        for index, group in self._numbered():
            if self.trainer.global_step < index * every:
                for parameter in group["params"]:
                    parameter.grad = None
        super().configure_gradient_clipping(optimizer)

    def _numbered(self) -> list[tuple[int, dict[str, Any]]]:
        """The optimiser's groups, each with the number of its block."""
        return [(index // 2, group) for index, group in enumerate(self.trainer.optimizers[0].param_groups)]

    def measured(self, found: Perplexity, step: int) -> None:
        """Take note of held-out perplexity."""
        self.measured_at = step
        if self.best is None:
            self.before = found
        if self.best is None or found.mean < self.best.found.mean:
            weights = {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}
            self.best = Best(step, found, weights)

    @property
    def gives_up(self) -> bool:
        """Whether too many measurements in a row were no better."""
        patience = self.plan.patience * self.recipe.training.evaluate_every
        return self.best is not None and self.measured_at - self.best.step >= patience

    def on_fit_end(self) -> None:
        """Go back to the best weights."""
        if self.best:
            self.model.load_state_dict(self.best.weights)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what was measured and the best weights, so that no other file needs to agree with this one."""
        super().on_save_checkpoint(checkpoint)
        assert self.best, "a run measures before its first step"
        checkpoint["elmokit"] |= {
            "measured_at": self.measured_at,
            "before": astuple(self.before),
            "best": [self.best.step, astuple(self.best.found), self.best.weights],
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take it back."""
        super().on_load_checkpoint(checkpoint)
        saved = checkpoint["elmokit"]
        self.measured_at, self.before = saved["measured_at"], Perplexity(*saved["before"])
        step, found, weights = saved["best"]
        self.best = Best(step, Perplexity(*found), weights)

    def _identity(self) -> dict[str, Any]:
        """Also the model that was begun with."""
        return {"adapted model": self.origin, **super()._identity()}


class AdaptationReport(Report):
    """Measures before the first step too, and ends a run that gets no better."""

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Make up for a measurement that was due where the run begins or was cut short."""
        super().on_train_start(trainer, module)
        assert isinstance(module, Adaptation)
        step = trainer.global_step
        if step != module.measured_at and step % module.recipe.training.evaluate_every == 0:
            self._make_up(trainer, module)
            self.begin(trainer, module)
        trainer.should_stop = module.gives_up

    def evaluate(self, trainer: lightning.Trainer, module: BiLMTraining) -> None:
        """Measure, unless a signal comes first, and draw conclusions."""
        assert isinstance(module, Adaptation)
        last = self.last
        super().evaluate(trainer, module)
        if self.last is last or self.last is None:
            return
        module.measured(self.last, trainer.global_step)
        if module.gives_up:
            trainer.should_stop = True
            assert module.best
            self.say(trainer, f"no better since step {module.best.step:,}: stopping")

    def on_fit_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Make up for the last measurement, where a signal cut that short."""
        assert isinstance(module, Adaptation)
        if not module.stopped_by and module.measured_at != trainer.global_step:
            self._make_up(trainer, module)

    def _make_up(self, trainer: lightning.Trainer, module: BiLMTraining) -> None:
        """Measure what no checkpoint knows of; a process that was killed may have logged it."""
        forget_after(self.metrics, trainer.global_step - 1)
        self.evaluate(trainer, module)


def _digest(tensors: list[Tensor]) -> str:
    """A short name for these weights."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]
