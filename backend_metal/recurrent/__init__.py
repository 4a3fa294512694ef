"""Recurrent state: what layers without keys and values keep of a sequence, and who owns it.

A ``RecurrentSpec`` (``specs.py``) says which arrays one layer keeps for one sequence; the
``StatePool`` (``state_pool.py``) owns them for all slots and layers; a step says by its
``StateMetadata`` (``metadata.py``) from which slot each sequence reads and to which it writes.
``operators.py`` has what updates state in place, by kernels that ``choose_path`` has found right on
this machine. Start reading at ``metadata.py``: prefix hits,
forks and snapshots are nothing but slots.
"""

from backend_metal.recurrent.metadata import StateMetadata
from backend_metal.recurrent.self_check import choose_path
from backend_metal.recurrent.specs import RecurrentSpec, StateArray
from backend_metal.recurrent.state_pool import StatePool, StepStates

__all__ = [
    "RecurrentSpec",
    "StateArray",
    "StateMetadata",
    "StatePool",
    "StepStates",
    "choose_path",
]
