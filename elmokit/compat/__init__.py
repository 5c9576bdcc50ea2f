"""Doors for code that was written for other ELMo packages: their names, signatures, shapes and numbers."""
