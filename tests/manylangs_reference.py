"""A made-up ELMoForManyLangs model and its arithmetic in plain float64 NumPy, from its code's description alone.

Shares no code with `elmokit`: it keeps the format's own names, row order and signs throughout, and does one token and
one step at a time.
"""

import json
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import torch

SPECIAL = ["<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]
WORDS = ["<oov>", "<bos>", "<eos>", "<pad>", "的", "人民", "abc", "\u3000", "a\u00a0b", "<S>", "\u2028"]
CHARACTERS = [*"的人民abc", "\u3000", "\u00a0", "\u2028", "\r", *SPECIAL]


@dataclass
class MadeUp:
    """The files of a model.

    Attributes:
        architecture: what its JSON says.
        words: keys of `word.dic`, by number.
        characters: keys of `char.dic`, by number.
        tensors: arrays of both pickles by name.
    """

    words: list = field(default_factory=lambda: list(WORDS))
    characters: list = field(default_factory=lambda: list(CHARACTERS))
    embedder: dict = field(default_factory=dict)
    encoder: dict = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self):
        self.architecture = {
            "encoder": {
                "name": "elmo",
                "projection_dim": 5,
                "cell_clip": 3,
                "proj_clip": 3,
                "dim": 7,
                "n_layers": 2,
                **self.encoder,
            },
            "token_embedder": {
                "name": "cnn",
                "activation": "relu",
                "filters": [[1, 3], [2, 4], [3, 2]],
                "n_highway": 2,
                "word_dim": 4,
                "char_dim": 3,
                "max_characters_per_token": 8,
                **self.embedder,
            },
            "classifier": {"name": "sampled_softmax", "n_samples": 8192},
            "dropout": 0.1,
        }
        draw = np.random.default_rng(self.seed)
        self.tensors = {name: draw.normal(0, 0.6, shape).astype(np.float32) for name, shape in self._shapes().items()}

    def _shapes(self):
        embedder, encoder = self.architecture["token_embedder"], self.architecture["encoder"]
        shapes = {}
        width = embedder["word_dim"]
        if embedder["word_dim"]:
            shapes["word_emb_layer.embedding.weight"] = (len(self.words), embedder["word_dim"])
        if embedder["char_dim"]:
            shapes["char_emb_layer.embedding.weight"] = (len(self.characters), embedder["char_dim"])
            for i, (size, count) in enumerate(embedder["filters"]):
                shapes[f"convolutions.{i}.weight"] = (count, embedder["char_dim"], size)
                shapes[f"convolutions.{i}.bias"] = (count,)
            filters = sum(count for _, count in embedder["filters"])
            for k in range(embedder["n_highway"]):
                shapes[f"highways._layers.{k}.weight"] = (2 * filters, filters)
                shapes[f"highways._layers.{k}.bias"] = (2 * filters,)
            width += filters
        dim, cell = encoder["projection_dim"], encoder["dim"]
        shapes |= {"projection.weight": (dim, width), "projection.bias": (dim,)}
        for direction in ("forward", "backward"):
            for layer in range(encoder["n_layers"]):
                name = f"{direction}_layer_{layer}"
                shapes[f"{name}.input_linearity.weight"] = (4 * cell, dim)
                shapes[f"{name}.state_linearity.weight"] = (4 * cell, dim)
                shapes[f"{name}.state_linearity.bias"] = (4 * cell,)
                shapes[f"{name}.state_projection.weight"] = (dim, cell)
        return shapes

    def write(self, folder, *, config_path="sample.json", architecture="sample.json", legacy=True):
        """Write the directory; no architecture file where its name is None."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"config_path": config_path, "lr": 0.001, "gpu": 0}))
        if architecture:
            (folder / architecture).write_text(json.dumps(self.architecture))
        for name, keys in (("char.dic", self.characters), ("word.dic", self.words)):
            lines = [f"{key}\t{number}\n" for number, key in enumerate(keys)]
            (folder / name).write_bytes("".join(reversed(lines)).encode())  # in any order
        is_encoder = {name: name.startswith(("forward", "backward")) for name in self.tensors}
        for file, wanted in (("token_embedder.pkl", False), ("encoder.pkl", True)):
            part = OrderedDict((n, torch.from_numpy(v)) for n, v in self.tensors.items() if is_encoder[n] == wanted)
            part._metadata = OrderedDict({"": {"version": 1}})  # as a module's state_dict has it
            torch.save(part, folder / file, _use_new_zipfile_serialization=not legacy)
        return folder

    def layers(self, tokens):
        """(L + 1, T, 2 P) of one sentence."""
        vectors = np.stack([self.token_vector(token) for token in ["<bos>", *tokens, "<eos>"]])
        both = [vectors, vectors[::-1]]
        layers = [np.concatenate([vectors, vectors], axis=1)]
        for layer in range(self.architecture["encoder"]["n_layers"]):
            for number, direction in enumerate(("forward", "backward")):
                output = self._lstm(f"{direction}_layer_{layer}", both[number])
                both[number] = output + both[number] if layer else output
            layers.append(np.concatenate([both[0], both[1][::-1]], axis=1))
        return np.stack(layers)[:, 1:-1]

    def token_vector(self, token):
        """(P,) of one token; the boundaries are tokens of their own name."""
        embedder = self.architecture["token_embedder"]
        boundary = token in ("<bos>", "<eos>")
        if not boundary:
            token = token[: embedder["max_characters_per_token"] - 2]
        parts = []
        if embedder["word_dim"]:
            number = self.words.index(token if token in self.words else "<oov>")
            parts.append(self.tensors["word_emb_layer.embedding.weight"][number].astype(float))
        if embedder["char_dim"]:
            parts.append(self._characters([token] if boundary else list(token), embedder))
        return self.tensors["projection.weight"].astype(float) @ np.concatenate(parts) + self.tensors["projection.bias"]

    def _characters(self, symbols, embedder):
        known = [symbol if symbol in self.characters else "<oov>" for symbol in symbols]
        spelled = ["<eow>", *known, "<bow>"]  # exchanged, as in all released models
        spelled += ["<pad>"] * (embedder["max_characters_per_token"] - len(spelled))
        x = self.tensors["char_emb_layer.embedding.weight"].astype(float)[[self.characters.index(s) for s in spelled]]
        pooled = []
        for i, (size, _) in enumerate(embedder["filters"]):
            kernel, bias = (
                self.tensors[f"convolutions.{i}.weight"].astype(float),
                self.tensors[f"convolutions.{i}.bias"],
            )
            windows = [np.einsum("few,we->f", kernel, x[at : at + size]) + bias for at in range(len(x) - size + 1)]
            pooled.append(np.max(windows, axis=0))
        y = np.concatenate(pooled)
        y = np.tanh(y) if embedder["activation"] == "tanh" else np.maximum(y, 0)
        for k in range(embedder["n_highway"]):
            both = self.tensors[f"highways._layers.{k}.weight"].astype(float) @ y
            both = both + self.tensors[f"highways._layers.{k}.bias"]
            new, gate = np.maximum(both[: len(y)], 0), _sigmoid(both[len(y) :])
            y = gate * y + (1 - gate) * new
        return y

    def _lstm(self, name, inputs):
        encoder = self.architecture["encoder"]
        weights = {key[len(name) + 1 :]: v.astype(float) for key, v in self.tensors.items() if key.startswith(name)}
        hidden, memory = np.zeros(encoder["projection_dim"]), np.zeros(encoder["dim"])
        outputs = []
        for x in inputs:
            sums = weights["input_linearity.weight"] @ x + weights["state_linearity.weight"] @ hidden
            i, f, m, o = np.split(sums + weights["state_linearity.bias"], 4)
            memory = _clip(_sigmoid(i) * np.tanh(m) + _sigmoid(f) * memory, encoder["cell_clip"])
            hidden = _clip(weights["state_projection.weight"] @ (_sigmoid(o) * np.tanh(memory)), encoder["proj_clip"])
            outputs.append(hidden)
        return np.stack(outputs)


def _clip(x, bound):
    return np.clip(x, -bound, bound) if bound else x


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))
