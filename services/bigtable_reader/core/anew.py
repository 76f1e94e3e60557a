"""What to do where reading cannot go on: in words that can be followed."""

from typing import Final

ANEW: Final = "Stop every reader of this CHANGE_STREAM_NAME first; then begin anew under another"
"""The cure for what cannot go on: stamps of two names are in no order while both are read."""

ANEW_WITH_ALL_ROWS: Final = f"{ANEW}, with SNAPSHOT=initial, which brings every row, and sweep what is gone after it"
"""Where nothing says any more how far reading had come."""

ANEW_BEHIND_A_HOLE: Final = (
    f"{ANEW} (which skips the changes in between), with SNAPSHOT=initial, which brings every row, and sweep what is "
    "gone after it: a mirror is then whole, a change log keeps a hole"
)
"""Where changes are lost to the stream."""
