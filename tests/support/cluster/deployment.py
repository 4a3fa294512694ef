"""What is deployed: ``configs/cluster.yaml`` with the demo model, told how to call and to think."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "cluster.yaml"
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
MAX_NUM_SEQS = 200
"""Of one engine: none waits for another one's end, wherever it goes on."""
TOKENS_PER_STREAM = 512
ENGINE = {
    "model": "demo",
    "served_model_name": "demo",
    "chat_template": str(CHAT_TEMPLATE),
    "max_num_seqs": MAX_NUM_SEQS,
    "num_kv_blocks": MAX_NUM_SEQS * TOKENS_PER_STREAM // 16,
}
# So that a lost host is noticed within seconds.
GATEWAY = {"keep_alive_interval_s": 2, "stall_timeout_s": 6}
# As long as streams take; a replica whose host was lost for good stays so long.
ENGINE_DRAIN_S = 120
NO_CHANGE: Mapping[str, Any] = {}


def configuration(
    *, engine: Mapping[str, Any] = NO_CHANGE, gateway: Mapping[str, Any] = NO_CHANGE
) -> dict[str, Any]:
    """A Serve config, with changes to it."""
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    engines, gateways = (application["args"] for application in config["applications"])
    engines["engine"] = {**ENGINE, **engine}
    # The engines send what the gateways wait for.
    engines["gateway"] = {"keep_alive_interval_s": GATEWAY["keep_alive_interval_s"]}
    engines["replica"] = {"drain_timeout_s": ENGINE_DRAIN_S}
    gateways["gateway"] |= {**GATEWAY, **gateway}
    return config
