"""Before any page: is this request for us, and who asks?

    loopback, no token     anybody on this machine; the Host header must name it (DNS rebinding)
    token                  Authorization: Bearer, or the login form, which leaves a signed cookie
    user and password      basic authentication; where a token is set too, either will do
    guarded elsewhere      the application around a mounted dashboard has seen to it

The cookie says until when it is good and is signed with a key made from the secrets: it needs no memory, holds on
every process that serves, and ends when a secret is changed.

Always true: secrets are compared in constant time; a refusal says nothing of why beyond "not known".

Elsewhere: forged forms (csrf.py).
"""

import base64
import binascii
import hashlib
import hmac
import time
from typing import Final

from starlette.requests import Request

from supervisor.settings import Settings, is_loopback

COOKIE: Final = "supervisor_session"
SESSION_S: Final = 12 * 3600


class Guard:
    """Decides about requests, by the settings."""

    def __init__(self, settings: Settings, database_url: str, *, guarded_elsewhere: bool) -> None:
        self._token = _word(settings.dashboard_token)
        self._user = settings.dashboard_user
        self._password = _word(settings.dashboard_password)
        self._hosts = {host.lower() for host in (*settings.dashboard_allowed_hosts, settings.dashboard_host)}
        self._elsewhere = guarded_elsewhere
        # From what is secret here, so that every process that serves has the same, and a new start keeps it.
        secrets = ("pg-supervisor dashboard", self._token or "", self._user or "", self._password or "", database_url)
        self.key = hashlib.sha256("\0".join(secrets).encode()).digest()

    @property
    def open(self) -> bool:
        """Whether nobody is asked who they are."""
        return self._elsewhere or not (self._token or self._password)

    @property
    def has_login(self) -> bool:
        """Whether there is a token for the login page."""
        return self._token is not None and not self._elsewhere

    @property
    def challenge(self) -> str:
        """What a refused request is told to send."""
        return 'Basic realm="supervisor", charset="UTF-8"' if self._password else 'Bearer realm="supervisor"'

    def knows_host(self, request: Request) -> bool:
        """Whether the Host header may stand there. Only asked where anybody may look: a name of somebody else's
        that leads to this machine would else open it to their scripts."""
        if not self.open or self._elsewhere:
            return True
        name = request.headers.get("host", "")
        name = name.partition("]")[0] + "]" if name.startswith("[") else name.partition(":")[0]
        return name.lower() in self._hosts or is_loopback(name)

    def knows(self, request: Request) -> bool:
        """Whether whoever asks may look."""
        return self.open or self.by_header(request) or self._by_cookie(request)

    def by_header(self, request: Request) -> bool:
        """Whether the request itself carries a secret that fits."""
        scheme, _, rest = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.is_token(rest.strip())
        return scheme.lower() == "basic" and self._is_user(rest.strip())

    def by_bearer(self, request: Request) -> bool:
        """Whether it is a program's: browsers send no such header by themselves, so it cannot be forged by a form."""
        return request.headers.get("authorization", "").lower().startswith("bearer ") and self.by_header(request)

    def is_token(self, word: str) -> bool:
        """Whether *word* is the token."""
        return self._token is not None and _same(word, self._token)

    def _is_user(self, encoded: str) -> bool:
        if self._user is None or self._password is None:
            return False
        try:
            user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return False
        known = _same(user, self._user)
        return _same(password, self._password) and known

    # ---- the cookie

    def new_cookie(self) -> str:
        """A cookie that is good for SESSION_S seconds."""
        until = str(int(time.time()) + SESSION_S)
        return f"{until}.{self._sign(until)}"

    def _by_cookie(self, request: Request) -> bool:
        until, _, signature = request.cookies.get(COOKIE, "").partition(".")
        if not (self.has_login and until.isascii() and until.isdigit() and len(until) < 20):
            return False
        return hmac.compare_digest(signature.encode(), self._sign(until).encode()) and int(until) > time.time()

    def _sign(self, until: str) -> str:
        return hmac.new(self.key, f"session {until}".encode(), hashlib.sha256).hexdigest()


def _same(given: str, right: str) -> bool:
    """Whether two words are equal, in a time that does not tell how much of them is."""
    return hmac.compare_digest(hashlib.sha256(given.encode()).digest(), hashlib.sha256(right.encode()).digest())


def _word(secret: object) -> str | None:
    value = getattr(secret, "get_secret_value", None)
    return str(value()) if value is not None else None
