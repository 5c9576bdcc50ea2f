"""Words a second and peak memory of pretraining: elmokit beside plain autograd, torch's LSTM and a masked-LM BERT.

    python benchmarks/pretraining.py [--seconds N] [--turns N] [--json] [--write]

All read the same made-up text, whose words follow Zipf's law, in steps of as many words, on as many threads. Every turn
is a process of its own, and the turns of all contenders alternate, so that a machine that drifts hits all alike;
figures are medians over turns. README.md says what is compared and what is not.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import results  # beside this file

if TYPE_CHECKING:  # a turn loads them, the process that starts the turns stays small
    from torch import Tensor, nn

    from elmokit.train.corpus import Corpus
    from elmokit.train.recipe import Recipe

HEADING = "## Pretraining"
WARM_UP = 2  # steps that are not counted
DROPOUT = 0.1  # the recipes' and BERT's default
CLIP_NORM = 10.0
MASKED = 0.15  # share of words that a masked language model predicts


@dataclass(frozen=True)
class Size:
    """What is trained, and on steps of which size.

    Attributes:
        model: fields of `BiLMConfig`.
        words: that the softmax predicts, and that the text is made of (V).
        negatives: of the sampled softmax.
        rows: of a step (B).
        window: tokens of each (T).
        bert: fields of transformers' `BertConfig`; about as many parameters.
    """

    model: dict[str, Any]
    words: int
    negatives: int
    rows: int
    window: int
    bert: dict[str, int]


SIZES = {
    "small": Size(
        model={
            "tokens": {
                "kind": "char_cnn",
                "filters": [(1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)],
                "num_highways": 1,
            },
            "encoder": {"projection_dim": 128, "cell_dim": 1024},
        },
        words=55_073,
        negatives=8_192,
        rows=128,
        window=20,
        bert={
            "vocab_size": 30_522,
            "hidden_size": 256,
            "num_hidden_layers": 7,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
        },
    ),
    "tiny": Size(  # for the tests
        model={
            "tokens": {"kind": "char_cnn", "embedding_dim": 4, "filters": [(1, 4), (3, 8)]},
            "encoder": {"projection_dim": 8, "cell_dim": 12},
        },
        words=500,
        negatives=50,
        rows=32,
        window=4,
        bert={
            "vocab_size": 400,
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 16,
        },
    ),
}


class Clock:
    """Counts steps and says when a turn is over."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.steps = seconds, -WARM_UP

    def over(self) -> bool:
        """To be called after every step."""
        now = time.perf_counter()
        self.steps += 1
        if self.steps == 0:
            self.start = now
        self.elapsed = now - self.start if self.steps > 0 else 0.0
        return self.steps > 0 and self.elapsed >= self.seconds


def recipe_of(size: Size, *, optimizer: str, precision: str) -> "Recipe":
    """The recipe of elmokit's own run; its corpus is not read."""
    from elmokit.train.recipe import Recipe

    return Recipe.model_validate(
        {
            "model": size.model,
            "corpus": {"sources": [{"files": "none"}], "vocabulary_size": size.words},
            "training": {
                "steps": 1_000_000,
                "rows": size.rows,
                "window": size.window,
                "num_samples": size.negatives,
                "optimizer": optimizer,
                "learning_rate": 0.2 if optimizer == "adagrad" else 1e-3,
                "clip_norm": CLIP_NORM,
                "dropout": DROPOUT,
                "precision": precision,
            },
        }
    )


def corpus_of(size: Size, *, steps: int = 200) -> "Corpus":
    """Sentences of 19 words drawn by Zipf's law; rarer words are longer.

    A step then has about as many distinct words, of about the same lengths, as one of English text.
    """
    import numpy as np

    from elmokit.text.characters import tokens_to_ids
    from elmokit.train.corpus import Corpus, Sentences

    draw = np.random.default_rng(1)
    ranks = np.arange(1, size.words - 2)
    lengths = 1 + draw.poisson(np.minimum(0.8 * np.log(ranks), 7.0))
    letters = draw.integers(ord("a"), ord("z") + 1, (len(ranks), int(lengths.max())))
    words = ["".join(map(chr, row[:length])) for row, length in zip(letters, lengths, strict=True)]
    types = ("<S>", "</S>", "<UNK>", *words)
    sentences = size.rows * size.window * steps // 21 + 1
    tokens = 3 + draw.choice(len(ranks), (sentences, 21), p=ranks**-1.05 / (ranks**-1.05).sum())
    tokens[:, 0], tokens[:, -1] = 0, 1
    part = Sentences(
        tokens.astype(np.uint32).ravel(), np.arange(0, tokens.size + 1, 21), np.array([0, sentences], np.int64)
    )
    characters = tokens_to_ids(types, 50).astype(np.int16)
    return Corpus(part, part, types, characters, (1.0,))


