"""Whether a text is JSON that matches a schema, as ``jsonschema`` has it."""

from __future__ import annotations

import json
from datetime import date

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for

from tests.support.backend_metal.schema_outputs.generated import Schema

FORMATS = FormatChecker(("email", "ipv4", "ipv6", "uuid"))
"""Beside ``date``, those that ``jsonschema`` judges by the standards they are of."""


@FORMATS.checks("date", raises=ValueError)
def _is_date(value: object) -> bool:
    """RFC 3339 has a year 0, a leap year, and Python has none."""
    if isinstance(value, str):
        date.fromisoformat(f"2000{value[4:]}" if value.startswith("0000-") else value)
    return True


def problem_of(schema: Schema, text: str) -> str:
    """What is wrong; empty: nothing."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"is no JSON: {error}"
    judge = validator_for(schema, default=Draft202012Validator)
    found = best_match(judge(schema, format_checker=FORMATS).iter_errors(value))
    return "" if found is None else f"does not match at {found.json_path}: {found.message[:200]}"
