"""Settings as environment variables, secrets as files, and what is said of those that cannot be used.

Always true: no line quotes a secret.

Elsewhere: the settings (fields.py); addresses (dsn.py).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from pydantic import ValidationError

from supervisor import dsn

PREFIX: Final = "SUPERVISOR_"
SECRETS: Final = ("database_url", "listen_database_url")
"""Secrets that are addresses."""
WORDS: Final = ("dashboard_token", "dashboard_password")
"""Secrets that are words."""
BROKERS: Final = ("outbox_url", "consume_url")
"""Secrets that are addresses of brokers: checked by their drivers, which know the schemes."""


def variable(field: str) -> str:
    """The environment variable of a field."""
    return PREFIX + field.rstrip("_").upper()


def broker_secrets(text: str) -> tuple[str, ...]:
    """What must never be shown of a broker's address: its password, as it stands and decoded."""
    login, at, _ = text.partition("://")[2].rpartition("@")
    password = login.partition(":")[2]
    return tuple({password, unquote(password)}) if at and password else ()


def strangers(environ: Mapping[str, str], fields: Collection[str]) -> list[str]:
    """A line per variable that looks like a misspelt setting. Others with our prefix are left alone:
    Kubernetes sets SUPERVISOR_PORT and the like for a Service named supervisor."""
    known = {variable(field) for field in fields} | {variable(field) + "_FILE" for field in SECRETS + WORDS + BROKERS}
    # Where the handlers of the demo count their calls; the server of supervisor.testing.pytest.
    known |= {"SUPERVISOR_LAB_DATABASE_URL", "SUPERVISOR_TEST_DATABASE_URL"}
    others = sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
    return [
        f"{name} is not a setting and has no effect: is {close[0]} meant?"
        for name in others
        if (close := difflib.get_close_matches(name, known, n=1, cutoff=0.88))
    ]


def read_secret_files(given: dict[str, Any]) -> Iterator[str]:
    """Put secrets named by *_FILE into *given*; yields problems."""
    for field in SECRETS + WORDS + BROKERS:
        direct, by_file = variable(field), variable(field) + "_FILE"
        path = given.pop(field + "_file", None) or (os.environ.get(by_file) if field not in given else None)
        if field not in given and direct in os.environ and not os.environ[direct].strip():
            yield f"{direct} is set but empty: unset it or give {'an address' if field not in WORDS else 'a value'}"
        if not path:
            continue
        if field in given or os.environ.get(direct):
            yield f"{direct} and {by_file} are both set: keep one"
            continue
        try:
            text = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            yield f"{by_file}={path}: cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8 text'}"
            continue
        if text:
            given[field] = text
        else:
            yield f"{by_file}={path}: the file is empty"


def explain(invalid: ValidationError, given: Mapping[str, Any], fields: Collection[str]) -> Iterator[str]:
    """A line per problem that was found in the values of *fields*."""
    for error in invalid.errors(include_url=False, include_context=True):
        if error["type"] == "default_factory_not_called":
            continue  # follows from another problem in the list
        place = str(error["loc"][0]) if error["loc"] else ""
        field = place if place in fields else place.removeprefix(PREFIX).lower()
        field = "schema_" if field == "schema" else field
        cause = error.get("ctx", {}).get("error")
        reason = str(cause) if cause is not None else error["msg"][:1].lower() + error["msg"][1:]
        if error["type"] == "extra_forbidden":
            yield f"{place} is not a setting"
        elif not place:
            yield reason
        elif field in SECRETS + WORDS + BROKERS:
            yield f"{variable(field)}: {reason}"
        else:
            shown = dsn.mask(str(given.get(field, os.environ.get(variable(field), ""))))
            yield f"{variable(field)}={shown[:80]}: {reason}"
