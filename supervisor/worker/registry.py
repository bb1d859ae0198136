"""The handlers this worker knows.

Modules named in SUPERVISOR_HANDLERS are imported once, in the fork server; a package's submodules are
imported with it, so `handlers` finds every file in the folder. After that the registry only reads.
"""

import importlib
import pkgutil
import traceback
from collections.abc import Iterable

from supervisor.errors import HandlersFailed


def import_handlers(modules: Iterable[str]) -> None:
    """Import *modules*, and for a package each module directly in it.

    Raises:
        HandlersFailed: one cannot be imported; the traceback is kept. SystemExit at import counts.
    """
    for name in modules:
        try:
            module = importlib.import_module(name)
            for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
                if not found.name.startswith("_"):
                    importlib.import_module(f"{name}.{found.name}")
        except BaseException as error:
            raise HandlersFailed(name, traceback.format_exc()) from error
