"""What is deployed: the demo model behind two gateways."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ops.bench.cluster.hosts import GATEWAY_PORT, Hosts, environment

MAX_NUM_SEQS = 128
"""Of one engine: two of three must hold all streams."""
TOKENS_PER_STREAM = 512
NO_CHANGE: Mapping[str, Any] = {}


def application(
    *, engine: Mapping[str, Any] = NO_CHANGE, gateway: Mapping[str, Any] = NO_CHANGE
) -> dict[str, Any]:
    """A Serve config, with changes to it."""
    return {
        "proxy_location": "Disabled",
        "logging_config": {"enable_access_log": False},
        "applications": [
            {
                "name": "pomona",
                "route_prefix": "/",
                "import_path": "deployments.app:build_app",
                "args": {
                    "engine": {
                        "model": "demo",
                        "served_model_name": "demo",
                        "max_num_seqs": MAX_NUM_SEQS,
                        "num_kv_blocks": MAX_NUM_SEQS * TOKENS_PER_STREAM // 16,
                        **engine,
                    },
                    "gateway": {
                        "port": GATEWAY_PORT,
                        "api_keys_file": "~/.pomona/api_keys",
                        "keep_alive_interval_s": 2,
                        "stall_timeout_s": 6,
                        "resume_timeout_s": 60,
                        **gateway,
                    },
                    "replica": {"num_replicas": 3},
                },
                "deployments": [
                    {
                        "name": "Gateway",
                        "num_replicas": 2,
                        "ray_actor_options": {"num_cpus": 0, "resources": {"gateway": 1}},
                    }
                ],
            }
        ],
    }


def deploy(hosts: Hosts, config: Mapping[str, Any]) -> None:
    path = hosts.head.home / "config.yaml"
    path.write_text(yaml.safe_dump(dict(config)))
    serve = str(Path(sys.executable).with_name("serve"))
    hosts.head.run([serve, "deploy", str(path)], environment(hosts, hosts.head))
