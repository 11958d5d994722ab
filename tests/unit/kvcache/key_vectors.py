#!/usr/bin/env python3
"""Writes key_vectors.inc: block keys computed from the text of docs/kv_format.md §5 alone, for
keys_test.cc.

usage: key_vectors.py > key_vectors.inc
"""

import hashlib
import hmac
import struct

SECRET = bytes(range(32))
BLOCK_TOKENS = 128


def u32(value):
    return struct.pack("<I", value)


def message(tag, *fields):
    return b"".join(u32(len(part)) + part for part in (tag.encode(), *fields))


def h(tag, *fields):
    return hashlib.sha256(message(tag, *fields)).digest()


def mac(tag, *fields):
    return hmac.new(SECRET, message(tag, *fields), hashlib.sha256).digest()


def namespace(format_id):
    return h("deepinfer-kv-ns-v1", bytes([0x11]) * 32, bytes([0x22]) * 32, b"v4.1", u32(format_id),
             u32(BLOCK_TOKENS), b"theta=10000", b"v41-prod-bf16dot-r1", b"", b"vision-1")


def chain(ns, scope, tokens, media, public_scope=None, public_tokens=0, block_tokens=BLOCK_TOKENS):
    num_public = public_tokens // block_tokens
    parent = h("deepinfer-kv-root-v1", ns, public_scope if num_public else scope)
    keys = []
    for block in range(len(tokens) // block_tokens):
        begin, end = block * block_tokens, (block + 1) * block_tokens
        if block == num_public and block > 0:
            parent = h("deepinfer-kv-join-v1", parent, scope)
        ids = tokens[begin:end]
        spans = [(first, last, digest) for first, last, digest in media
                 if first < end and last > begin]
        items = b"".join(u32(1) + u32(max(first, begin) - begin) + u32(max(first, begin) - first)
                         + digest for first, last, digest in spans)
        parent = h("deepinfer-kv-block-v1", parent,
                   u32(len(ids)) + b"".join(struct.pack("<i", t) for t in ids),
                   u32(len(spans)) + items)
        keys.append(parent)
    return keys


def main():
    ns = namespace(1)
    tenant = mac("deepinfer-kv-scope-v1", b"tenant-a", b"")
    narrowed = mac("deepinfer-kv-scope-v1", b"tenant-a", b"user 7")
    public = mac("deepinfer-kv-public-v1")
    tokens = [(i * 2654435761) % 129280 for i in range(5 * BLOCK_TOKENS + 77)]
    # One image inside block 0, one from block 1 into block 3, one that ends on an edge.
    media = [(5, 20, bytes([0xA1]) * 32), (130, 400, bytes([0xA2]) * 32),
             (500, 512, bytes([0xA3]) * 32)]
    rows = {
        "kNamespaceId": [ns],
        "kOtherFormatNamespaceId": [namespace(2)],
        "kTenantScope": [tenant],
        "kNarrowedScope": [narrowed],
        "kPublicScope": [public],
        "kTenantTag": [mac("deepinfer-kv-tenant-v1", b"tenant-a")[:8]],
        "kPlainKeys": chain(ns, tenant, tokens, []),
        "kMediaKeys": chain(ns, tenant, tokens, media),
        "kPublicKeys": chain(ns, tenant, tokens, [], public, 300),
        "kAllPublicKeys": chain(ns, tenant, tokens, [], public, 5 * BLOCK_TOKENS),
        "kSmallBlockKeys": chain(ns, narrowed, tokens[:20], media[:1], block_tokens=8),
    }
    print("// Written by key_vectors.py; do not edit.")
    for name, values in rows.items():
        print(f"constexpr const char* {name}[] = {{")
        for value in values:
            print(f'    "{value.hex()}",')
        print("};")


if __name__ == "__main__":
    main()
