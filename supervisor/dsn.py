"""Addresses of databases: check them before use, and keep their passwords out of sight.

An address arrives as a URL or in key=value form, by hand, so it may be
malformed. libpq's own complaint would quote the part it stumbled over, which
can be a part of the password; so every address passes `parse` first, whose
complaints quote nothing, and every text that leaves the process passes `mask`.

    setting --parse--> Address.text --> the driver
       any text --mask--> logs, health page, command line

Always true: no error raised here contains any part of the address. `mask`
prefers hiding too much to hiding too little.

Elsewhere: where the address comes from (settings/); connecting (db).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote

SECRET_KEYWORDS: Final = frozenset(
    {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
)
# libpq's keywords as of PostgreSQL 18; it refuses any other and quotes it.
_OPEN_KEYWORDS: Final = (
    "service servicefile passfile user hostaddr host port dbname client_encoding options application_name "
    "fallback_application_name sslmode sslnegotiation sslcert sslkey sslrootcert sslcrl sslcrldir sslsni "
    "sslcertmode sslcompression sslkeylogfile requirepeer require_auth requiressl ssl_min_protocol_version "
    "ssl_max_protocol_version gssencmode gssdelegation gsslib krbsrvname channel_binding connect_timeout "
    "tcp_user_timeout keepalives keepalives_idle keepalives_interval keepalives_count load_balance_hosts "
    "target_session_attrs replication min_protocol_version max_protocol_version oauth_issuer oauth_client_id "
    "oauth_scope"
)
KEYWORDS: Final = SECRET_KEYWORDS | frozenset(_OPEN_KEYWORDS.split())
HIDDEN: Final = "***"

_SCHEME = re.compile(r"(postgres(?:ql)?)(\+\w+)?://", re.IGNORECASE)
_TAIL = re.compile(r"([^/?]*)(?:/([^?]*))?(?:\?(.*))?", re.DOTALL)
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%a-z]+\]|[^\s@:/?#\[\]]*)(?::(\d*))?")
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")


@dataclass(frozen=True, slots=True)
class Address:
    """A checked address. `text` is what the driver gets: the same address, with a raw password percent-encoded."""

    text: str = field(repr=False)
    user: str | None = None
    dbname: str | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)


def parse(text: str) -> Address:
    """The address in *text*, a `postgresql://` URL or libpq's key=value form.

    A URL whose password holds raw reserved characters (`@ # % / ? :` or a
    space) is repaired, since the last `@` before a valid host list ends it.

    Raises:
        ValueError: With a reason that quotes no part of *text*.
    """
    text = text.strip()
    if not text:
        raise ValueError("is empty")
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise ValueError("contains a control character (a newline inside?)")
    if scheme := _SCHEME.match(text):
        if scheme[2]:
            raise ValueError("names a driver in its scheme: write postgresql:// without the '+...' part")
        return _parse_url(text[scheme.end() :])
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
        raise ValueError("has a scheme other than postgresql://")
    if "=" not in text:
        raise ValueError("is neither a postgresql:// URL nor in key=value form (is the scheme missing?)")
    return _parse_pairs(text)


def _parse_url(rest: str) -> Address:
    problem = ""
    head, at, tail = rest.partition("@")
    if not at or "/" in head:  # libpq looks for user and password before the first slash only
        head, tail = "", rest
    if not (_BAD_PERCENT.search(head) or re.search(r"\s", head)):
        try:
            return _address(head, at if head else "", tail, literal=False)
        except ValueError as error:
            problem = str(error)
    # Not a URL as it stands: a raw password? It ends at the last @ that a valid remainder follows.
    for position in reversed([i for i, c in enumerate(rest) if c == "@"]):
        head, tail = rest[:position], rest[position + 1 :]
        if not tail.partition("/")[0]:
            continue
        try:
            return _address(head, "@", tail, literal=bool(_BAD_PERCENT.search(head)))
        except ValueError:
            continue
    raise ValueError(
        (problem or "is a malformed URL")
        + "; characters such as @ : / ? # % and space in user or password are written %40 %3A %2F %3F %23 %25 %20"
    )


def _address(head: str, at: str, tail: str, *, literal: bool) -> Address:
    dbname, secrets = _check_tail(tail)
    user, colon, password = head.partition(":")
    if not literal:
        user, password = unquote(user), unquote(password)
    if password:
        secrets = (*secrets, password)
    prefix = quote(user, safe="") + (":" + quote(password, safe="") if colon else "") + at
    return Address("postgresql://" + prefix + tail, user or None, dbname, secrets)


def _check_tail(tail: str) -> tuple[str | None, tuple[str, ...]]:
    match = _TAIL.fullmatch(tail)
    assert match is not None  # every part is optional
    hosts, dbname, query = match[1], match[2] or "", match[3] or ""
    if re.search(r"\s", tail) or _BAD_PERCENT.search(tail):
        raise ValueError("has a raw space or percent sign")
    for host in hosts.split(","):
        found = _HOST.fullmatch(host)
        if not found:
            raise ValueError("has a malformed host or port (a port is a number from 1 to 65535)")
        _check_port(found[1])
    if re.search(r"[@/#]", dbname):
        raise ValueError("has a database name with a raw @, / or #")
    secrets = []
    for pair in query.split("&") if query else []:
        key, equals, value = pair.partition("=")
        if not equals or "=" in value or key not in KEYWORDS:
            raise ValueError("has a malformed or unknown option after the '?'")
        if key in SECRET_KEYWORDS:
            secrets.append(unquote(value))
        if key == "port":
            _check_port(value)
    return unquote(dbname) or None, tuple(secrets)


def _check_port(ports: str | None) -> None:
    for port in (ports or "").split(","):
        if port and not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
            raise ValueError("has a port that is not a number from 1 to 65535")


_PAIR = re.compile(
    r"""\s*([^\s=]+)\s*=\s*(?:
        '((?:[^'\\]|\\.)*)'(?=\s|$)                     # quoted
      | ((?:[^\s'\\]|\\.)(?:[^\s\\]|\\.)*|(?=\s|$)))  # bare, or nothing""",
    re.VERBOSE | re.DOTALL,
)


def _parse_pairs(text: str) -> Address:
    values: dict[str, str] = {}
    position, count = 0, 0
    while position < len(text):
        count += 1
        match = _PAIR.match(text, position)
        if match is None:
            raise ValueError(
                f"is malformed at its option {count}: a value with a space or quote is written in single quotes, "
                r"with \' and \\ inside"
            )
        if match[1] not in KEYWORDS:
            raise ValueError(f"has an unknown option in place {count}: a value with a space is written in quotes")
        values[match[1]] = re.sub(r"\\(.)", r"\1", match[2] if match[2] is not None else match[3] or "", flags=re.S)
        position = match.end()
    _check_port(values.get("port"))
    secrets = tuple(values[key] for key in sorted(SECRET_KEYWORDS) if values.get(key))
    return Address(text, values.get("user"), values.get("dbname"), secrets)


_known: set[str] = set()


def remember(address: Address) -> None:
    """From now on `mask` hides this address's secrets wherever they stand, even outside of an address."""
    for secret in address.secrets:
        # A password that is also a common word would blank half of every line, and guards nothing.
        if len(secret) >= 6 and secret not in {address.user, address.dbname, "postgres", "password", "supervisor"}:
            quoted = secret.replace("\\", "\\\\").replace("'", "\\'")
            _known.update({secret, quote(secret, safe=""), quoted, repr(secret)[1:-1], repr(quoted)[1:-1]})


_ANY_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://")
_PORT_ONLY = re.compile(r"\d{0,5}(?=[/?,\s'\")\].;]|$)")
_BARE = re.compile(r"(?<![\w/:@*])([\w.+-]{1,64}):[^\s@/*]+@(?=[\w\[.-])")  # user:password@host without a scheme
_KEYED = re.compile(
    r"""(?P<name>\b(?:password|sslpassword|passwd|pwd|oauth_client_secret|scram_client_key|scram_server_key)\b
        \\*["']? \s* [=:] \s*)
        (?: \\*'(?:[^'\\]|\\.|'(?=[^\s"',;)\]}]))*'?               # quoted: to the closing quote, or to the end
          | \\*"(?:[^"\\]|\\.|"(?=[^\s"',;)\]}]))*"?
          | [^&\r\n]*?(?=\s+(?:KEYWORD)\s*=|&|\s+https?://|[\r\n]|$) )  # raw: to the next keyword, spaces and all
    """.replace("KEYWORD", "|".join(sorted(KEYWORDS))),
    re.VERBOSE | re.IGNORECASE,
)


def mask(text: str) -> str:
    """*text* without passwords: those of URLs, of key=value options, and those of addresses given to `remember`."""
    if "://" in text:
        starts = [match.end() for match in _ANY_URL.finditer(text)]
        pieces, last = [], 0
        for start, limit in zip(starts, [*starts[1:], len(text)], strict=True):
            pieces.append(text[last:start])
            pieces.append(_mask_authority(text[start:limit], text[max(0, start - 40) : start].lower()))
            last = limit
        text = "".join(pieces) + text[last:]
    lowered = text.lower()
    if "passw" in lowered or "pwd" in lowered or "secret" in lowered or "scram_" in lowered:
        text = _KEYED.sub(lambda match: match["name"] + HIDDEN, text)
    if "@" in text:
        text = _BARE.sub(lambda match: f"{match[1]}:{HIDDEN}@", text)
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _mask_authority(rest: str, before: str) -> str:
    """*rest* follows a `scheme://` and ends where the next one does, or with the text."""
    line = re.split(r"[\r\n]", rest, maxsplit=1)[0]
    user, colon, after = line.partition(":")
    if not colon or re.search(r"[/\s]", user) or user.rpartition("@")[2].startswith("["):
        return rest
    if before.endswith(("postgres://", "postgresql://")) or re.search(r"postgres(?:ql)?\+\w+://$", before):
        at = line.rfind("@")  # a raw password may hold anything, so it ends at the last @ of the line
    else:
        word = re.split(r"\s", line, maxsplit=1)[0]
        at = word.rfind("@")
    if at > len(user):
        return user + ":" + HIDDEN + rest[at:]
    if _PORT_ONLY.match(after):
        return rest
    cut = re.search(r"\s", after)  # no host follows: cut off, or the scheme of something else
    return user + ":" + HIDDEN + (after[cut.start() :] if cut else "") + rest[len(line) :]
