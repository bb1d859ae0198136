"""A handler's parameters as a pydantic model: from arguments to JSON, and back.

    enqueue:  (*args, **kwargs) --given--> {name: value} --encode--> JSON text
    run:      JSON text --bind--> {name: value} --> fn(**values)

The model is made once, when the handler is declared; what cannot be a payload is
refused there. Only what the caller gave is stored: a parameter left out takes the
default of the code that runs the job.

Always true: an encoded payload was validated both ways, so the handler that made
it can read it. A text about a payload names fields and error types, never values.

Elsewhere: what JSON may hold (payload.py); registration (handler.py).
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from supervisor.columns import columns
from supervisor.context import Job
from supervisor.errors import InvalidHandler, InvalidJob, PayloadInvalid
from supervisor.payload import JsonText, encode, encode_flat

_CONFIG: Final = ConfigDict(
    extra="forbid",
    arbitrary_types_allowed=False,
    protected_namespaces=(),
    ser_json_bytes="base64",
    val_json_bytes="base64",
    # NaN must arrive at the payload's own check, which refuses it, and not become null on the way.
    ser_json_inf_nan="constants",
)

#: A value of one of these types, and of no subclass, is its own JSON, whatever else its parameter may be.
_PLAIN_TYPES: Final = frozenset({str, int, bool, NoneType})
_MAX_PROBLEMS: Final = 5
_PLAIN_STEP: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")


@dataclass(frozen=True, slots=True)
class Signature:
    """The payload parameters of one handler.

    Attributes:
        kind: The handler's, for texts.
        model: The pydantic model of the payload.
        fields: Parameter name to field name of the model. They differ for names a model cannot have.
        positional: The parameters that may be given by position, in order.
        job_parameter: The one that receives the Job, if any.
        renamed: (field, parameter) where the two names differ.
        plain: Of parameters whose values are stored as they are and need no model: the types those have.
        required: The parameters without a default.
    """

    kind: str
    model: type[BaseModel]
    fields: Mapping[str, str]
    positional: tuple[str, ...]
    job_parameter: str | None
    renamed: tuple[tuple[str, str], ...]
    plain: Mapping[str, frozenset[type]]
    required: frozenset[str]

    def given(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Name each argument of a call, as Python would; without the Job, which the worker gives."""
        if len(args) > len(self.positional):
            raise InvalidJob(
                "payload", f"{self.kind} takes {len(self.positional)} positional arguments, got {len(args)}"
            )
        values = dict(zip(self.positional, args, strict=False))
        for name, value in kwargs.items():
            if name in values:
                raise InvalidJob(f"payload.{name}", "is given twice, by position and by name")
            values[name] = value
        return values

    def encode(self, values: Mapping[str, object]) -> JsonText:
        """The payload of a call with *values* by parameter name.

        Raises:
            InvalidJob: a value is missing, unknown, of the wrong type, or cannot be stored; the field is named.
        """
        if type(values) is dict and (len(values) == len(self.fields) or self.required <= values.keys()):
            flat = encode_flat(values, self.plain)  # all names are parameters, then, and none is missing
            if flat is not None:
                return flat
        try:
            # Extra names reach the model too: it refuses them like any other.
            checked = self.model.model_validate(dict(values))
            include = {self.fields[name] for name in values}
            plain = checked.model_dump(mode="json", include=include, by_alias=True, round_trip=True, warnings=False)
        except ValidationError as error:
            raise InvalidJob(*_first_problem(error)) from None
        except Exception as error:  # validators and serializers are the user's code
            raise InvalidJob("payload", f"a type of {self.kind} raised {type(error).__name__} for it") from error
        text = encode(plain)
        try:
            self.model.__pydantic_validator__.validate_json(text)
        except ValidationError as error:
            name, reason = _first_problem(error)
            raise InvalidJob(name, f"is written in a form its own type does not read back: {reason}") from None
        return text

    def encode_many(self, payloads: Sequence[Mapping[str, object]]) -> Sequence[JsonText]:
        """As `encode` for each of *payloads*, at least one: all are checked now, plain ones written when asked for."""
        first = payloads[0]
        if type(first) is dict and self.required <= first.keys():
            plain = columns(payloads, self.plain)  # all names are parameters, then, and none is missing
            if plain is not None:
                return plain
        return [self.encode(payload) for payload in payloads]

    def bind(self, text: str | bytes, job: Job | None) -> dict[str, Any]:
        """The keyword arguments of the call that payload *text* stands for.

        Raises:
            PayloadInvalid: it does not fit; fields and error types are named.
        """
        try:
            values = self.model.__pydantic_validator__.validate_json(text).__dict__
        except ValidationError as error:
            raise PayloadInvalid(self.kind, _describe(error)) from None
        except Exception as error:  # a validator of the user's types
            raise PayloadInvalid(self.kind, f"a validator raised {type(error).__name__}") from None
        for field, name in self.renamed:
            values[name] = values.pop(field)
        if self.job_parameter is not None:
            values[self.job_parameter] = job
        return values  # type: ignore[no-any-return]


