"""What clients of a model that writes at random ask for: a form, and a tool. Neither bounds its
texts, as few do."""

from enum import Enum
from typing import Literal

from pydantic import BaseModel, Field

QUESTION = "Which fruit is ripe?"


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Origin(BaseModel):
    orchard: str
    row: int | None


class Fruit(BaseModel):
    """A fruit, and where it is from."""

    name: str = Field(description="What it is called.")
    kind: Literal["apple", "pear", "quince"]
    size: Size
    grams: int
    price: float
    is_ripe: bool
    origin: Origin
    notes: list[str]


class Basket(BaseModel):
    """Several fruits."""

    fruits: list[Fruit]


def pick(name: str, kind: Literal["apple", "pear"], count: int, ripe_only: bool) -> str:
    """Pick fruits.

    Args:
        name: What they are called.
        kind: What they are.
        count: How many.
        ripe_only: Whether to leave the others.
    """
    return f"Picked {count}."


def weigh(grams: list[int], note: str = "") -> str:
    """Weigh fruits.

    Args:
        grams: Of each.
        note: To remember.
    """
    return f"{sum(grams)} g."
