from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from deployments.fleet.directory import Replica
from deployments.gateway.access.api_keys import ApiKey, KeyRing
from deployments.observe.logs import log_request
from deployments.protocol import parse_body
from tests.support.secret_guard import guarded_logs

logger = logging.getLogger("deployments.somewhere")
PROMPT = "a question of nobody else's concern"


@pytest.fixture(autouse=True)
def no_secret_is_logged() -> None:
    """Here they are logged on purpose."""


def log_as_text(secret: str) -> None:
    logger.info("this is %s.", secret)


def log_as_member(secret: str) -> None:
    log_request(logger, "POST", key=secret)


def log_as_traceback(secret: str) -> None:
    try:
        raise ValueError(secret)
    except ValueError:
        logging.getLogger("uvicorn.error").exception("a fault")


@pytest.mark.parametrize("log", [log_as_text, log_as_member, log_as_traceback])
@pytest.mark.parametrize(
    "secret", ["a-key-that-holds", "a-key-that-is-wrong", "what-a-replica-asks-for", PROMPT]
)
async def test_each_secret_is_found_wherever_a_line_has_it(
    log: Callable[[str], None], secret: str
) -> None:
    with guarded_logs() as guard:
        ring = KeyRing([ApiKey.of("one", "a-key-that-holds")])
        assert ring.find("a-key-that-is-wrong") is None
        Replica("r", "n", "http://r", "m", 1, "what-a-replica-asks-for")
        await parse_body("/v1/completions", f'{{"model": "m", "prompt": "{PROMPT}"}}'.encode())
        logger.info("key=one")
        assert guard.leaks() == []
        log(secret)
        [line] = guard.leaks()
    assert secret in line


def test_a_logger_that_a_server_has_silenced_is_heard() -> None:
    silenced = logging.getLogger("uvicorn.error")
    level = silenced.level
    silenced.setLevel(logging.CRITICAL)
    try:
        with guarded_logs() as guard:
            silenced.error("Bearer x")
        assert len(guard.leaks()) == 1
        assert silenced.level == logging.CRITICAL
    finally:
        silenced.setLevel(level)


def test_no_line_quotes_an_authorization() -> None:
    with guarded_logs() as guard:
        logger.warning("got %s", {"authorization": "Bearer x"})
        assert len(guard.leaks()) == 1
