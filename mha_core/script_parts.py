"""The fixed parts of the scripts that `script.py` writes. Nothing is filled into them."""

from __future__ import annotations

HOOKS = '''
def hook(n_heads, turn, edit):
    """Edit what the heads put into the output projection, in the turn-th call of that module in a pass."""
    turns = iter(range(1_000_000))

    def before(module, args):
        if next(turns) != turn:
            return None
        z = args[0].unflatten(-1, (n_heads, -1)).clone()  # [batch, position, head, d_head]
        edit(z)
        return (z.flatten(-2), *args[1:])

    return before


@torch.no_grad()
def run(given, changes=(), rules=()):
    ACTIVE[:] = rules
    TURNS.clear()
    hooks = []
    for place, edit in changes:
        name, n_heads, turn = PLACES[place]
        hooks.append(model.get_submodule(name).register_forward_pre_hook(hook(n_heads, turn, edit)))
    try:
        return model(**given)
    finally:
        for handle in hooks:
            handle.remove()


def outputs(given, places):
    """Every head's output at these places, [position, head, d_head] each."""
    kept = {}
    run(given, [(place, lambda z, place=place: kept.update({place: z[0].clone()})) for place in places])
    return kept


def mean_outputs(texts, places):
    """Means over all positions of all texts, [1, head, d_head] each."""
    runs = [outputs(given, places) for given in texts]
    return {place: torch.cat([kept[place] for kept in runs]).mean(dim=0, keepdim=True) for place in places}


def scale(heads, factor, positions):
    def edit(z):
        for head in heads:
            where = slice(None) if positions is None else positions
            z[:, where, head] = 0.0 if factor == 0 else z[:, where, head] * factor

    return edit


def put(heads, value, positions):
    def edit(z):
        new = value.expand(z.shape[1], -1, -1)  # [position, head, d_head]
        for head in heads:
            where = slice(None) if positions is None else positions
            z[:, where, head] = new[where, head]

    return edit


PLACES, RULES, CHANGES = {}, [], []
ACTIVE, TURNS = [], {}
'''

ATTENTION = '''
def attention(module, query, key, value, mask, scaling=None, softcap=None, position_bias=None, **kwargs):
    """Softmax attention with the rules of the current run: keys knocked out, weights spread evenly."""
    turn = TURNS[module] = TURNS.get(module, -1) + 1
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if position_bias is not None:
        scores = scores + position_bias
    allowed = torch.ones_like(scores, dtype=torch.bool)
    if mask is not None:
        scores = scores + mask
        allowed = (mask > torch.finfo(scores.dtype).min / 2).expand_as(scores).clone()
    here = [rule for rule in ACTIVE if model.get_submodule(rule[0]) is module and rule[1] == turn]
    for _, _, what, heads, queries, keys in here:
        if what == "knockout":
            rows = torch.zeros_like(allowed)
            closed = torch.zeros_like(allowed)
            for head in heads:
                for place in queries:
                    rows[:, head, place] = True
                    closed[:, head, place, keys] = True
            allowed &= ~closed
            scores = scores.masked_fill(rows & ~allowed, float("-inf"))
    weights = scores.softmax(dim=-1).nan_to_num(0.0)
    for _, _, what, heads, queries, _ in here:
        if what == "uniform":
            even = allowed / allowed.sum(dim=-1, keepdim=True).clamp(min=1)
            for head in heads:
                where = slice(None) if queries is None else queries
                weights[:, head, where] = even[:, head, where]
    return (weights @ value).transpose(1, 2).contiguous(), None
'''

COMPARE_WORDS = """
clean = run(arguments(IDS)).logits[0, POSITION].log_softmax(dim=-1)
changed = run(arguments(IDS), CHANGES, RULES).logits[0, POSITION].log_softmax(dim=-1)
for name, found in (("clean", clean), ("changed", changed)):
    top = found.exp().topk(5)
    words = [f"{tokenizer.decode([n])!r} {p:.4f}" for p, n in zip(top.values.tolist(), top.indices.tolist())]
    print(f"{name:8}", "   ".join(words))
print(f"KL(clean || changed): {float((clean.exp() * (clean - changed)).sum()):.6f} nats")
"""

COMPARE_VECTORS = """
clean = run(arguments(IDS)).last_hidden_state[0]
changed = run(arguments(IDS), CHANGES, RULES).last_hidden_state[0]
cosine = torch.nn.functional.cosine_similarity(clean.mean(dim=0), changed.mean(dim=0), dim=0)
print(f"1 - cosine of the two sentence embeddings: {1 - float(cosine):.6f}")
print("how far each token moved:", [round(float(x), 4) for x in (changed - clean).norm(dim=-1) / clean.norm(dim=-1)])
"""
