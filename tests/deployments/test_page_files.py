"""The page's files: small, whole by themselves, and under a policy that lets nothing else in."""

from __future__ import annotations

import re

import pytest

from deployments.gateway.page.routes import INDEX, POLICY, page_files
from tests.support.deployments.gateway_harness import fake_replica, gateway

MOST_BYTES = 150_000
MOST_REQUESTS = 32
FILES = page_files()
MARKUP = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|ContextualFragment"
PROGRAMS = r"\beval\(|new Function|setTimeout\([\"']|javascript:|importScripts|new Worker"


def text_of(name: str) -> str:
    return FILES[name].content.decode()


def test_the_budget() -> None:
    assert sum(len(file.content) for file in FILES.values()) < MOST_BYTES
    assert len(FILES) <= MOST_REQUESTS


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_no_text_becomes_markup_or_a_program(name: str) -> None:
    assert re.findall(f"{MARKUP}|{PROGRAMS}", text_of(name)) == []


def test_the_document_has_nothing_inline_and_names_every_module() -> None:
    document = text_of(INDEX)
    assert re.findall(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", document) == []
    named = set(re.findall(r'(?:href|src)="page/([^"]+)"', document))
    assert named == FILES.keys() - {INDEX}
    imported = {
        one
        for name in FILES
        for one in re.findall(r'from "\./([\w.]+)"', text_of(name))
        if name.endswith(".js")
    }
    assert imported | {"app.js"} == {name for name in FILES if name.endswith(".js")}


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_another_server(name: str) -> None:
    known = r"http://www\.w3\.org/2000/svg|https://opencode\.ai/config\.json"
    foreign = re.sub(known, "", text_of(name))
    assert re.findall(r"https?://[\w]", foreign) == []


@pytest.mark.parametrize("keys", [[], ["key"]])
async def test_files_are_served_to_anybody_with_their_headers(keys: list[str]) -> None:
    async with fake_replica() as one, gateway([one], keys=keys) as running:
        for name, file in FILES.items():
            path = "/" if name == INDEX else f"/page/{name}"
            response = await running.client.get(path)
            assert (response.status_code, response.content) == (200, file.content)
            assert response.headers["content-type"] == file.media_type
            assert response.headers["content-security-policy"] == POLICY
            assert response.headers["x-content-type-options"] == "nosniff"
            known = {"If-None-Match": response.headers["etag"]}
            again = await running.client.get(path, headers=known)
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["content-security-policy"] == POLICY
        for path in ("/page/", "/page/../settings.py", "/page/%2e%2e/app.py", "/page/none.js"):
            assert (await running.client.get(path)).status_code in (401, 404)
        assert (await running.client.post("/page/app.js")).status_code == (401 if keys else 405)
