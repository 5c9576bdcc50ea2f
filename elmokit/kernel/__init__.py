"""The recurrence of the LSTM in C, for inference on a CPU; torch does the same where there is no compiler.

`model.recurrence` asks `available()` and hands over NumPy views of its tensors. lstm.c says how it works.
"""

from elmokit.kernel.library import FORMATS, Format, Kernel, Packed, available, describe

__all__ = ["FORMATS", "Format", "Kernel", "Packed", "available", "describe"]