def run_elmokit(size: Size, clock: Clock, *, optimizer: str, precision: str) -> int:
    """What `elmokit train` runs: its module on Lightning's Trainer."""
    import lightning
    from lightning.pytorch.callbacks import Callback

    from elmokit.train.module import BiLMTraining

    class Stop(Callback):
        def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
            trainer.should_stop = clock.over()

    module = BiLMTraining(recipe_of(size, optimizer=optimizer, precision=precision), corpus_of(size))
    trainer = lightning.Trainer(
        accelerator="cpu",
        precision="bf16-mixed" if precision == "bf16" else "32-true",
        max_epochs=-1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[Stop()],
    )
    trainer.fit(module)
    return parameters(module.model.bilm)


def run_loop(model: "nn.Module", loss: Callable[[int], "Tensor"], clock: Clock, *, precision: str) -> None:
    """The usual loop: step after step of AdamW, gradients clipped."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model.train()
    number = 0
    while not number or not clock.over():
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            value = loss(number)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        number += 1


def run_plain(size: Size, clock: Clock, *, precision: str, lstm: str) -> int:
    """The same model and objective by ordinary autograd; every token goes through the character CNN."""
    model, loss = plain(size, corpus_of(size), lstm=lstm)
    run_loop(model, loss, clock, precision=precision)
    return parameters(model.bilm)


def plain(size: Size, corpus: "Corpus", *, lstm: str) -> tuple[Any, Callable[[int], "Tensor"]]:
    """A model and its loss on batch n.

    Args:
        size: of the model.
        corpus: to read.
        lstm: `plain`, elmokit's own step loop, or `torch`, `torch.nn.LSTM` with projections, which cannot clip.
    """
    import torch

    from elmokit.config import BiLMConfig
    from elmokit.model.build import build_bilm
    from elmokit.model.lm_head import LMHead, LogUniformSampler
    from elmokit.model.lstm import dropout
    from elmokit.train.objective import LanguageModel
    from elmokit.train.stream import Stream

    config = BiLMConfig.model_validate(size.model)
    encoder = config.encoder
    bilm = build_bilm(config)
    if lstm == "torch":
        for stack in (bilm.forward_encoder, bilm.backward_encoder):
            stack.layers = torch.nn.ModuleList(
                torch.nn.LSTM(
                    encoder.projection_dim, encoder.cell_dim, proj_size=encoder.projection_dim, batch_first=True
                )
                for _ in range(encoder.num_layers)
            )
    model = LanguageModel(bilm, LMHead(size.words, encoder.projection_dim))  # only to hold the parts
    sampler = LogUniformSampler(size.words, size.negatives, seed=1)
    stream = Stream(corpus, rows=size.rows, window=size.window, seed=1)
    zeros = [torch.zeros(size.rows, width) for width in (encoder.projection_dim, encoder.cell_dim)]
    carried = [[list(zeros) for _ in range(encoder.num_layers)] for _ in range(2)]

    def direction(number: int, stack: Any, ids: "Tensor", targets: "Tensor", candidates: Any) -> "Tensor":  # noqa: ANN401
        rate = DROPOUT if model.training else 0.0
        x = encode(bilm.token_encoder, ids)
        mask = torch.ones(x.shape[:2], dtype=torch.bool)
        for index, layer in enumerate(stack.layers):
            x = dropout(x, rate)
            if lstm == "torch":
                output, (hidden, cell) = layer(x, tuple(state.unsqueeze(0) for state in carried[number][index]))
                hidden, cell = hidden.squeeze(0), cell.squeeze(0)
            else:
                output, hidden, cell = layer.plain(x, mask, *carried[number][index])
            carried[number][index] = [hidden.detach(), cell.detach()]
            x = output + x if index else output
        return sampled_loss(model.head, dropout(x, rate).flatten(0, 1), targets.flatten(), candidates)

    def loss(number: int) -> "Tensor":
        batch, candidates = stream.batch(number), sampler.draw(number)
        forward = direction(0, bilm.forward_encoder, batch.characters[batch.forward], batch.forward_targets, candidates)
        backward = direction(
            1, bilm.backward_encoder, batch.characters[batch.backward], batch.backward_targets, candidates
        )
        return (forward + backward) / 2

    return model, loss


def encode(cnn: Any, ids: "Tensor") -> "Tensor":  # noqa: ANN401
    """What elmokit's character CNN gives, by torch's own modules and autograd: (B, T, C) to (B, T, P)."""
    import torch
    from torch.nn import functional as F

    widest = max(width for width, _ in cnn.config.filters)
    tokens = ids.flatten(0, 1)
    longest = int((tokens != tokens[0, -1]).sum(1).max())  # words have the word markers and at least one letter
    table = torch.cat([cnn.embedding.new_zeros(1, cnn.config.embedding_dim), cnn.embedding])
    characters = F.embedding(tokens[:, : longest + widest], table).transpose(1, 2)
    x = torch.cat([convolution(characters).max(dim=-1).values for convolution in cnn.convolutions], dim=-1).relu()
    for highway in cnn.highways:
        gate = torch.sigmoid(highway.carry(x))
        x = gate * torch.relu(highway.transform(x)) + (1 - gate) * x
    return cnn.projection(x).view(*ids.shape[:2], -1)


def sampled_loss(head: Any, hidden: "Tensor", targets: "Tensor", candidates: Any) -> "Tensor":  # noqa: ANN401
    """What elmokit's sampled softmax gives, all logits in one piece: (N, P), (N,) to the mean."""
    import torch
    from torch.nn import functional as F

    words, log_expected = candidates.words, candidates.log_expected
    own = (hidden * head.weight[targets]).sum(-1) + head.bias[targets] - log_expected[targets]
    logits = F.linear(hidden, head.weight[words], head.bias[words] - log_expected[words])
    place = torch.full_like(log_expected, -1, dtype=torch.long)
    place[words] = torch.arange(len(words))
    rows = (place[targets] >= 0).nonzero().squeeze(1)
    logits = logits.index_put((rows, place[targets][rows]), logits.new_tensor(-torch.inf))
    logits = torch.cat([own.unsqueeze(1).to(logits.dtype), logits], dim=1).float()
    return F.cross_entropy(logits, torch.zeros_like(targets))


