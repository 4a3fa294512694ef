"""``python -m deployments.launch.driver CONFIG BEGAN [--verbose]``: starts Ray and Serve, deploys.

A process of its own, since it dies with Ray. It tells the launcher by events what it does. What it
imports first is little, since Ray starts meanwhile.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import time
from importlib import import_module
from pathlib import Path
from threading import Thread

import yaml

from deployments.launch.events import LAUNCHER
from deployments.launch.phases import DeployError, Phases, RayError
from deployments.observe.events import event_handler

logger = logging.getLogger(LAUNCHER)


def main(path: str, began: float, *, verbose: bool) -> int:
    logger.handlers = [*event_handler(LAUNCHER)]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    phases = Phases(began)
    try:
        phases.begin("Ray")
        from deployments.launch import ray_node

        # Ray's start waits for other processes.
        Thread(target=import_module, args=("deployments.launch.deploy",), daemon=True).start()
        try:
            ray_node.start_ray(verbose=verbose)
        except Exception as error:
            raise RayError(f"Ray did not start: {error}") from error
        phases.begin("Serve's controller")
        from deployments.launch.deploy import deploy, follow

        config = yaml.safe_load(Path(path).read_text())
        deploy(config, phases, is_own=ray_node.starts_own())
        phases.begin("engines and gateways")
        follow(config, phases)
        if ray_node.starts_own():
            _show_where_to_look(ray_node.start_dashboard())
        while True:
            time.sleep(60)
    except DeployError as error:
        event = "Ray failed" if isinstance(error, RayError) else "failed"
        logger.error("%s", error, extra={"event": event})
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        _shut_down()


def _show_where_to_look(dashboard_url: str) -> None:
    """The line that asks Serve from another terminal, whose environment lacks what Ray needs."""
    serve = Path(sys.executable).with_name("serve")
    mode = os.environ.get("RAY_AUTH_MODE", "")
    command = f"{shlex.quote(str(serve))} status --address {dashboard_url}"
    logger.info("State: RAY_AUTH_MODE=%s %s", shlex.quote(mode), command)


def _shut_down() -> None:
    import ray

    # Serve would start a Ray to shut down.
    if ray.is_initialized():
        from ray import serve

        serve.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), verbose="--verbose" in sys.argv))
