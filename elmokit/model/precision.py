"""What a biLM's weights and matrix products are rounded to for inference; cells, sums and gates stay float32."""

from typing import Final, Literal, get_args

import torch

from elmokit import kernel
from elmokit.errors import ConfigError
from elmokit.model.bilm import BiLM
from elmokit.model.lstm import ProjectedLSTMLayer

Precision = Literal["float32", "bfloat16", "int8"]

PRECISIONS: Final = get_args(Precision)


def set_precision(bilm: BiLM, precision: Precision) -> None:
    """Round a biLM, for inference only and not to be undone.

    Args:
        bilm: the model, changed in place.
        precision: "int8" is bfloat16 with the recurrent weights in int8, which the native kernel alone can do.

    Raises:
        ConfigError: there is no such precision, or none here.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"dtype is {precision!r}, expected one of {', '.join(PRECISIONS)}")
    if precision == "int8" and kernel.available() is None:
        raise ConfigError(f"int8 needs the native kernel, but there is {kernel.describe()}; use bfloat16 or float32")
    bilm.to(torch.float32 if precision == "float32" else torch.bfloat16)
    for module in bilm.modules():
        if isinstance(module, ProjectedLSTMLayer):
            module.recurrence.rounding = "int8" if precision == "int8" else None
