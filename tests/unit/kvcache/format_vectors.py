#!/usr/bin/env python3
"""Writes tests/data/kvcache/{segment,index,touch,encrypted}.bin from the tables of
docs/kv_format.md §10-§13 and §22 alone, for format_test.cc.

usage: format_vectors.py FOLDER
"""

import pathlib
import struct
import sys

PAGE = 4096
SECTIONS = [(2, 4, 36, 9), (20, 8, 36, 9)]
SEGMENT_PAGES = 5
NAMESPACE = bytes(range(100, 132))
EPOCH = 0x1122334455667788
NUMBER = 7
CREATED_NS = 1767225600 * 10**9
SEALED_NS = CREATED_NS + 60 * 10**9
BUCKET_HOUR = 490968


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def align(value, step):
    return -(-value // step) * step


def sizes():
    offsets, end = [], 0
    for _, entries, main, index in SECTIONS:
        offsets.append(end)
        end = align(end + entries * (main + index), 64)
    record_pages = align(256 + end + 32, PAGE) // PAGE
    capacity = max(n for n in range(SEGMENT_PAGES)
                   if 1 + n * record_pages + align(64 * (n + 1), PAGE) // PAGE <= SEGMENT_PAGES)
    return offsets, end, record_pages, capacity, align(64 * (capacity + 1), PAGE) // PAGE


OFFSETS, PAYLOAD, RECORD_PAGES, CAPACITY, FOOTER_PAGES = sizes()


def key(number):
    return bytes((number * 16 + i) & 255 for i in range(32))


def header_begin(number, flags):
    header = struct.pack("<8sHHIIBBHQ", b"DIKVREC1", 1, 256, flags, 0x80000000, 1, len(SECTIONS),
                         0, 0xA0B0C0D0E0F00010)
    header += key(number) + (key(number - 1)[:16] if number else bytes(16))
    return header + struct.pack("<IHHQQQQ", number, 8, 5, CREATED_NS + number, 40 + number, EPOCH,
                                PAYLOAD)


def times(a, b):
    """Product in the field of AES."""
    product = 0
    while b:
        product ^= a if b & 1 else 0
        a = (a << 1) ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return product


def substitution_box():
    box = []
    for value in range(256):
        inverse = next((x for x in range(256) if times(value, x) == 1), 0)
        rotated = inverse
        for shift in range(1, 5):
            rotated ^= (inverse << shift | inverse >> (8 - shift)) & 255
        box.append(rotated ^ 0x63)
    return box


BOX = substitution_box()


def aes_256(secret, block):
    """One block, FIPS 197."""
    words = [list(secret[4 * i:4 * i + 4]) for i in range(8)]
    round_constant = 1
    for i in range(8, 60):
        word = words[-1]
        if i % 8 == 0:
            word = [BOX[byte] for byte in word[1:] + word[:1]]
            word[0] ^= round_constant
            round_constant = times(round_constant, 2)
        elif i % 8 == 4:
            word = [BOX[byte] for byte in word]
        words.append([a ^ b for a, b in zip(word, words[i - 8])])
    keys = [sum(words[4 * i:4 * i + 4], []) for i in range(15)]
    state = [a ^ b for a, b in zip(block, keys[0])]
    for number in range(1, 15):
        state = [BOX[state[(i + 4 * (i % 4)) % 16]] for i in range(16)]
        if number < 14:
            state = [times(state[i], 2) ^ times(state[i - i % 4 + (i + 1) % 4], 3)
                     ^ state[i - i % 4 + (i + 2) % 4] ^ state[i - i % 4 + (i + 3) % 4]
                     for i in range(16)]
        state = [a ^ b for a, b in zip(state, keys[number])]
    return bytes(state)


def ghash(subkey, data):
    """NIST SP 800-38D §6.4; data is whole blocks."""
    digest = 0
    for begin in range(0, len(data), 16):
        digest ^= int.from_bytes(data[begin:begin + 16], "big")
        product, factor = 0, subkey
        for bit in range(127, -1, -1):
            product ^= factor if digest >> bit & 1 else 0
            factor = factor >> 1 ^ (0xE1 << 120 if factor & 1 else 0)
        digest = product
    return digest


def aes_256_gcm(secret, nonce, header, text):
    """(ciphertext, tag), NIST SP 800-38D §7.1 with a nonce of 96 bits."""
    def keystream(counter):
        return aes_256(secret, nonce + struct.pack(">I", counter))

    cipher = b"".join(
        bytes(a ^ b for a, b in zip(text[i:i + 16], keystream(2 + i // 16)))
        for i in range(0, len(text), 16))
    data = header.ljust(align(len(header), 16), b"\0") + cipher.ljust(align(len(cipher), 16), b"\0")
    data += struct.pack(">QQ", 8 * len(header), 8 * len(cipher))
    digest = ghash(int.from_bytes(aes_256(secret, bytes(16)), "big"), data)
    return cipher, bytes(a ^ b for a, b in zip(digest.to_bytes(16, "big"), keystream(1)))


def record(number, secret=None):
    payload = bytes((number + 3 * i) & 255 for i in range(PAYLOAD))
    flags, nonce, tag = 2, bytes(12), bytes(16)
    if secret:
        flags, nonce = 3, bytes(range(50, 62))
        payload, tag = aes_256_gcm(secret, nonce, header_begin(number, flags), payload)
    table = b""
    for (_, entries, main, index), offset in zip(SECTIONS, OFFSETS):
        length = entries * (main + index)
        table += struct.pack("<III", 256 + offset, length, crc32c(payload[offset:offset + length]))
    header = header_begin(number, flags)
    header += table.ljust(72, b"\0") + nonce + tag + bytes(32)
    assert len(header) == 252
    header_crc = crc32c(header)
    header += struct.pack("<I", header_crc)
    trailer = struct.pack("<QIIQ8s", 40 + number, header_crc, 0, EPOCH, b"DIKVEND1")
    return (header + payload + trailer).ljust(RECORD_PAGES * PAGE, b"\0")


def index_entry(op, number=0, page=0):
    body = (key(number) + struct.pack("<QIIIIHBB", 0xA0B0C0D0E0F00010, NUMBER, page, number,
            struct.unpack("<I", key(number - 1)[:4])[0] if number else 0, 5, 1, op)
            if op == 1 else
            bytes(32) + struct.pack("<QIIIIHBB", 0, NUMBER, 0, 0, 0, 0, 0, op))
    return body + struct.pack("<I", crc32c(body))


def superblock():
    body = struct.pack("<8sHHIIBBHII", b"DIKVSEG1", 1, 12, SEGMENT_PAGES, 0x80000000, 1,
                       len(SECTIONS), RECORD_PAGES, CAPACITY, FOOTER_PAGES)
    body += NAMESPACE + struct.pack("<QQQQ", EPOCH, NUMBER, CREATED_NS, BUCKET_HOUR)
    for section in SECTIONS:
        body += struct.pack("<HHHH", *section)
    body = body.ljust(144, b"\0") + struct.pack("<I", 8)
    body = body.ljust(4092, b"\0")
    return body + struct.pack("<I", crc32c(body))


def segment():
    data = superblock()
    entries = b""
    for number in range(2):
        data += record(number)
        entries += index_entry(1, number, 1 + number * RECORD_PAGES)
    data = data.ljust((1 + CAPACITY * RECORD_PAGES) * PAGE, b"\0")
    trailer = struct.pack("<8sIIQQQI16s", b"DIKVFTR1", 2, crc32c(entries), SEALED_NS, EPOCH,
                          NUMBER, crc32c(data[:88]), bytes(16))
    trailer += struct.pack("<I", crc32c(trailer))
    return data + entries.ljust(FOOTER_PAGES * PAGE - 64, b"\0") + trailer


def touch_page():
    items = struct.pack("<IHHIHH", 7, 0, 3, 9, 2338, 65535)
    page = struct.pack("<8sIHHII", b"DIKVTCH1", 490900, 2, 0, 0, 0) + items
    page = page.ljust(PAGE, b"\0")
    return page[:16] + struct.pack("<I", crc32c(page)) + page[20:]


def main():
    folder = pathlib.Path(sys.argv[1])
    (folder / "segment.bin").write_bytes(segment())
    (folder / "index.bin").write_bytes(index_entry(1, 0, 1) + index_entry(1, 1, 1 + RECORD_PAGES)
                                       + index_entry(2))
    (folder / "touch.bin").write_bytes(touch_page())
    (folder / "encrypted.bin").write_bytes(record(1, bytes(range(200, 232))))


if __name__ == "__main__":
    main()
