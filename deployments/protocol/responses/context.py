"""What a request refers to: the items of the response before it, and items that it names by id.

The gateway, which can look them up, sends them to the replica behind the client's own body.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from deployments.http.errors import ApiError
from deployments.protocol.crowded_body import is_crowded
from deployments.protocol.json_body import too_many_values
from deployments.protocol.responses.items import InputItem, ItemReference, parse_item
from deployments.protocol.responses.request import ResponsesRequest
from deployments.protocol.strict import RefusedError


class UnresolvedError(ApiError):
    """The request refers to what has not been looked up. As it stands it is what a client is told
    where nothing is kept."""

    def __init__(self, asked: ResponsesRequest, param: str) -> None:
        super().__init__(
            400,
            f"{param} is not supported: no response is kept here (responses.max_bytes). Send the "
            "items themselves, as clients do that are told store: false.",
            param=param,
        )
        self.asked = asked


def check_resolved(asked: ResponsesRequest) -> None:
    """Raises ``UnresolvedError``."""
    if asked.previous_response_id is not None:
        raise UnresolvedError(asked, "previous_response_id")
    if param := next(iter(asked.item_ids), None):
        raise UnresolvedError(asked, param)


@dataclass(frozen=True)
class Context:
    previous: tuple[InputItem, ...] = ()
    named: Mapping[str, InputItem] = field(default_factory=dict)
    """By id."""

    @staticmethod
    def encode(previous: Iterable[bytes], named: Mapping[str, bytes]) -> bytes:
        """Of items as JSON."""
        members = (json.dumps(key).encode() + b":" + item for key, item in named.items())
        return b'{"previous":[%b],"named":{%b}}' % (b",".join(previous), b",".join(members))

    @classmethod
    def decode(cls, encoded: bytes) -> Context:
        """Raises ``ApiError`` 400 for what no model can go on with, such as a call that was cut
        short, and for as many values as no body may have."""
        if is_crowded(encoded):
            raise too_many_values("What the request refers to")
        told = json.loads(encoded)
        previous = enumerate(told["previous"])
        return cls(
            tuple(_item(one, "previous_response_id", f"[{i}]") for i, one in previous),
            {key: _item(one, "input", f"[{key}]") for key, one in told["named"].items()},
        )


def _item(value: object, param: str, where: str) -> InputItem:
    try:
        item = parse_item(value, where)
    except RefusedError as error:
        message = f"{param} names an item that nothing can go on from: {error.where} {error}."
        raise ApiError(400, message, param=param) from error
    assert not isinstance(item, ItemReference)
    return item
