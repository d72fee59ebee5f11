"""How large a number in a file may be, by what it counts.

Nothing real is larger, and nothing that is worked out from numbers below them overflows.
"""

CORES = 4096
"""Cores or SMs of a device."""

EXPERTS = 65535
"""Experts of a model, slots for copies of them, groups of them."""

TOKENS = 10**7
"""Tokens of a rank in a step."""

STEPS = 10**9
"""Steps between two plans, or that a plan looks back."""

FACTOR = 1e6
"""Ratios that a threshold or a capacity is given as."""
