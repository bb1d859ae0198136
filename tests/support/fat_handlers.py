"""Handlers that load much data when they are imported, as models and dictionaries are: all workers share it."""

from tests.support.handlers import leak
from tests.support.sizes import FULL

DATA = bytearray(b"x") * ((300 if FULL else 150) * 2**20)

__all__ = ["DATA", "leak"]
