"""Ask a service's health page again and again from a thread, and keep how long it was silent."""

import contextlib
import threading
import time
from types import TracebackType
from typing import Self
from urllib.error import HTTPError
from urllib.request import urlopen

EVERY_S = 0.1


class HealthWatch:
    """Watches while its `with` block runs.

    Attributes:
        answers: Pages that came.
        longest_silence_s: The longest time between two answers, and from the first request to the first answer.
        slowest_s: The longest that one request took, answered or not.
    """

    def __init__(self, port: int, path: str = "/livez", *, patience_s: float = 10.0) -> None:
        self._url = f"http://127.0.0.1:{port}{path}"
        self._patience_s = patience_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health watch", daemon=True)
        self._last = time.monotonic()
        self.answers = 0
        self.bad: list[int] = []
        self.longest_silence_s = 0.0
        self.slowest_s = 0.0

    def __enter__(self) -> Self:
        self._last = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._thread.join(self._patience_s + 1)

    def _run(self) -> None:
        while not self._over.is_set():
            asked = time.monotonic()
            with contextlib.suppress(OSError):  # no answer: the silence goes on
                try:
                    with urlopen(self._url, timeout=self._patience_s) as answer:
                        answer.read()
                except HTTPError as error:
                    self.bad.append(error.code)
                    error.close()
                now = time.monotonic()
                self.longest_silence_s = max(self.longest_silence_s, now - self._last)
                self._last = now
                self.answers += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - asked)
            self._over.wait(EVERY_S)
        self.longest_silence_s = max(self.longest_silence_s, time.monotonic() - self._last)
