"""Discrete-event simulator of MoE expert-parallel communication on superpods."""

__version__ = "0.1.0"
