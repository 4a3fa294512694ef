"""A load on any server that speaks OpenAI's API, over HTTP: ``run_load``.

A ``Load`` is conversations, one request each or many, that arrive by a Poisson clock or as soon as
others have ended. Each request becomes an ``Answer``, which is checked while others run; a
``Result`` has them all, and what they took.
"""

from ops.bench.serve.answer import Answer, Usage
from ops.bench.serve.conversation import Conversation, Turn
from ops.bench.serve.errors import LoadError
from ops.bench.serve.load import Load
from ops.bench.serve.result import Result, Spread
from ops.bench.serve.run import run_load
from ops.bench.serve.target import SERVERS, Api, Sampling, Server, Target

__all__ = [
    "SERVERS",
    "Answer",
    "Api",
    "Conversation",
    "Load",
    "LoadError",
    "Result",
    "Sampling",
    "Server",
    "Spread",
    "Target",
    "Turn",
    "Usage",
    "run_load",
]
