"""Where recurrent modules of mlx-lm reach our kernels.

A module runs as it is, on all tokens of a step as though they were one sequence's. What carries
anything from token to token are calls of a depthwise ``Conv1d``, of ``gated_delta_update``, of
``ssm_update`` and of ``recurrent_gla``; they come here, and go to operators that know whose token
is whose. In place of state the module holds nothing: no inputs from before the step, and a
``CarriedState`` to hand on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import local
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from backend_metal.devices.cpu.activations import exp
from backend_metal.recurrent import StateArray
from backend_metal.recurrent.operators import MAX_CONV_KERNEL

_thread = local()


class StateOperators(ABC):
    """The operators on the state of one layer, ``array`` of it."""

    @abstractmethod
    def begins(self, num_tokens: int) -> mx.array:
        """bool ``[num_tokens]``, all of a step: whether a sequence begins with the token."""

    @abstractmethod
    def causal_conv(
        self, array: int, x: mx.array, weight: mx.array, bias: mx.array | None
    ) -> mx.array: ...

    @abstractmethod
    def linear_attention(
        self,
        array: int,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        gates: mx.array,
        betas: mx.array,
        *,
        delta_rule: bool,
        gates_are_rates: bool = False,
    ) -> mx.array: ...


class CarriedState:
    """Stands for the state of a recurrence, which the operators keep."""

    def __init__(self, operators: StateOperators, array: int) -> None:
        self._operators = operators
        self._array = array

    def begins(self, num_tokens: int) -> mx.array:
        """As ``StateOperators`` has it."""
        return self._operators.begins(num_tokens)

    def update(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        gates: mx.array,
        betas: mx.array,
        *,
        delta_rule: bool,
        gates_are_rates: bool = False,
    ) -> mx.array:
        """Of batches of one, but for rates, which no token has of its own."""
        parts = (x.squeeze(0) for x in (q, k, v, gates[None] if gates_are_rates else gates, betas))
        out = self._operators.linear_attention(
            self._array, *parts, delta_rule=delta_rule, gates_are_rates=gates_are_rates
        )
        return out[None]


class PackedStates:
    """A recurrent module's cache while it runs on a whole step; mlx-lm's ``ArraysCache`` to it."""

    lengths = None

    def __init__(self, arrays: Sequence[StateArray], operators: StateOperators) -> None:
        self._arrays = arrays
        self._operators = operators
        self._num_convs = 0

    def __getitem__(self, array: int) -> mx.array | CarriedState:
        spec = self._arrays[array]
        if spec.is_inputs:
            return mx.zeros((1, 0, spec.shape[1]), spec.dtype)
        return CarriedState(self._operators, array)

    def __setitem__(self, array: int, value: Any) -> None:
        """The operators have kept it."""

    def __iter__(self) -> Iterator[mx.array | CarriedState]:
        return (self[array] for array in range(len(self._arrays)))

    def advance(self, num_tokens: int) -> None:
        """Positions are not state."""

    def convolve(self, x: mx.array, weight: mx.array, bias: mx.array | None) -> mx.array:
        """Modules keep the inputs of their convolutions first, in the order that they call them."""
        array = self._num_convs
        self._num_convs += 1
        return self._operators.causal_conv(array, x.squeeze(0), weight, bias)[None]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within it, in this thread, convolutions come here."""
        _thread.states = self
        try:
            yield
        finally:
            _thread.states = None


def packed_states() -> PackedStates | None:
    """Those in use in this thread."""
    states: PackedStates | None = getattr(_thread, "states", None)
    return states


def take_taps(conv: nn.Module) -> None:
    """What the operator is given of a convolution, as its ``_taps`` and ``_bias``."""
    conv._taps = mx.contiguous(_float(conv.weight.squeeze(2).T))
    conv._bias = _float(conv.bias) if "bias" in conv else None
    mx.eval(conv._taps, conv._bias)


class RecordingOperators(StateOperators):
    """Learns which state is updated how; nothing is computed."""

    def __init__(self) -> None:
        self.recorded: dict[int, StateArray] = {}

    def begins(self, num_tokens: int) -> mx.array:
        return mx.zeros(num_tokens, mx.bool_)

    def causal_conv(
        self, array: int, x: mx.array, weight: mx.array, bias: mx.array | None
    ) -> mx.array:
        self.recorded[array] = StateArray((weight.shape[0] - 1, x.shape[1]), x.dtype)
        return mx.zeros_like(x)

    def linear_attention(
        self,
        array: int,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        gates: mx.array,
        betas: mx.array,
        *,
        delta_rule: bool,
        gates_are_rates: bool = False,
    ) -> mx.array:
        self.recorded[array] = StateArray((*v.shape[1:], k.shape[2]), mx.float32)
        return mx.zeros_like(v)


class _PackedConv:
    """Mixed into a convolution's class, so that the parameter tree stays as it is."""

    _taps: mx.array
    _bias: mx.array | None

    def __call__(self, x: mx.array) -> mx.array:
        states = packed_states()
        if states is None:
            module: Any = super()
            out: mx.array = module.__call__(x)
            return out
        return states.convolve(x, self._taps, self._bias)


