"""The check that an engine makes of its attention kernels before it serves."""

from backend_metal.attention.self_check import SelfCheckError, check_path

__all__ = ["SelfCheckError", "check_path"]