def run_bert(size: Size, clock: Clock, *, precision: str, length: int) -> int:
    """A masked language model from transformers, which makes logits of every position."""
    import torch

    from elmokit.train.stream import Stream

    model = bert(size)
    stream = Stream(corpus_of(size), rows=size.rows * size.window // length, window=length, seed=1)
    draw = torch.Generator().manual_seed(1)
    mask = 2

    def loss(number: int) -> "Tensor":
        types = stream.batch(number).forward_targets
        ids = torch.where(types < size.bert["vocab_size"], types, mask + 1)  # a word piece for each word
        hidden = torch.rand(ids.shape, generator=draw) < MASKED
        found: Tensor = model(input_ids=ids.masked_fill(hidden, mask), labels=ids.masked_fill(~hidden, -100)).loss
        return found

    run_loop(model, loss, clock, precision=precision)
    return parameters(model)  # its softmax is its word embedding


def bert(size: Size) -> "nn.Module":
    """With its own initial values."""
    from transformers import BertConfig, BertForMaskedLM

    model: nn.Module = BertForMaskedLM(BertConfig(**size.bert, max_position_embeddings=128))
    return model


def parameters(model: "nn.Module") -> int:
    """How many."""
    return sum(parameter.numel() for parameter in model.parameters())


@dataclass(frozen=True)
class Contender:
    """What takes part: how it is called, and the function that trains until the clock says that it is over."""

    name: str
    precision: str
    run: Callable[..., int]
    options: dict[str, Any]


CONTENDERS = {
    "elmokit-adamw": Contender("elmokit, AdamW", "float32", run_elmokit, {"optimizer": "adamw"}),
    "elmokit-adagrad": Contender("elmokit, Adagrad", "float32", run_elmokit, {"optimizer": "adagrad"}),
    "plain": Contender("plain autograd, a token at a time", "float32", run_plain, {"lstm": "plain"}),
    "torch-lstm": Contender("the same with torch.nn.LSTM", "float32", run_plain, {"lstm": "torch"}),
    "bert-32": Contender("BERT, length 32", "float32", run_bert, {"length": 32}),
    "bert-128": Contender("BERT, length 128", "float32", run_bert, {"length": 128}),
    "elmokit-adamw-bf16": Contender("elmokit, AdamW", "bf16", run_elmokit, {"optimizer": "adamw"}),
    "elmokit-adagrad-bf16": Contender("elmokit, Adagrad", "bf16", run_elmokit, {"optimizer": "adagrad"}),
    "plain-bf16": Contender("plain autograd, a token at a time", "bf16", run_plain, {"lstm": "plain"}),
    "bert-32-bf16": Contender("BERT, length 32", "bf16", run_bert, {"length": 32}),
    "bert-128-bf16": Contender("BERT, length 128", "bf16", run_bert, {"length": 128}),
}


@dataclass(frozen=True)
class Turn:
    """What one turn found.

    Attributes:
        rate: words a second.
        memory: peak of the process in MB.
        parameters: without a softmax of its own.
        torch: version.
    """

    rate: float
    memory: float
    parameters: int
    torch: str


def take_turn(key: str, size: Size, *, seconds: float, threads: int) -> Turn:
    """Train in this process for a while."""
    import logging
    import warnings

    import torch

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\.")
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    contender, clock = CONTENDERS[key], Clock(seconds)
    count = contender.run(size, clock, precision=contender.precision, **contender.options)
    unit = 1 if sys.platform == "darwin" else 1024
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    return Turn(clock.steps * size.rows * size.window / clock.elapsed, memory, count, torch.__version__)


def turns_of(keys: list[str], arguments: argparse.Namespace) -> Iterator[tuple[str, Turn]]:
    """All turns, one after the other, each in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads), "MKL_NUM_THREADS": str(arguments.threads)}
    for _ in range(arguments.turns):
        for key in keys:
            command = [sys.executable, __file__, "--turn", key, "--size", arguments.size]
            command += ["--seconds", str(arguments.seconds), "--threads", str(arguments.threads)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{key} failed:\n{done.stderr}")
            turn = Turn(**json.loads(done.stdout.splitlines()[-1]))
            print(f"{key:<22}{turn.rate:>9,.0f} words/s {turn.memory:>7,.0f} MB", file=sys.stderr)  # noqa: T201
            yield key, turn


def summary(turns: dict[str, list[Turn]]) -> list[dict[str, Any]]:
    """One row a contender; ratios are medians over the turns of one round."""
    rows = []
    for key, own in turns.items():
        contender = CONTENDERS[key]
        rates = [turn.rate for turn in own]
        row = {
            "contender": key,
            "name": contender.name,
            "precision": contender.precision,
            "words per second": round(statistics.median(rates), 1),
            "lowest": round(min(rates), 1),
            "highest": round(max(rates), 1),
            "peak MB": round(statistics.median(turn.memory for turn in own)),
            "parameters": own[0].parameters,
        }
        for reference in ("elmokit-adamw", "elmokit-adamw-bf16"):
            if reference in turns:
                pairs = zip(turns[reference], own, strict=True)
                row[f"{reference} is faster by"] = round(statistics.median(a.rate / b.rate for a, b in pairs), 2)
        rows.append(row)
    return rows


def markdown(found: dict[str, Any]) -> str:
    """The table and what it stands on."""
    lines = [
        f"{found['date']}, commit {found['commit']}, torch {found['torch']}, {found['machine']}; "
        f"{found['threads']} threads, size {found['size']}, {found['turns']} turns of {found['seconds']:g} s, "
        "alternating; medians, and the range over turns.",
        "",
        "| | precision | words/s | range | peak memory | parameters | elmokit in float32 | elmokit in bf16 |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in found["rows"]:
        ratios = [row.get(f"elmokit-adamw{suffix} is faster by") for suffix in ("", "-bf16")]
        lines.append(
            f"| {row['name']} | {row['precision']} | {row['words per second']:,.0f} "
            f"| {row['lowest']:,.0f} to {row['highest']:,.0f} | {row['peak MB'] / 1000:.2f} GB "
            f"| {row['parameters'] / 1e6:.1f} M | " + " | ".join(f"{x:.2f} x" if x else "" for x in ratios) + " |"
        )
    lines += ["", "The last two columns: how many times as fast as this row elmokit with AdamW is."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Words a second and peak memory of pretraining, side by side.")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn, start and warm-up not counted")
    parser.add_argument("--turns", type=int, default=3, help="of each contender")
    parser.add_argument("--threads", type=int, default=2, help="of each contender, in all")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="CONTENDER")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help=f"also put the table into {results.RESULTS.name}")
    parser.add_argument("--turn", choices=CONTENDERS, help=argparse.SUPPRESS)  # this process is one turn
    arguments = parser.parse_args()
    if arguments.turn:
        turn = take_turn(arguments.turn, SIZES[arguments.size], seconds=arguments.seconds, threads=arguments.threads)
        print(json.dumps(asdict(turn)))  # noqa: T201
        return
    turns: dict[str, list[Turn]] = {key: [] for key in arguments.only}
    for key, turn in turns_of(arguments.only, arguments):
        turns[key].append(turn)
    found = {
        **results.origin(),
        "torch": turn.torch,
        "threads": arguments.threads,
        "size": arguments.size,
        "turns": arguments.turns,
        "seconds": arguments.seconds,
        "rows": summary(turns),
    }
    text = markdown(found)
    print(json.dumps(found, indent=2) if arguments.json else text)  # noqa: T201
    if arguments.write:
        results.write(HEADING, text)


if __name__ == "__main__":
    main()
