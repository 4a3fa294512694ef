"""What each client does: one turn with a tool, whose result is in the answer."""

import json
import os

URL = os.environ["POMONA_URL"]
"""With /v1."""
KEY = os.environ["POMONA_KEY"]
MODEL = os.environ["POMONA_MODEL"]
DIRECTIVE = "CALL read_file path=notes.txt"
NOTES = "Apples ripen in autumn."
num_reads = 0


def read_file(path: str) -> str:
    """Read a file.

    Args:
        path: Where it is.
    """
    global num_reads
    num_reads += 1
    assert path == "notes.txt", path
    return NOTES


def tell(answer: str, **more: object) -> None:
    """For the test that started this."""
    print(json.dumps({"answer": answer, "num_reads": num_reads, **more}))
