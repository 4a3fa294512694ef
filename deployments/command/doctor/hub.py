"""The Hugging Face cache and the token that gated models ask for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deployments.command.doctor.finding import Finding, ok, warning, wrong


@dataclass(frozen=True)
class Hub:
    """Of Hugging Face's client, as the environment has it."""

    cache: Path
    may_write: bool
    has_token: bool
    is_offline: bool


def check_hub(hub: Hub) -> list[Finding]:
    found = [ok("Hub cache", f"{hub.cache} can be written to")]
    if not hub.may_write:
        remedy = "give it to the user who serves, or set HF_HUB_CACHE to another folder"
        found = [wrong("Hub cache", f"{hub.cache} can't be written to", remedy)]
    if hub.is_offline:
        told = "offline by HF_HUB_OFFLINE: only models in the cache can be served"
        return [*found, warning("Hub", told, "unset it to download models")]
    token = "there is a token" if hub.has_token else "no token, which gated models alone ask for"
    return [*found, ok("Hub", token)]
