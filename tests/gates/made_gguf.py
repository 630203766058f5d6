"""Writes small GGUF files: named values and tensors, as docs/GATES.md describes them."""

import struct

import numpy as np

TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}


def _string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value):
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    return struct.pack("<If", 6, value)


def _data(array, kind):
    if kind == "f32":
        return array.astype(np.float32).tobytes()
    if kind == "f16":
        return array.astype(np.float16).tobytes()
    if kind == "bf16":  # cut off: what is written is read back exactly
        return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return bytes(array.size // 32 * 34)  # q8_0: all zero


def write(path, values, tensors, kinds=None):
    """values: {name: str, int, float or bool}; tensors: {name: array}; kinds: {name: type}, else f32."""
    kinds = kinds or {}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    for name, value in values.items():
        head += _string(name) + _value(value)
    data = b""
    for name, array in tensors.items():
        kind = kinds.get(name, "f32")
        head += _string(name) + struct.pack("<I", array.ndim)
        head += struct.pack(f"<{array.ndim}Q", *reversed(array.shape))
        head += struct.pack("<IQ", TYPES[kind], len(data))
        data += _data(array, kind)
        data += bytes(-len(data) % 32)
    head += bytes(-len(head) % 32)
    path.write_bytes(head + data)
