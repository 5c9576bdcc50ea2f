"""A biLM in plain float64 NumPy, one token and one step at a time: what the network is compared with.

Written from the published arithmetic (Peters et al. 2018, bilm-tf) and sharing no code with `elmokit`. It is given a
configuration, weights by their names in a `state_dict`, and sentences as lists of tokens; it cuts, pads and batches
nothing, so that every shortcut of the network stands against the long way round.
"""

from dataclasses import dataclass

import numpy as np

DIRECTIONS = ("forward_encoder", "backward_encoder")


@dataclass
class Row:
    """One sentence after a run.

    Attributes:
        layers: (L + 1, T, 2 P), boundaries included.
        state: [direction][layer] pairs (hidden (P,), cell (D,)).
        clipped: how many cell values, and how many projected values, a clip has changed.
    """

    layers: np.ndarray
    state: list
    clipped: np.ndarray


def run(config, weights, sentences, states=None):
    """Run a biLM over a batch.

    Args:
        config: a BiLMConfig.
        weights: arrays by name.
        sentences: lists of tokens without boundaries; None is a row of no positions at all.
        states: of each row, from the rows of an earlier run; None for zeros.

    Returns:
        a Row for each sentence.
    """
    weights = {name: np.asarray(value, dtype=np.float64) for name, value in weights.items()}
    states = states or [None] * len(sentences)
    return [_row(config, weights, sentence, state) for sentence, state in zip(sentences, states, strict=True)]


def mix(rows, scores, gamma, *, layer_norm=False):
    """gamma * sum_k softmax(scores)_k layer_k for each row; the norm's mean and variance are those of the batch."""
    shares = np.exp(scores) / np.exp(scores).sum()
    layers = [[row.layers[k] for row in rows] for k in range(len(shares))]
    if layer_norm:
        layers = [_norm(layer) for layer in layers]
    return [
        gamma * sum(share * layer[i] for share, layer in zip(shares, layers, strict=True)) for i in range(len(rows))
    ]


def _norm(layer):
    values = np.concatenate([part.ravel() for part in layer])
    if not len(values):
        return layer
    mean = values.sum() / len(values)
    variance = ((values - mean) ** 2).sum() / len(values)
    return [(part - mean) / np.sqrt(variance + 1e-12) for part in layer]


def _row(config, weights, sentence, state):
    encoder = config.encoder
    if state is None:
        zeros = np.zeros(encoder.projection_dim), np.zeros(encoder.cell_dim)
        state = [[zeros] * encoder.num_layers for _ in DIRECTIONS]
    if sentence is None:
        return Row(np.zeros((config.num_layers, 0, config.output_dim)), state, np.zeros(2, int))
    clipped = np.zeros(2, int)
    tokens = [token_vector(config.tokens, weights, token) for token in ["<S>", *sentence, "</S>"]]
    directions, new_state = [], []
    for name, start, order in zip(DIRECTIONS, state, (1, -1), strict=True):
        inputs, layers, ends = tokens[::order], [tokens], []
        for index in range(encoder.num_layers):
            part = {key: weights.get(f"{name}.layers.{index}.{key}") for key in PARTS}
            outputs, end = _layer(encoder, part, inputs, start[index], clipped)
            if index > 0 and encoder.skip_connections:
                outputs = [output + x for output, x in zip(outputs, inputs, strict=True)]
            layers.append(outputs[::order])
            ends.append(end)
            inputs = outputs
        directions.append(np.array(layers))
        new_state.append(ends)
    return Row(np.concatenate(directions, axis=-1), new_state, clipped)


PARTS = ("weight_ih", "weight_hh", "bias", "weight_hr")


def _layer(encoder, part, inputs, start, clipped):
    hidden, cell = start
    outputs = []
    for x in inputs:
        gates = part["weight_ih"] @ x + part["weight_hh"] @ hidden + part["bias"]
        i, f, g, o = np.split(gates, 4)
        cell = _clip(_sigmoid(f) * cell + _sigmoid(i) * np.tanh(g), encoder.cell_clip, clipped, 0)
        hidden = _sigmoid(o) * np.tanh(cell)
        if encoder.cell_dim != encoder.projection_dim:
            hidden = _clip(part["weight_hr"] @ hidden, encoder.proj_clip, clipped, 1)
        outputs.append(hidden)
    return outputs, (hidden, cell)


def _clip(x, bound, clipped, kind):
    if bound is None:
        return x
    clipped[kind] += int((np.abs(x) > bound).sum())
    return np.minimum(np.maximum(x, -bound), bound)


def token_vector(config, weights, token):
    """(P,) of one token, from its bytes."""
    characters = np.array([weights["token_encoder.embedding"][c] for c in characters_of(token, config)])  # (C, E)
    pooled = []
    for index, (width, _) in enumerate(config.filters):
        kernel = weights[f"token_encoder.convolutions.{index}.weight"]  # (n, E, width)
        windows = [characters[at : at + width].T for at in range(len(characters) - width + 1)]
        values = [np.tensordot(kernel, window, axes=2) for window in windows]
        pooled.append(np.max(values, axis=0) + weights[f"token_encoder.convolutions.{index}.bias"])
    x = np.concatenate(pooled)
    x = np.tanh(x) if config.activation == "tanh" else np.maximum(x, 0)
    for index in range(config.num_highways):
        name = f"token_encoder.highways.{index}"
        gate = _sigmoid(_affine(weights, f"{name}.carry", x))
        x = gate * np.maximum(_affine(weights, f"{name}.transform", x), 0) + (1 - gate) * x
    return _affine(weights, "token_encoder.projection", x) if "token_encoder.projection.weight" in weights else x


def characters_of(token, config):
    """The C character numbers of a token, before the shift."""
    symbols = range(256) if config.alphabet is None else config.alphabet
    begin_sentence, end_sentence, begin_word, end_word, padding, other = range(len(symbols), len(symbols) + 6)
    if token in ("<S>", "</S>"):
        inner = [begin_sentence if token == "<S>" else end_sentence]
    elif config.alphabet is None:
        inner = list(token.encode("utf-8", "ignore"))
    else:
        inner = [symbols.index(point) if point in symbols else other for point in token]
    characters = [begin_word, *inner[: config.max_characters_per_token - 2], end_word]
    return characters + [padding] * (config.max_characters_per_token - len(characters))


def _affine(weights, name, x):
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def _sigmoid(x):
    return (1 + np.tanh(x / 2)) / 2  # no overflow
