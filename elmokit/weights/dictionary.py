"""ELMoForManyLangs' dictionaries, `char.dic` and `word.dic`: a key, a tab and the number of its row on each line.

A key may be any text, white space included, so a line is split at its last tab and nothing is stripped.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from elmokit.errors import WeightsError
from elmokit.weights.files import reading

DICTIONARY: Final = "a dictionary of lines of a key, a tab and a number"
LARGEST_FILE: Final = 2**28  # bytes; the published ones have about 1 MB


def read_dictionary(path: Path) -> list[str]:
    """The keys of a dictionary, by number.

    Raises:
        WeightsError: there is none, a line is none of it (it is named), or the numbers are not 0, 1, 2 and so on.
    """
    with reading(path, DICTIONARY):
        size = path.stat().st_size
        lines = path.read_bytes().removesuffix(b"\n").split(b"\n") if size <= LARGEST_FILE else []
    keys: dict[int, str] = {}
    for line, data in enumerate(lines, start=1):
        key, tab, number = data.rpartition(b"\t")
        try:
            index = int(number) if tab and len(number) < 20 else -1
            text = key.decode("utf-8", "surrogatepass")
        except ValueError:  # UnicodeDecodeError is one
            index = -1
        if index < 0 or index in keys:
            raise WeightsError(
                f"{path}, line {line} is {data[:60]!r}, expected a key in UTF-8, a tab and a number that no line has"
            )
        keys[index] = text
    if not keys or len(keys) != max(keys) + 1:
        raise WeightsError(f"{path} ({size} bytes) has {len(keys)} lines, numbered to {max(keys, default=-1)}")
    if len(set(keys.values())) != len(keys):
        raise WeightsError(f"{path} has {len(keys)} lines, but only {len(set(keys.values()))} different keys")
    return [keys[index] for index in range(len(keys))]


def write_dictionary(path: Path, keys: Sequence[str]) -> None:
    """Write keys in the order of their numbers.

    Raises:
        WeightsError: a key has a line break, which would end its line.
    """
    broken = next((key for key in keys if "\n" in key), None)
    if broken is not None:
        raise WeightsError(f"{broken!r} has a line break, which ELMoForManyLangs' dictionaries cannot hold")
    lines = "".join(f"{key}\t{number}\n" for number, key in enumerate(keys))
    path.write_bytes(lines.encode("utf-8", "surrogatepass"))
