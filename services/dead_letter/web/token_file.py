"""The tokens of a file, which may change while the service runs: one is added, one is taken back."""

import threading
from collections.abc import Sequence
from pathlib import Path

import structlog

from services.dead_letter.web.callers import Token, read_tokens
from shared.contracts.errors import MisconfiguredError


class TokenFile:
    """The tokens as the file has them now; it is read again when it is another one, or has changed.

    One that cannot be read, or holds a mistake, changes nothing but the log: a line half written locks no caller out,
    and it lets no caller in. MisconfiguredError if it is so from the beginning.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._seen = self._stat()
        self._tokens = self._read()

    def __call__(self) -> Sequence[Token]:
        """Return the tokens."""
        with self._lock:
            stat = self._stat()
            if stat != self._seen:
                self._seen = stat
                self._read_again()
            return self._tokens

    def _stat(self) -> tuple[int, ...]:
        """Return what is different of another file, or of this one written again; empty where there is none."""
        try:
            found = self._file.stat()
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _read(self) -> Sequence[Token]:
        try:
            text = self._file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise MisconfiguredError("token-file-unreadable", f"API_TOKEN_FILE cannot be read: {error}") from error
        return read_tokens(text, f"API_TOKEN_FILE={self._file}")

    def _read_again(self) -> None:
        log = structlog.get_logger()
        try:
            self._tokens = self._read()
        except MisconfiguredError as error:
            log.error("tokens_not_read", error=str(error), effect="the tokens stay as they were")  # noqa: TRY400  the message is the whole story
        else:
            log.info("tokens_read", names=[token.name for token in self._tokens])
