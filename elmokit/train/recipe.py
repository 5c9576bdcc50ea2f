"""A training run as a value: the TOML file that `elmokit train` takes.

A recipe names the model's shape, the corpus and how to train; the files in `recipes/` are examples. Paths are relative
to the recipe's own folder.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from elmokit.config import LARGEST_ALPHABET, BiLMConfig, PositiveFloat, describe_validation
from elmokit.errors import ConfigError

Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=0)]
PositiveCount = Annotated[int, Field(gt=0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Source(_Part):
    """Files that are sampled alike.

    Attributes:
        files: a path or glob pattern (`**` for any folders): text, JSON lines (`.jsonl`) or Parquet (`.parquet`);
            `.gz`, `.xz` and `.zst` are unpacked on the fly.
        weight: how often an epoch shows each sentence on average; 0.5 shows half of them.
        field: of JSON lines and Parquet, the key or column that holds the text.
    """

    files: str
    weight: Annotated[float, Field(gt=0, le=100)] = 1.0
    field: str = "text"


class CorpusRecipe(_Part):
    """Where the text comes from.

    Attributes:
        sources: the files.
        tokenized: whether a line is one sentence of tokens separated by spaces; otherwise lines are raw paragraphs,
            split and tokenised by the model's language.
        held_out: share of the text that is kept apart to measure perplexity.
        held_out_sources: files to measure it on instead; the share is not taken then, and their weights mean nothing.
        max_types: distinct words that are told apart when they are read, about 200 bytes of memory each; where there
            are more, the rarest are read as `<UNK>`.
        vocabulary_size: words that the softmax predicts, special ones included (V).
        alphabet_size: how many code points, the most frequent ones of the text to train on, get a vector of their own
            in the model's character CNN; None for a model that reads UTF-8 bytes, or has its alphabet already.
    """

    sources: tuple[Source, ...] = Field(min_length=1)
    tokenized: bool = False
    held_out: Share = 0.005
    held_out_sources: tuple[Source, ...] = ()
    max_types: Annotated[int, Field(gt=3)] = 10_000_000
    vocabulary_size: PositiveCount = 20_000
    alphabet_size: Annotated[int, Field(gt=0, le=LARGEST_ALPHABET)] | None = None


class TrainingRecipe(_Part):
    """How to train.

    Attributes:
        steps: optimiser steps in all; None for `epochs`.
        epochs: passes over the corpus where `steps` is not given.
        rows: contiguous streams that are read side by side (B).
        window: tokens of each stream in one step (T); gradients stop there, the state is carried on.
        accumulate: windows that a row reads for one step of the optimiser; their gradients are averaged.
        softmax: `sampled` for large vocabularies; `adaptive` is exact, with a narrower part for rarer words; `full`.
        num_samples: negatives of the sampled softmax (S); with fewer words than that, it is full.
        optimizer: `adamw`, or bilm-tf's `adagrad`, for which the loss is summed over the window, as there.
        learning_rate: its peak.
        warmup_steps: linear rise at the start.
        decay_steps: fall to zero at the end.
        decay: the shape of that fall.
        weight_decay: AdamW's, on matrices.
        clip_norm: bound on the gradient's global norm.
        dropout: on LSTM inputs and before the softmax.
        precision: `bf16` runs matrix products in bfloat16.
        seed: of initial values, order, negatives and dropout.
        evaluate_every: steps between two measurements of held-out perplexity; 0 for the end only.
        checkpoint_minutes: time between two checkpoints.
        keep_checkpoints: how many of the last ones are kept.
    """

    steps: PositiveCount | None = None
    epochs: PositiveCount = 10
    rows: PositiveCount = 128
    window: PositiveCount = 20
    accumulate: PositiveCount = 1
    softmax: Literal["sampled", "adaptive", "full"] = "sampled"
    num_samples: PositiveCount = 8192
    optimizer: Literal["adamw", "adagrad"] = "adamw"
    learning_rate: PositiveFloat = 2e-3
    warmup_steps: Count = 500
    decay_steps: Count = 0
    decay: Literal["linear", "cosine"] = "linear"
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    clip_norm: PositiveFloat = 10.0
    dropout: Share = 0.1
    precision: Literal["float32", "bf16"] = "float32"
    seed: Count = 1
    evaluate_every: Count = 0
    checkpoint_minutes: PositiveFloat = 5.0
    keep_checkpoints: PositiveCount = 2


class Recipe(_Part):
    """A whole run."""

    model: BiLMConfig
    corpus: CorpusRecipe
    training: TrainingRecipe = TrainingRecipe()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a TOML recipe.

        Raises:
            ConfigError: missing, not TOML, or with fields that are wrong or unknown.
        """
        try:
            return cls.model_validate(tomllib.loads(path.read_text("utf-8")))
        except FileNotFoundError as error:
            raise ConfigError(f"there is no recipe {path}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is no TOML file: {error}") from error
        except ValidationError as error:
            raise ConfigError(f"{path}: {describe_validation(error)}") from error
