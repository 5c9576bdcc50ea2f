"""One word, different sentences: how near are its vectors, by ELMo and by a static vector?

Run with: python examples/polysemy.py [picture.svg]
"""

import re
import sys
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import elmokit

SENTENCES = {
    "bank": [
        "The bank lent him money to buy a house .",
        "The bank refused to lend the company more money .",
        "The bank of the river was covered with grass .",
    ],
    "cell": [
        "The nucleus of the cell contains the DNA .",
        "Each cell divides into two new ones with the same membrane .",
        "The prisoner was locked in a cell with a small window .",
    ],
    "play": [
        "The play was performed in a small theatre .",
        "The play was written by a young author .",
        "The children play in the garden after school .",
    ],
}


def main() -> None:
    """Print one table a word."""
    torch.set_num_threads(1)  # an LSTM's products are too small to share out
    embedder = elmokit.load()
    console = Console(record=True, width=100)
    for word, sentences in SENTENCES.items():
        tokens = [sentence.split() for sentence in sentences]
        layers = embedder.embed(tokens, layers="all")  # one (L + 1, T, 2 P) a sentence
        vectors = np.stack([layer[:, row.index(word)] for layer, row in zip(layers, tokens, strict=True)])
        vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
        table = Table(title=f"cosine similarity of {word!r}, first sentence against the others", title_justify="left")
        for heading in ("sentence", "static", "layer 1", "layer 2"):
            table.add_column(heading)
        table.add_row(f"[bold]{sentences[0]}[/bold]", "", "", "")
        for sentence, cosines in zip(sentences[1:], (vectors[0] * vectors[1:]).sum(-1), strict=True):
            # Layer 0 sees a token's characters alone: a static vector, blind to the sentence.
            table.add_row(sentence, *(f"{cosine:.2f}" for cosine in cosines))
        console.print(table)
    if len(sys.argv) > 1:
        picture = console.export_svg(title="One word, different sentences")
        Path(sys.argv[1]).write_text(re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main()
