"""The decision core: pure, no I/O, no clock, no randomness of its own.

Every function takes `now` (monotonic seconds, any origin) and, where it flips a coin, an `rng`.
The simulator and production run exactly this code. See ARCHITECTURE.md for the map.
"""
