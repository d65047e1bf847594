"""Drives build/…/grammar_probe: JSON requests in, JSON answers out."""

from pathlib import Path

from probe import Probe


class GrammarProbe(Probe):
    def __init__(self, binary, model):
        super().__init__(Path(binary).resolve().parent / "grammar_probe", model)
