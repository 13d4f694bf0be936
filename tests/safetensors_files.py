"""Writes safetensors files as the format describes them, and damaged ones."""

import json

import numpy as np

NAMES = {"<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "<i4": "I32", "|u1": "U8"}


def bfloat16(values):
    """What is left of float32 where its lower half is cut off."""
    return (np.asarray(values, dtype="<f4").view("<u4") >> 16).astype("<u2")


def safetensors(path, arrays, bf16=(), header=None):
    """Write arrays; those named in ``bf16`` in bfloat16; ``header`` changes entries."""
    entries, parts, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, value in arrays.items():
        array = np.asarray(value)
        data = (bfloat16(array) if name in bf16 else array).tobytes()
        entries[name] = {
            "dtype": "BF16" if name in bf16 else NAMES[array.dtype.str],
            "shape": list(array.shape),
            "data_offsets": [at, at + len(data)],
        }
        at += len(data)
        parts.append(data)
    text = json.dumps(entries | (header or {})).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
    return path
