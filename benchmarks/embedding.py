"""Tokens a second, latency and peak memory of embedding: elmokit beside AllenNLP's way of working and a BERT.

    python benchmarks/embedding.py [--size NAME ...] [--turns N] [--text FILE] [--json] [--write]

All read the same sentences in the same order. Every turn is a process of its own, and the turns of all contenders
alternate, so that a machine that drifts hits all alike; figures are medians over turns.
README.md says what is compared.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results  # beside this file

if TYPE_CHECKING:  # a turn loads them, the process that starts the turns stays small
    from elmokit.config import BiLMConfig
    from elmokit.model.bilm import BiLM

HEADING = "## Embedding"
TEXT = Path(__file__).parents[2] / "shared/data/tasks/pos-dep-ud-english-ewt.tar.xz"  # UD English EWT
PART = "en_ewt-ud-dev.conllu"
ROWS = 32  # of a batch in file order
FILTERS = [(1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)]
Sentences = list[list[str]]


@dataclass(frozen=True)
class Size:
    """A model, and how much text it is measured on.

    Attributes:
        model: fields of `BiLMConfig`, for random weights; the name of a built-in model.
        sentences: from the beginning of the text.
        latencies: of these, embedded one by one.
        bert: hidden width, layers, heads and word pieces of a BERT with about as many parameters.
    """

    model: dict[str, Any] | str
    sentences: int
    latencies: int
    bert: tuple[int, int, int, int]


def _published(width: int, cell: int, highways: int) -> dict[str, Any]:
    return {
        "tokens": {"kind": "char_cnn", "filters": FILTERS, "num_highways": highways},
        "encoder": {"projection_dim": width, "cell_dim": cell},
    }


SIZES = {
    "small": Size(_published(128, 1024, 1), 2001, 200, (256, 7, 4, 30_522)),
    "medium": Size(_published(256, 2048, 1), 1000, 100, (384, 9, 6, 30_522)),
    "original": Size(_published(512, 4096, 2), 300, 50, (768, 10, 12, 30_522)),
    "small-en": Size("small-en", 2001, 200, (96, 8, 4, 30_522)),
    "tiny": Size(  # for the tests
        {
            "tokens": {"kind": "char_cnn", "embedding_dim": 4, "filters": [(1, 4), (3, 8)]},
            "encoder": {"projection_dim": 8, "cell_dim": 12},
        },
        40,
        5,
        (8, 1, 2, 500),
    ),
}


def sentences_of(path: Path | None) -> Sentences:
    """Of a file with a sentence of tokens a line, or of the development part of UD English EWT."""
    if path is not None:
        return [line.split() for line in path.read_text("utf-8").splitlines() if line.strip()]
    if not TEXT.is_file():
        raise SystemExit(f"the text is not on this machine ({TEXT}); give a file with a sentence a line with --text")
    with tarfile.open(TEXT) as archive:
        member = next(member for member in archive if member.name.endswith(PART))
        data = archive.extractfile(member)
        assert data is not None
        blocks = data.read().decode("utf-8").split("\n\n")
    lines = ([line.split("\t") for line in block.splitlines() if line[:1].isdigit()] for block in blocks)
    found = ([fields[1] for fields in block if fields[0].isdigit()] for block in lines)
    return [sentence for sentence in found if sentence]


def bilm_of(size: Size) -> "BiLM":
    """The built-in model, or one of this shape with random weights."""
    import torch

    from elmokit.config import BiLMConfig
    from elmokit.model.build import build_bilm
    from elmokit.weights import load_bilm

    if isinstance(size.model, str):
        return load_bilm(size.model)
    torch.manual_seed(1)
    return build_bilm(BiLMConfig.model_validate(size.model)).eval()


Embed = Callable[[Sentences], Sequence[Any]]


def elmokit_of(size: Size, *, dtype: str) -> Callable[[], Embed]:
    """What makes an embedder that has seen no text; all layers."""
    from elmokit.embed.embedder import Embedder
    from elmokit.model.precision import set_precision

    bilm = bilm_of(size)
    set_precision(bilm, dtype)  # type: ignore[arg-type]
    return lambda: Embedder(bilm).embed


def plain_of(size: Size) -> Callable[[], Embed]:
    """AllenNLP's way: batches in file order, all places through all of the CNN, a direction after the other."""
    import torch
    from torch import Tensor
    from torch.nn import functional as F

    from elmokit.model.bilm import reverse_within
    from elmokit.text.characters import sentences_to_ids

    bilm = bilm_of(size)
    cnn: Any = bilm.token_encoder

    def encode(ids: Tensor) -> Tensor:
        table = torch.cat([cnn.embedding.new_zeros(1, cnn.config.embedding_dim), cnn.embedding])
        characters = F.embedding(ids.flatten(0, 1), table).transpose(1, 2)
        x = torch.cat([convolution(characters).max(dim=-1).values for convolution in cnn.convolutions], dim=-1).relu()
        for highway in cnn.highways:
            gate = torch.sigmoid(highway.carry(x))
            x = gate * torch.relu(highway.transform(x)) + (1 - gate) * x
        return (x if cnn.projection is None else cnn.projection(x)).view(*ids.shape[:2], -1)

    def run(stack: Any, x: Tensor, mask: Tensor) -> list[Tensor]:  # noqa: ANN401
        state, outputs = stack.initial_state(len(x), x), []
        for index, layer in enumerate(stack.layers):
            output, _, _ = layer.plain(x, mask, state.hidden[index], state.cell[index])
            x = output + x if index else output
            outputs.append(x)
        return outputs

    @torch.no_grad()
    def embed(sentences: Sentences) -> list[Any]:
        found = []
        for start in range(0, len(sentences), ROWS):
            batch = sentences[start : start + ROWS]
            numbers, counts = sentences_to_ids(batch, cnn.config.max_characters_per_token)
            ids, lengths = torch.from_numpy(numbers), torch.from_numpy(counts)
            mask = torch.arange(ids.shape[1]) < lengths.unsqueeze(1)
            tokens = encode(ids) * mask.unsqueeze(-1)
            forward = [tokens, *run(bilm.forward_encoder, tokens, mask)]
            turned = run(bilm.backward_encoder, reverse_within(tokens, lengths), mask)
            backward = [tokens, *(reverse_within(layer, lengths) for layer in turned)]
            layers = torch.stack([torch.cat(pair, dim=-1) for pair in zip(forward, backward, strict=True)], dim=1)
            found += [row[:, 1 : len(tokens) + 1].clone().numpy() for row, tokens in zip(layers, batch, strict=True)]
        return found

    return lambda: embed


