"""What people ask of an agent in two folders of sources, and what a model does about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.bench.sessions.scripted_model import Answer

REPOSITORY = Path(__file__).resolve().parents[3]
SOURCES: Mapping[str, Path] = {
    "orchard": REPOSITORY / "deployments" / "gateway" / "routing",
    "ledger": REPOSITORY / "backend_metal" / "engine" / "schedule",
}
"""Folders of Python files that each place of work begins with a copy of."""
GUIDE = "# {name}\n\nRun `ls` before you change a file. Keep lines below 100 characters.\n"
SESSIONS = 2
"""In each folder."""
READS = 3
"""Files that a session looks at."""


@dataclass(frozen=True)
class Turn:
    asked: str
    answers: Sequence[Answer]


def session(work: Path, number: int) -> Iterator[Turn]:
    """Turns of one session in the folder ``work``, where others may have been before. The next one
    is to be asked for when the one before has ended."""
    files = sorted(work.glob("*.py"))
    chosen = [files[(number * READS + index) % len(files)] for index in range(READS)]
    yield Turn(
        f"What do {', '.join(path.name for path in chosen)} do? Tell me how they belong together.",
        [
            _bash("wc -l *.py", "Count lines", "I begin with how large the files are."),
            *(_read(path) for path in chosen),
            Answer("They are parts of one whole; the first of them is where to begin reading."),
        ],
    )
    edited = chosen[0]
    first = edited.read_text().splitlines()[0]
    yield Turn(
        f"Say in the first line of {edited.name} that it has been read, {number + 1} times now.",
        [
            Answer(
                "I change the first line alone.",
                "The line is there once, so an edit finds it.",
                "Edit",
                {
                    "file_path": str(edited),
                    "old_string": first,
                    "new_string": f"{first[:60]} (read {number + 1})",
                },
            ),
            _bash(f"head -3 {edited.name}", "Show the first lines", "Let me see what it says."),
            Answer("Done: the first line says so."),
        ],
    )
    yield Turn(
        "Which functions are there in all files?",
        [
            _bash("grep -n 'def ' *.py", "List functions", "One search finds them all."),
            Answer("There they are, by file and line.", "The output says it all."),
        ],
    )


def _read(path: Path) -> Answer:
    return Answer(f"Now {path.name}.", f"{path.name} comes next.", "Read", {"file_path": str(path)})


def _bash(command: str, description: str, thought: str) -> Answer:
    return Answer("", thought, "Bash", {"command": command, "description": description})