def read(kind: str, fn: Callable[..., object]) -> Signature:
    """The signature of *fn*; InvalidHandler when its parameters cannot be a payload."""
    annotations = _annotations(kind, fn)
    definitions: dict[str, Any] = {}
    fields: dict[str, str] = {}
    positional: list[str] = []
    job_parameter: str | None = None
    for index, (name, parameter) in enumerate(inspect.signature(fn).parameters.items()):
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidHandler(kind, f"parameter {name!r} is positional-only; a payload has names: remove the '/'")
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            star = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise InvalidHandler(kind, f"parameter '{star}{name}' has no fixed names; write each one, or take a dict")
        if name not in annotations:
            raise InvalidHandler(kind, f"parameter {name!r} has no type; annotate it (typing.Any takes any JSON value)")
        annotation = annotations[name]
        if _is_job(annotation):
            if job_parameter is not None:
                raise InvalidHandler(kind, f"parameters {job_parameter!r} and {name!r} both ask for the Job")
            job_parameter = name
            continue
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            positional.append(name)
        field = name if _can_be_field(name) else f"parameter_{index}"
        default = ... if parameter.default is parameter.empty else parameter.default
        definitions[field] = (annotation if field == name else Annotated[annotation, Field(alias=name)], default)
        fields[name] = field
    renamed = tuple((field, name) for name, field in fields.items() if field != name)
    types = {name: _plain_types(annotations[name]) for name in fields}
    return Signature(
        kind=kind,
        model=_model(kind, fn, definitions),
        fields=fields,
        positional=tuple(positional),
        job_parameter=job_parameter,
        renamed=renamed,
        plain={name: found for name, found in types.items() if found},
        required=frozenset(name for name, field in fields.items() if definitions[field][1] is ...),
    )


def _plain_types(annotation: object) -> frozenset[type]:
    """The types of the values that a parameter takes and pydantic writes as they are; none if pydantic is to say."""
    parts = typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, UnionType) else (annotation,)
    found = frozenset(NoneType if part is None else part for part in parts)
    return found if found <= _PLAIN_TYPES else frozenset()


def _annotations(kind: str, fn: Callable[..., object]) -> dict[str, Any]:
    """The types of *fn*'s parameters; not of its return, which may name what only type checkers import."""
    inner = inspect.unwrap(fn)
    try:
        written = {name: value for name, value in inspect.get_annotations(inner).items() if name != "return"}
        scope = getattr(inner, "__globals__", {})
        return typing.get_type_hints(SimpleNamespace(__annotations__=written), scope, include_extras=True)
    except NameError as error:
        reason = f"its annotations name {error.name!r}, which is not there at run time: import it at module level"
        raise InvalidHandler(kind, f"{reason}, outside `if TYPE_CHECKING`") from error
    except (TypeError, SyntaxError) as error:
        raise InvalidHandler(kind, f"its annotations cannot be read: {error}") from error


def _is_job(annotation: object) -> bool:
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    return annotation is Job


def _can_be_field(name: str) -> bool:
    """Whether a pydantic model may have a field of this name without losing something of its own."""
    return not name.startswith("_") and not name.startswith("model_") and not hasattr(BaseModel, name)


def _model(kind: str, fn: Callable[..., object], definitions: dict[str, Any]) -> type[BaseModel]:
    name = getattr(fn, "__name__", "payload")
    try:
        model: type[BaseModel] = create_model(name, __config__=_CONFIG, __module__=fn.__module__, **definitions)
    except Exception as error:
        raise InvalidHandler(kind, _unusable(definitions, error)) from error
    if not model.__pydantic_complete__:
        raise InvalidHandler(kind, "a type in its parameters is not defined yet: define it above the handler")
    return model


def _unusable(definitions: Mapping[str, Any], error: Exception) -> str:
    """Which parameter's type pydantic cannot take."""
    for field, (annotation, _) in definitions.items():
        try:
            TypeAdapter(annotation)
        except Exception:
            shown = annotation.__name__ if isinstance(annotation, type) else str(annotation)
            return f"parameter {field!r} has type {shown}, which has no JSON form; use JSON types or a pydantic model"
    return f"its parameters cannot be a payload: {str(error).splitlines()[0]}"


def _describe(error: ValidationError) -> str:
    """Fields and error types, the first few; no message, since pydantic's may quote the value.

    Only the JSON parser's is shown: it names a place. What the database has is valid, but may be too deep.
    """
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [
        f"{_path(problem['loc']) or 'payload'} ({problem['msg' if problem['type'] == 'json_invalid' else 'type']})"
        for problem in problems[:_MAX_PROBLEMS]
    ]
    if len(problems) > _MAX_PROBLEMS:
        shown.append(f"and {len(problems) - _MAX_PROBLEMS} more")
    return ", ".join(shown)


def _first_problem(error: ValidationError) -> tuple[str, str]:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = _path(problem["loc"])
    reasons = {"missing": "is missing", "extra_forbidden": "is not a parameter of the handler"}
    return f"payload.{path}" if path else "payload", reasons.get(problem["type"], f"does not fit ({problem['type']})")


def _path(steps: Sequence[str | int]) -> str:
    """A path into the payload. Keys of a mapping are data: what does not look like a name is not shown."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if _PLAIN_STEP.fullmatch(step) else "?")
    return text
