"""Payloads of plain values, thousands at once: looked at by columns, written one by one when they are asked for.

    [{"n": 1, "note": "a"}, ...] --columns--> n: [1, ...], note: ["a", ...] --Columns--> '{"n":1,"note":"a"}', ...

A look at a column is a few calls of functions in C, however many rows there are; a look at each value of each row is
as many calls of Python. So a bulk is checked whole before the first statement, in a fraction of the time, and its
texts are written while the server stores those before.

Always true: what Columns yields is what `payload.encode` would have made of the same payloads but for spaces and the
like, which JSON does not see. It holds the values, not the caller's mappings: what becomes of those later changes
nothing.

Elsewhere: everything that is not so plain (payload.py), which also says what is wrong with what.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from json.encoder import encode_basestring
from operator import itemgetter
from typing import Any, Final, overload

from supervisor.payload import MAX_PAYLOAD_BYTES, SIMPLE_INT_BITS, JsonText

_WORDS: Final[Mapping[object, str]] = {None: "null", True: "true", False: "false"}
#: A character takes at most so many bytes in a JSON text, as in \u001f.
_MOST_BYTES: Final = 6
_LARGEST: Final = 2**SIMPLE_INT_BITS - 1


class Columns(Sequence[JsonText]):
    """The JSON text of each of some payloads that have the same names. Made by `columns`."""

    __slots__ = ("_names", "_values")

    def __init__(self, names: Sequence[str], values: Sequence[Sequence[Any]]) -> None:
        self._names = names
        self._values = values

    def __len__(self) -> int:
        return len(self._values[0])

    @overload
    def __getitem__(self, index: int) -> JsonText: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[JsonText]: ...
    def __getitem__(self, index: int | slice) -> JsonText | Sequence[JsonText]:
        if isinstance(index, slice):
            return Columns(self._names, [column[index] for column in self._values])
        return JsonText(self._format() % tuple(_word(column[index]) for column in self._values))

    def __iter__(self) -> Iterator[JsonText]:
        return map(JsonText, self.texts())

    def texts(self) -> Iterator[str]:
        """As by iteration, without telling by their type what they are."""
        return map(self._format().__mod__, zip(*map(_words, self._values), strict=True))

    def _format(self) -> str:
        """The text of a payload with a %s for each value."""
        names = (json.dumps(name, ensure_ascii=False).replace("%", "%%") for name in self._names)
        return "{" + ",".join(f"{name}:%s" for name in names) + "}"


def columns(payloads: Sequence[Mapping[str, Any]], types: Mapping[str, Collection[type]]) -> Columns | None:
    """The texts of *payloads*; None when one of them needs a closer look, or they have not all the same names.

    Args:
        payloads: At least one, the first with a name at least.
        types: Of what may be looked at so, by name: texts, integers, booleans and None.
    """
    names = list(payloads[0])
    if set(map(type, payloads)) != {dict} or set(map(len, payloads)) != {len(names)}:
        return None
    most = MAX_PAYLOAD_BYTES - len(names) * 4
    values = []
    for name in names:
        try:
            column = list(map(itemgetter(name), payloads))
        except KeyError:
            return None
        size = _size(column, types.get(name, ()))
        if size is None:
            return None
        most -= size + _MOST_BYTES * len(name)
        values.append(column)
    return Columns(names, values) if values and most >= 0 else None


def _size(column: Sequence[Any], types: Collection[type]) -> int | None:
    """How many bytes one of *column* has at most; None when it is not as plain as that."""
    found = set(map(type, column))
    if not found.issubset(types):
        return None
    size = len("false")
    if str in found:
        texts = column if len(found) == 1 else [one for one in column if type(one) is str]
        if any("\x00" in text for text in texts):
            return None
        if not all(map(str.isascii, texts)):
            try:
                for text in texts:
                    text.encode()
            except UnicodeEncodeError:  # a lone surrogate
                return None
        size = _MOST_BYTES * max(map(len, texts)) + len('""')
    if int in found:
        numbers = column if len(found) == 1 else [one for one in column if type(one) is int]
        if max(numbers) > _LARGEST or min(numbers) < -_LARGEST:
            return None
        size = max(size, len(str(-_LARGEST)))
    return size


def _words(column: Sequence[Any]) -> Iterator[Any]:
    """What stands for each in JSON, or prints so."""
    found = set(map(type, column))
    if found == {int}:
        return iter(column)
    return map(encode_basestring if found == {str} else _word, column)


def _word(value: Any) -> str:
    if type(value) is str:
        return encode_basestring(value)
    return str(value) if type(value) is int else _WORDS[value]
