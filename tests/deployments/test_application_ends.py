from __future__ import annotations

import threading

import pytest
from ray.exceptions import GetTimeoutError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, ServeStatus

from deployments.serve.ending import application_ends

pytestmark = pytest.mark.serve


def status_of(**applications: ApplicationStatus) -> ServeStatus:
    overviews = {
        name: ApplicationStatusOverview(status, "", 0.0, {})
        for name, status in applications.items()
    }
    return ServeStatus(applications=overviews)


@pytest.mark.parametrize("status", ApplicationStatus)
async def test_one_that_is_deleted_ends(status: ApplicationStatus) -> None:
    told = status_of(pomona=status, other=ApplicationStatus.RUNNING)
    assert await application_ends("pomona", lambda: told) == (status is ApplicationStatus.DELETING)


@pytest.mark.parametrize("told", [status_of(), status_of(other=ApplicationStatus.DELETING)])
async def test_one_that_nobody_speaks_of_may_go_on(told: ServeStatus) -> None:
    assert not await application_ends("pomona", lambda: told)


@pytest.mark.parametrize("error", [GetTimeoutError("no"), RayServeException("none there")])
async def test_nor_is_it_known_without_a_controller(error: Exception) -> None:
    def ask() -> ServeStatus:
        raise error

    assert not await application_ends("pomona", ask)


async def test_a_controller_that_does_not_answer_keeps_nobody_waiting() -> None:
    answer = threading.Event()

    def ask() -> ServeStatus:
        answer.wait()
        return status_of(pomona=ApplicationStatus.DELETING)

    try:
        assert not await application_ends("pomona", ask, timeout_s=0.0)
    finally:
        answer.set()