def bert_of(size: Size) -> Callable[[], Embed]:
    """A BERT with a word piece for each token, in the same batches; all layers."""
    import torch
    from transformers import BertConfig, BertModel

    width, layers, heads, pieces = size.bert
    torch.manual_seed(1)
    model = BertModel(
        BertConfig(
            vocab_size=pieces,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
        ),
        add_pooling_layer=False,
    ).eval()

    @torch.no_grad()
    def embed(sentences: Sentences) -> list[Any]:
        found = []
        for start in range(0, len(sentences), ROWS):
            batch = [sentence[:510] for sentence in sentences[start : start + ROWS]]
            ids = torch.zeros(len(batch), max(map(len, batch)) + 2, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for row, (sentence, seen) in zip(batch, zip(ids, mask, strict=True), strict=True):
                sentence[1 : len(row) + 1] = torch.tensor([zlib.crc32(token.encode()) % pieces for token in row])
                seen[: len(row) + 2] = 1
            hidden = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
            every = torch.stack(hidden, dim=1)
            found += [row[:, 1 : len(tokens) + 1].clone().numpy() for row, tokens in zip(every, batch, strict=True)]
        return found

    return lambda: embed


@dataclass(frozen=True)
class Contender:
    """One row of the table."""

    name: str
    precision: str
    make: Callable[..., Callable[[], Embed]]
    options: dict[str, str]


CONTENDERS = {
    "elmokit": Contender("elmokit", "float32", elmokit_of, {"dtype": "float32"}),
    "elmokit-bfloat16": Contender("elmokit", "bfloat16", elmokit_of, {"dtype": "bfloat16"}),
    "elmokit-int8": Contender("elmokit", "int8", elmokit_of, {"dtype": "int8"}),
    "plain": Contender("AllenNLP's way", "float32", plain_of, {}),
    "bert": Contender("BERT of as many parameters", "float32", bert_of, {}),
}


@dataclass(frozen=True)
class Turn:
    """What one process measured: tokens a second, seconds a sentence, MB, GFLOP/s of matrix products by dtype."""

    rate: float
    latencies: list[float]
    memory: float
    products: dict[str, float]
    torch: str
    engine: str


def take_turn(key: str, size: Size, text: Path | None, *, threads: int) -> Turn:
    """Embed in this process."""
    import torch

    from elmokit import kernel

    torch.set_num_threads(threads)
    contender, sentences = CONTENDERS[key], sentences_of(text)[: size.sentences]
    make = contender.make(size, **contender.options)
    make()(sentences[-3:])  # what is set up once; the next one has seen nothing
    embed = make()
    start = time.perf_counter()
    embed(sentences)
    rate = sum(map(len, sentences)) / (time.perf_counter() - start)
    embed, latencies = make(), []
    for sentence in sentences[: size.latencies]:
        start = time.perf_counter()
        embed([sentence])
        latencies.append(time.perf_counter() - start)
    unit = 1 if sys.platform == "darwin" else 1024
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    return Turn(rate, latencies, memory, products(threads), torch.__version__, kernel.describe())


def products(threads: int) -> dict[str, float]:
    """The best rate of large matrix products, a product for each thread."""
    import torch

    from elmokit.model.concurrent import side_by_side
    from elmokit.model.linear import linear

    def multiply(x: "torch.Tensor", weight: "torch.Tensor") -> None:
        for _ in range(4):
            linear(x, weight)

    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        x, weight = torch.randn(512, 2048).to(dtype), torch.randn(2048, 2048).to(dtype)
        best = float("inf")
        for _ in range(8):
            start = time.perf_counter()
            side_by_side([lambda x=x, w=weight: multiply(x, w)] * threads, workers=threads)
            best = min(best, time.perf_counter() - start)
        found[str(dtype).removeprefix("torch.")] = threads * 4 * 2 * 512 * 2048 * 2048 / best / 1e9
    return found


def operations(config: "BiLMConfig", sentences: Sentences) -> float:
    """Floating-point operations of matrix products that the text takes at least, for each token of it."""
    encoder, characters = config.encoder, config.characters
    width, cell = encoder.projection_dim, encoder.cell_dim
    recurrent = 2 * encoder.num_layers * 2 * (4 * cell * 2 * width + (cell * width if encoder.has_projection else 0))
    total = float(recurrent * sum(len(sentence) + 2 for sentence in sentences))
    if characters is not None:
        features = characters.num_filters
        above = 2 * (characters.num_highways * 2 * features**2 + features * width)
        window = 2 * characters.embedding_dim * sum(size * count for size, count in characters.filters)
        for token in {token for sentence in sentences for token in sentence}:
            length = min(len(token.encode("utf-8", "ignore")), characters.max_characters_per_token - 2) + 2
            total += above + window * (length + 1)
    return total / sum(map(len, sentences))


def turns_of(size: str, keys: list[str], arguments: argparse.Namespace) -> Iterator[tuple[str, Turn]]:
    """All turns at a size, one after the other, each in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads), "MKL_NUM_THREADS": str(arguments.threads)}
    for _ in range(arguments.turns):
        for key in keys:
            command = [sys.executable, __file__, "--turn", key, "--size", size, "--threads", str(arguments.threads)]
            command += ["--text", str(arguments.text)] if arguments.text else []
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{key} failed:\n{done.stderr}")
            turn = Turn(**json.loads(done.stdout.splitlines()[-1]))
            print(f"{size:<10}{key:<18}{turn.rate:>9,.0f} tokens/s {turn.memory:>7,.0f} MB", file=sys.stderr)  # noqa: T201
            yield key, turn


def summary(size: str, turns: dict[str, list[Turn]], needed: float) -> list[dict[str, Any]]:
    """One row a contender; ratios are medians over the turns of one round."""
    rows = []
    products = {
        dtype: max(turn.products[dtype] for own in turns.values() for turn in own) for dtype in ("float32", "bfloat16")
    }
    for key, own in turns.items():
        contender = CONTENDERS[key]
        rates = [turn.rate for turn in own]
        row = {
            "size": size,
            "contender": key,
            "name": contender.name,
            "precision": contender.precision,
            "tokens per second": round(statistics.median(rates), 1),
            "lowest": round(min(rates), 1),
            "highest": round(max(rates), 1),
            "latency ms": round(1e3 * statistics.median(statistics.median(turn.latencies) for turn in own), 2),
            "latency p99 ms": round(1e3 * statistics.median(_percentile(turn.latencies, 0.99) for turn in own), 2),
            "peak MB": round(statistics.median(turn.memory for turn in own)),
        }
        if key.startswith("elmokit"):
            best = products["float32" if contender.precision == "float32" else "bfloat16"]
            row["share of products"] = round(row["tokens per second"] * needed / 1e9 / best, 3)
        if "plain" in turns:
            row["x plain"] = round(
                statistics.median(b.rate / a.rate for a, b in zip(turns["plain"], own, strict=True)), 2
            )
            waits = [[statistics.median(turn.latencies) for turn in some] for some in (turns["plain"], own)]
            row["x plain latency"] = round(statistics.median(a / b for a, b in zip(*waits, strict=True)), 2)
        rows.append(row)
    return rows


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def markdown(found: dict[str, Any]) -> str:
    """The table and what it stands on."""
    rates = ", ".join(f"{rate:,.0f} GFLOP/s in {dtype}" for dtype, rate in found["products"].items())
    lines = [
        f"{found['date']}, commit {found['commit']}, torch {found['torch']}, {found['engine']}, {found['machine']}; "
        f"{found['threads']} threads, {found['turns']} turns, alternating; medians, and the range over turns. "
        f"Large matrix products reach {rates}.",
        "",
        "| size | | precision | tokens/s | range | AllenNLP's way | one sentence, median | p99 | AllenNLP's way "
        "| peak memory | of the products' rate |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in found["rows"]:
        ratios = [f"{row[name]:.1f} x" if name in row else "" for name in ("x plain", "x plain latency")]
        share = f"{row['share of products']:.0%}" if "share of products" in row else ""
        lines.append(
            f"| {row['size']} | {row['name']} | {row['precision']} | {row['tokens per second']:,.0f} "
            f"| {row['lowest']:,.0f} to {row['highest']:,.0f} | {ratios[0]} | {row['latency ms']:.1f} ms "
            f"| {row['latency p99 ms']:.1f} ms | {ratios[1]} | {row['peak MB']:,} MB | {share} |"
        )
    lines += ["", "AllenNLP's way: how many times as fast as the row that works so."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Tokens a second, latency and peak memory of embedding.")
    parser.add_argument("--size", nargs="+", choices=SIZES, default=[name for name in SIZES if name != "tiny"])
    parser.add_argument("--turns", type=int, default=3, help="of each contender")
    parser.add_argument("--threads", type=int, default=2, help="of each contender, in all")
    parser.add_argument("--text", type=Path, help="a sentence of tokens a line, in place of UD English EWT")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="CONTENDER")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help=f"also put the table into {results.RESULTS.name}")
    parser.add_argument("--turn", choices=CONTENDERS, help=argparse.SUPPRESS)  # this process is one turn
    arguments = parser.parse_args()
    if arguments.turn:
        turn = take_turn(arguments.turn, SIZES[arguments.size[0]], arguments.text, threads=arguments.threads)
        print(json.dumps(asdict(turn)))  # noqa: T201
        return
    sentences, rows, last = sentences_of(arguments.text), [], None
    best: dict[str, float] = {}
    for name in arguments.size:
        turns: dict[str, list[Turn]] = {key: [] for key in arguments.only}
        for key, turn in turns_of(name, arguments.only, arguments):
            turns[key].append(turn)
            last = turn
            best = {dtype: max(rate, best.get(dtype, 0.0)) for dtype, rate in turn.products.items()}
        needed = operations(bilm_of(SIZES[name]).config, sentences[: SIZES[name].sentences])
        rows += summary(name, turns, needed)
    assert last is not None
    found = {
        **results.origin(),
        "torch": last.torch,
        "engine": last.engine,
        "threads": arguments.threads,
        "turns": arguments.turns,
        "products": {dtype: round(rate) for dtype, rate in best.items()},
        "rows": rows,
    }
    text = markdown(found)
    print(json.dumps(found, indent=2) if arguments.json else text)  # noqa: T201
    if arguments.write:
        results.write(HEADING, text)


if __name__ == "__main__":
    main()
