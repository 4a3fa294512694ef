"""``python -m ops.heartbeat --url https://pomona.example.com --model NAME --listen HOST:PORT``"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from prometheus_client import start_http_server

from ops.heartbeat.heart import Heart
from ops.heartbeat.metrics import HeartbeatMetrics


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.heartbeat", description=__doc__)
    add = parser.add_argument
    add("--url", action="append", required=True, help="of a load balancer; repeat for each")
    add("--model", action="append", required=True, help="as clients call it; repeat for each")
    add("--listen", metavar="HOST:PORT", required=True, help="where Prometheus asks")
    add("--api-key-file", type=Path, help="with one key and nothing else")
    given = parser.parse_args()
    metrics = HeartbeatMetrics()
    host, _, port = given.listen.rpartition(":")
    start_http_server(int(port), host, metrics.registry)
    urls = [url.rstrip("/") for url in given.url]
    asyncio.run(Heart(urls, given.model, metrics, given.api_key_file).run())


if __name__ == "__main__":
    main()
