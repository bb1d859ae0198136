"""How the parent tells the fork server what to import: environment variables, set before it starts."""

from typing import Final

PATH_VARIABLE: Final = "_SUPERVISOR_SYS_PATH"
MODULES_VARIABLE: Final = "_SUPERVISOR_HANDLERS"
LIBRARIES_VARIABLE: Final = "_SUPERVISOR_LIBRARIES"
METRICS_VARIABLE: Final = "_SUPERVISOR_METRICS_DIR"
