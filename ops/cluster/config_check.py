"""``python -m ops.cluster.config_check CONFIG``: refuses a Serve config that can't start.

Serve would accept it, and try for minutes to start what is in it. ``--engines``: this host runs
engines, so that a model in a folder must be here.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

import yaml
from ray.serve.schema import ServeDeploySchema

from deployments.gateway.access.keys_file import read_keys_file
from deployments.settings import SettingsError
from ops.cluster.host_list import HostListError
from ops.cluster.serve_config import ServeConfig, read_serve_config


def check_config(path: Path, *, has_engines: bool) -> None:
    """Raises ``ValueError`` naming what is wrong."""
    config = read_serve_config(path)
    # Its mistakes are ``ValueError``s, too.
    schema = ServeDeploySchema.model_validate(yaml.safe_load(config.text))
    for application in schema.applications:
        _check_import(application.import_path)
    for keys in config.api_keys_files:
        read_keys_file(keys.expanduser())
    if has_engines:
        _check_models(config)


def _check_import(import_path: str) -> None:
    module, _, name = import_path.replace(":", ".").rpartition(".")
    try:
        getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"applications.import_path: {import_path}: {error}") from None


def _check_models(config: ServeConfig) -> None:
    """Of models on the hub their engines tell."""
    for one in config.settings:
        model = one.engine.model
        is_folder = one.gateway.engines is None and model.startswith(("/", "~", "."))
        if is_folder and not (Path(model).expanduser() / "config.json").is_file():
            raise ValueError(f"engine.model: {model} is no folder here with a config.json")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.cluster.config_check", description=__doc__)
    parser.add_argument("config", type=Path, help="the Serve config")
    parser.add_argument("--engines", action="store_true", help="this host runs engines")
    options = parser.parse_args(arguments)
    try:
        check_config(options.config, has_engines=options.engines)
    except (ValueError, HostListError, SettingsError) as error:
        sys.stderr.write(f"{options.config} is not deployed: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
