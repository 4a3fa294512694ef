from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

if "CI" not in os.environ:
    pytest.importorskip("matplotlib", reason="pip install '.[test]'")

from matplotlib.image import imread

from ops.grafana.__main__ import DASHBOARDS
from ops.grafana.render import Prometheus, ask_all, draw
from tests.support.ops.balancer_harness import needs
from tests.support.ops.live_cluster import cluster, load, prometheus

pytestmark = [pytest.mark.serve, needs("prometheus"), needs("haproxy")]
LOAD_S = 8.0
LATEST = "pomona:slow_first_tokens:ratio_rate1h"
"""A recording rule over what only a gateway that has streamed can tell: the last to have data."""


async def until_it_has(url: str, series: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        while True:
            try:
                answer = await http.get("/api/v1/query", params={"query": series})
                if answer.status_code == 200 and answer.json()["data"]["result"]:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.2)


@pytest.mark.exhaustive
async def test_every_panel_of_every_dashboard_shows_a_live_cluster(tmp_path: Path) -> None:
    async with cluster(tmp_path / "model") as running:
        with prometheus(tmp_path, running) as url:
            async with asyncio.timeout(300):
                await asyncio.gather(
                    load(running, seconds=LOAD_S, at_once=8), until_it_has(url, LATEST)
                )
                await load(running, seconds=LOAD_S / 2, at_once=8)
            end = time.time()
            for dashboard in DASHBOARDS:
                answers = await asyncio.to_thread(
                    ask_all, dashboard, Prometheus(url, rate_interval="5s"), end
                )
                for panel, found in answers.items():
                    for query, series in zip(panel.queries, found, strict=True):
                        assert series, f"{dashboard.title}, {panel.title}: {query.expr}"
                        finite = [np.isfinite(one.values).any() for one in series]
                        assert any(finite), f"{dashboard.title}, {panel.title}: {query.expr}"
                image = tmp_path / f"{dashboard.uid}.png"
                draw(dashboard, answers, image)
                pixels = imread(image)
                assert pixels.shape[1] > 600
                assert pixels.std() > 0.05
