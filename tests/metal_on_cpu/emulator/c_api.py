"""The structures of runtime/metal_emulator.h for ctypes."""

import ctypes

MAX_BUFFERS = 31
ERROR_BYTES = 2048


class BoundBuffer(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("copy", ctypes.c_int32),
        ("track", ctypes.c_int32),
    )


class ConstantValue(ctypes.Structure):
    _fields_ = (("index", ctypes.c_int32), ("bits", ctypes.c_uint64))


class Dispatch(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint32 * 3),
        ("threadgroup", ctypes.c_uint32 * 3),
        ("grid_is_threads", ctypes.c_int32),
        ("buffers", BoundBuffer * MAX_BUFFERS),
        ("threadgroup_memory", ctypes.c_size_t * MAX_BUFFERS),
        ("constants", ctypes.POINTER(ConstantValue)),
        ("num_constants", ctypes.c_int32),
        ("seed", ctypes.c_uint32),
        ("workers", ctypes.c_int32),
        ("guard_at_start", ctypes.c_int32),
    )


class Result(ctypes.Structure):
    _fields_ = (
        ("threadgroup_barriers", ctypes.c_uint64),
        ("simdgroup_barriers", ctypes.c_uint64),
        ("threadgroup_bytes", ctypes.c_uint64),
        ("loaded", ctypes.c_uint64 * MAX_BUFFERS),
        ("stored", ctypes.c_uint64 * MAX_BUFFERS),
        ("fault_offset", ctypes.c_uint64),
        ("error", ctypes.c_char * ERROR_BYTES),
    )
