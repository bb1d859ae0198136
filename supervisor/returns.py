"""What a handler returns, as JSON text that can be stored: by its return annotation, within a limit.

    return value --pydantic, by the annotation--> plain values --payload.py--> JSON text

Always true: what passes is taken by the database and given back equal; a refusal names the kind and why, and quotes
no value. Without an annotation a value is written by what it is, as pydantic does for `Any`.

Elsewhere: the option (handler.py); when it is stored (worker/results.py); reading it (results.py).
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from pydantic import ConfigDict, PydanticUserError, TypeAdapter
from pydantic_core import PydanticSerializationError

from supervisor.errors import InvalidHandler, InvalidJob, InvalidResult
from supervisor.payload import JsonText, encode_value

DEFAULT_MAX_BYTES: Final = 64 * 1024
MOST_BYTES: Final = 8 * 1024 * 1024
MAX_KEPT_S: Final = 366 * 86_400.0

_CONFIG: Final = ConfigDict(ser_json_bytes="base64", ser_json_inf_nan="constants")


class Returns:
    """How one handler's results are written.

    Attributes:
        kept_s: How long each is kept, seconds.
        max_bytes: The most bytes one may take as JSON text.
    """

    def __init__(self, kind: str, fn: Callable[..., object], *, kept_s: float, max_bytes: int) -> None:
        self.kind = kind
        self.kept_s = kept_s
        self.max_bytes = max_bytes
        annotation = _annotation(kind, fn)
        try:
            try:
                self._adapter = TypeAdapter[Any](annotation, config=_CONFIG)
            except PydanticUserError:  # a model brings its own
                self._adapter = TypeAdapter[Any](annotation)
        except Exception as error:
            raise InvalidHandler(kind, f"result_for: its return type has no JSON form: {_first(error)}") from error

    def encode(self, value: object) -> JsonText:
        """*value* as JSON text.

        Raises:
            InvalidResult: it does not fit the annotation, has no JSON form, or is too large.
        """
        try:
            plain = self._adapter.dump_python(value, mode="json", by_alias=True, warnings="error")
        except PydanticSerializationError as error:
            raise InvalidResult(
                self.kind, f"a {type(value).__name__} does not fit its return type: {_first(error, quoted=True)}"
            ) from None
        except Exception as error:  # serializers are the user's code
            raise InvalidResult(self.kind, f"writing it as JSON raised {type(error).__name__}") from error
        try:
            return encode_value(plain, field="result", max_bytes=self.max_bytes)
        except InvalidJob as error:
            raise InvalidResult(self.kind, f"{error.field} {error.reason}") from None


def _annotation(kind: str, fn: Callable[..., object]) -> Any:
    inner = inspect.unwrap(fn)
    written = inspect.get_annotations(inner).get("return", Any)
    try:
        found = typing.get_type_hints(
            SimpleNamespace(__annotations__={"return": written}), getattr(inner, "__globals__", {}), include_extras=True
        )
    except NameError as error:
        raise InvalidHandler(
            kind,
            f"result_for: its return type names {error.name!r}, which is not there at run time: import it at module "
            "level, outside `if TYPE_CHECKING`",
        ) from error
    except (TypeError, SyntaxError) as error:
        raise InvalidHandler(kind, f"result_for: its return type cannot be read: {error}") from error
    return found["return"]


def _first(error: BaseException, *, quoted: bool = False) -> str:
    """The first line of *error*; where it may quote the value, only what was expected."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if quoted:
        lines = [line.strip() for line in str(error).splitlines() if "Expected" in line]
        text = lines[0].partition(" - ")[0].split("Expected ", 1)[-1] if lines else "it has no JSON form"
        text = f"expected {text}" if lines else text
    return text
