"""The sampler of docs/numerics.md section 5 in plain Python, from logits to the drawn token: what
tests over HTTP compare the server with."""

import math

UNIT = 2.0 ** 46
PURPOSE_RACE, PURPOSE_DERIVE = 4, 5


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, p0 >> 32 ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def random_block(seed, position, purpose, index):
    return philox((position & 0xFFFFFFFF, position >> 32, purpose, index),
                  (seed & 0xFFFFFFFF, seed >> 32))


def derived_seed(seed, choice):
    if choice == 0:
        return seed
    block = random_block(seed, 0, PURPOSE_DERIVE, choice)
    return block[1] << 32 | block[0]


def race(weights, seed, position):
    """The id with the smallest -ln(U)/W among {id: weight}."""
    blocks = {index: random_block(seed, position, PURPOSE_RACE, index)
              for index in {token >> 1 for token in weights}}

    def key(token):
        block, word = blocks[token >> 1], 2 * (token & 1)
        bits = block[word + 1] << 32 | block[word]
        return -math.log(((bits >> 12) + 0.5) * 2.0 ** -52) / weights[token], token
    return min(weights, key=key)


def log_softmax(row):
    top = max(row)
    total = math.log(sum(math.exp(z - top) for z in row))
    return [z - top - total for z in row]


def edited(row, prompt, output, request, end_id):
    """Logits after bans, penalties and bias. prompt and output: ids before this position."""
    z = list(row)
    allowed = request.get("allowed_token_ids")
    if allowed:
        z = [v if i in allowed else -math.inf for i, v in enumerate(z)]
    for token in request.get("banned_token_ids", ()):
        z[token] = -math.inf
    for word in request.get("bad_word_ids", ()):
        before = list(word[:-1])
        if not before or output[-len(before):] == before:
            z[word[-1]] = -math.inf
    if len(output) < request.get("min_tokens", 0):
        for token in [end_id] + request.get("stop_token_ids", []):
            z[token] = -math.inf
    repetition = request.get("repetition_penalty", 1)
    for token in set(prompt) | set(output) if repetition != 1 else ():
        z[token] = z[token] / repetition if z[token] > 0 else z[token] * repetition
    for token in set(output):
        z[token] -= (request.get("frequency_penalty", 0) * output.count(token) +
                     request.get("presence_penalty", 0))
    for token, bias in request.get("logit_bias", {}).items():
        z[int(token)] += bias
    return z


def weights(z, request):
    """{id: weight} of the ids that stay, in units of 2^-46."""
    top, temperature = max(z), request.get("temperature", 1)
    w = [round(UNIT * math.exp((v - top) / temperature)) for v in z]
    total = sum(w)
    order = sorted(range(len(z)), key=lambda i: (-z[i], i))
    stays, before = {}, 0
    top_k = request.get("top_k", 0)
    for rank, token in enumerate(order):
        keep = (w[token] > 0 and (top_k <= 0 or rank < top_k) and
                before <= request.get("top_p", 1) * total and
                w[token] >= request.get("min_p", 0) * UNIT)
        if keep or rank == 0:
            stays[token] = w[token]
        before += w[token]
    return stays


def processed(z, request):
    """{id: log-probability} after every step, and the weights it comes from."""
    if request.get("temperature", 1) == 0:
        return dict(enumerate(log_softmax(z))), None
    kept = weights(z, request)
    total = math.log(sum(kept.values()))
    return {token: math.log(w) - total for token, w in kept.items()}, kept
