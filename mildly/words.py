"""Numbers and names in sentences."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def listed(names: tuple[str, ...], most: int = 8) -> str:
    """Names of columns, long lists of them shortened."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])}, ... {names[-1]} ({len(names)} columns)"
