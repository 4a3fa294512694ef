"""A Mac's GPU, by the kernels of ``shaders/``."""

from __future__ import annotations

from backend_metal.devices.extension import Gpu


class Metal(Gpu):
    name = attention = "metal"
    repeats_graphs = True
