"""Random values in the stored formats, in pieces, each tensor from its own seed.

A piece is CHUNK bytes of the random stream; its length is part of the stream's definition, so that a
model is a function of (dimensions, seed) alone.
"""

import hashlib
import math

import numpy as np

from .tensors import up32

CHUNK = 1 << 22


def e4m3_table():
    values = np.zeros(256, np.float32)
    for code in range(256):
        exponent, mantissa = (code >> 3) & 15, code & 7
        magnitude = ((8 + mantissa) / 8.0 * 2.0 ** (exponent - 7) if exponent else
                     mantissa / 8.0 * 2.0 ** -6)
        values[code] = -magnitude if code & 128 else magnitude
    values[127] = values[255] = 0  # NaN in the format; never drawn
    return values


def normal_quantiles(count):
    low, high = np.full(count, -9.0), np.full(count, 9.0)
    targets = (np.arange(count) + 0.5) / count
    erf = np.vectorize(math.erf)
    for _ in range(60):
        middle = (low + high) / 2
        below = 0.5 * (1 + erf(middle / math.sqrt(2))) < targets
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2


def nearest_codes(values, table, skip):
    codes = [code for code in range(len(table)) if code not in skip]
    distances = np.abs(table[codes][None, :] - np.asarray(values)[:, None])
    return np.array([codes[i] for i in np.argmin(distances, axis=1)], np.uint8)


E4M3 = e4m3_table()
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)
NORMAL_256 = normal_quantiles(256)
NORMAL_65536 = normal_quantiles(65536).astype(np.float32)
# A random byte becomes a code whose values are normal, with an rms of about 64 before the scale.
E4M3_OF_BYTE = nearest_codes(NORMAL_256 * 64.0, E4M3, (127, 255, 128))
E2M1_OF_NIBBLE = nearest_codes(normal_quantiles(16) * 2.5, E2M1, (8,))
E2M1_OF_BYTE = np.array(
    [E2M1_OF_NIBBLE[b & 15] | (E2M1_OF_NIBBLE[b >> 4] << 4) for b in range(256)], np.uint8)
E4M3_RMS = float(np.sqrt(np.mean(E4M3[E4M3_OF_BYTE] ** 2)))
E2M1_RMS = float(np.sqrt(np.mean(E2M1[E2M1_OF_NIBBLE] ** 2)))


def generator(seed, name):
    digest = hashlib.sha256(("%d:%s" % (seed, name)).encode()).digest()
    return np.random.Generator(np.random.SFC64(int.from_bytes(digest[:16], "little")))


def byte_pieces(seed, name, total):
    random = generator(seed, name)
    for offset in range(0, total, CHUNK):
        yield np.frombuffer(random.bytes(min(CHUNK, total - offset)), np.uint8)


def float_pieces(seed, tensor):
    total, random = math.prod(tensor.shape), generator(seed, tensor.name)
    std = tensor.fan ** -0.5 if tensor.std is None else tensor.std
    for offset in range(0, total, CHUNK // 4):
        count = min(CHUNK // 4, total - offset)
        bits = np.frombuffer(random.bytes(2 * count), np.uint16)
        yield NORMAL_65536[bits] * np.float32(std) + np.float32(tensor.mean)


def to_bf16(values):
    """Rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def scale_codes(seed, tensor):
    rows, columns = tensor.shape
    shape = (up32(rows) if tensor.kind == "f8" else rows, up32(columns))
    rms = E2M1_RMS if tensor.kind == "f4" else E4M3_RMS
    base = 127 + round(math.log2(tensor.fan ** -0.5 / rms))
    # One scale of eight is half as large, so that a kernel that ignores scales is found out.
    change = np.array([-1, 0, 0, 0, 0, 0, 0, 0], np.int16)
    random = generator(seed, tensor.name + ".scale").bytes(shape[0] * shape[1])
    return (base + change[np.frombuffer(random, np.uint8) & 7]).astype(np.uint8).reshape(shape)


def code_pieces(seed, tensor):
    """Bytes of the codes, two to a byte for f4."""
    rows, columns = tensor.shape
    packed = tensor.kind == "f4"
    lookup = E2M1_OF_BYTE if packed else E4M3_OF_BYTE
    for piece in byte_pieces(seed, tensor.name, rows * (columns // 2 if packed else columns)):
        yield lookup[piece]


def dequantised_pieces(seed, tensor):
    """The same values as bf16, whole rows at a time."""
    columns, packed = tensor.shape[1], tensor.kind == "f4"
    width = columns // 2 if packed else columns
    exponents = scale_codes(seed, tensor).astype(np.float32) - 127
    row, rest = 0, np.zeros(0, np.uint8)
    for piece in code_pieces(seed, tensor):
        piece = np.concatenate([rest, piece])
        num_rows = len(piece) // width
        codes, rest = piece[:num_rows * width].reshape(num_rows, width), piece[num_rows * width:]
        if packed:
            values = np.empty((num_rows, columns), np.float32)
            values[:, 0::2], values[:, 1::2] = E2M1[codes & 15], E2M1[codes >> 4]
        else:
            values = E4M3[codes]
        scale_row = np.arange(row, row + num_rows) // (32 if tensor.kind == "f8" else 1)
        scales = np.repeat(np.exp2(exponents[scale_row]), 32, axis=1)[:, :columns]
        yield to_bf16(values * scales)
        row += num_rows


def write_tensor(file, seed, item, weight_format):
    """Writes one Stored tensor."""
    tensor = item.tensor
    if tensor.kind == "f32":
        for piece in float_pieces(seed, tensor):
            file.write(piece.astype("<f4").tobytes())
    elif tensor.kind == "bf":
        for piece in float_pieces(seed, tensor):
            file.write(to_bf16(piece).tobytes())
    elif item.name.endswith(".scale"):
        file.write(scale_codes(seed, tensor).tobytes())
    else:
        pieces = dequantised_pieces if weight_format == "bf16" else code_pieces
        for piece in pieces(seed, tensor):
            file.write(piece.tobytes())
