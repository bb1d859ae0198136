"""A module of handlers that does not import, and quotes the database's address as it fails."""

import os

raise RuntimeError(f"cannot reach {os.environ['LEAKED_ADDRESS']}")