class _GatedDeltaSeam:
    """Stands where a module calls ``gated_delta_update``; other states never notice it."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __call__(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        a: mx.array,
        b: mx.array,
        A_log: mx.array,  # noqa: N803 (mlx-lm's name)
        dt_bias: mx.array,
        state: Any = None,
        mask: mx.array | None = None,
        *,
        lower_bound: float | None = None,
        allow_neg_eigval: bool = False,
        **options: Any,
    ) -> tuple[mx.array, Any]:
        if not isinstance(state, CarriedState):
            out: tuple[mx.array, Any] = self._original(
                q,
                k,
                v,
                a,
                b,
                A_log,
                dt_bias,
                state,
                mask,
                lower_bound=lower_bound,
                allow_neg_eigval=allow_neg_eigval,
                **options,
            )
            return out
        if lower_bound is None:
            gates = exp(_log_decay(A_log) * _softplus(a, dt_bias))
        else:
            shifted = _float(a) + _float(dt_bias)
            gates = exp(lower_bound * mx.sigmoid(mx.exp(_float(A_log)) * shifted))
        betas = mx.sigmoid(_float(b)) * (2.0 if allow_neg_eigval else 1.0)
        return state.update(q, k, v, gates, betas, delta_rule=True), state


class _SSMSeam:
    """Stands where a module calls ``ssm_update``."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __call__(
        self,
        hidden_states: mx.array,
        A_log: mx.array,  # noqa: N803 (mlx-lm's names)
        B: mx.array,  # noqa: N803
        C: mx.array,  # noqa: N803
        D: mx.array,  # noqa: N803
        dt: mx.array,
        dt_bias: mx.array,
        state: Any = None,
        time_step_limit: tuple[float, float] = (0.001, 100.0),
        mask: mx.array | None = None,
        lengths: mx.array | None = None,
    ) -> tuple[mx.array, Any]:
        if not isinstance(state, CarriedState):
            out: tuple[mx.array, Any] = self._original(
                hidden_states, A_log, B, C, D, dt, dt_bias, state, time_step_limit, mask, lengths
            )
            return out
        steps = mx.clip(_softplus(dt, dt_bias), *time_step_limit)
        gates = exp(_log_decay(A_log) * steps)
        y = state.update(C, B, hidden_states, gates, steps, delta_rule=False)
        return y + hidden_states * D[:, None], state


class _GLASeam:
    """Stands where a module calls ``recurrent_gla``, whose decay is one constant a head."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __call__(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        g: mx.array,
        scale: float,
        h: Any = None,
        **options: Any,
    ) -> tuple[mx.array, Any]:
        """``[1, num_heads, num_tokens, head_dim]`` each, and so the result."""
        if not isinstance(h, CarriedState):
            out: tuple[mx.array, Any] = self._original(q, k, v, g=g, scale=scale, h=h, **options)
            return out
        q, k, v = (x.swapaxes(1, 2) for x in (q * scale, k, v))
        gates = mx.broadcast_to(mx.exp(_float(g)), v.shape[:3])
        y = h.update(q, k, v, gates, mx.ones_like(gates), delta_rule=False)
        return y.swapaxes(1, 2), h


SEAMS = {
    "gated_delta_update": _GatedDeltaSeam,
    "ssm_update": _SSMSeam,
    "recurrent_gla": _GLASeam,
}


def reach_kernels(module: nn.Module, num_arrays: int) -> bool:
    """Have a recurrent module call the operators when its cache is ``PackedStates``; whether all
    its ``num_arrays`` of state are theirs then. ``reach_kernels``, where it has that, makes ready
    what it needs for those that it updates itself, and says how many. Idempotent."""
    convs = [part for part in module.modules() if _fits(part)]
    for conv in convs:
        if not isinstance(conv, _PackedConv):
            conv.__class__ = _packed_conv_class(type(conv))  # type: ignore[arg-type]
            take_taps(conv)
    reach_own: Callable[[], int] = getattr(module, "reach_kernels", int)
    return len(convs) + reach_own() + _catch_recurrences(module) == num_arrays


def _fits(part: nn.Module) -> bool:
    """Whether it is a convolution as the operator has it."""
    if not isinstance(part, nn.Conv1d):
        return False
    channels, kernel, per_group = part.weight.shape
    is_plain = (part.stride, part.padding, part.dilation) == (1, 0, 1)
    return (
        is_plain and per_group == 1 and part.groups == channels and 2 <= kernel <= MAX_CONV_KERNEL
    )


def _catch_recurrences(module: nn.Module) -> int:
    """How many the files know that define the module's class: one, or none."""
    calls = (cls.__dict__.get("__call__") for cls in type(module).__mro__)
    namespaces = {id(space): space for call in calls if (space := getattr(call, "__globals__", {}))}
    found = 0
    for namespace in namespaces.values():
        for name, seam in SEAMS.items():
            original = namespace.get(name)
            if original is None:
                continue
            found += 1
            if not isinstance(original, seam):
                namespace[name] = seam(original)
    return found


@cache
def _packed_conv_class(cls: type[nn.Module]) -> type[nn.Module]:
    return type(cls.__name__, (_PackedConv, cls), {})


def _float(x: mx.array) -> mx.array:
    return x.astype(mx.float32)


def _softplus(x: mx.array, bias: mx.array) -> mx.array:
    return mx.logaddexp(_float(x) + _float(bias), 0.0)


def _log_decay(A_log: mx.array) -> mx.array:  # noqa: N803
    return -mx.exp(_float(A_log))
