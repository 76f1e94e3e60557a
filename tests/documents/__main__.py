"""Write the documents that are made from code: `make docs`."""

import sys

from tests.documents.made import DOCS, DOCUMENTS


def main() -> int:
    """Write each document whose text has changed."""
    for file, text in DOCUMENTS.items():
        path = DOCS / file
        made = text()
        if not path.exists() or path.read_text(encoding="utf-8") != made:
            path.write_text(made, encoding="utf-8")
            print(f"written: {path.resolve().relative_to(DOCS.parent)}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
