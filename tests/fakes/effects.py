"""A journal that fakes share: in which order things were done, and a process that dies before one of them."""

from dataclasses import dataclass, field


class CrashError(BaseException):
    """The process is dead: no handler of the code under test may get anything done after it."""


@dataclass
class Effects:
    """What was done, in order. ``crash_before`` is the index of the effect that is never reached."""

    crash_before: int | None = None
    done: list[str] = field(default_factory=list)
    dead: bool = False

    def note(self, effect: str) -> None:
        """Write down an effect that is about to happen; CrashError if the process dies before it."""
        if self.dead or len(self.done) == self.crash_before:
            self.dead = True
            raise CrashError(effect)
        self.done.append(effect)
