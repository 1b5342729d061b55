"""Sums of products by index letters (`einsum`): parsed, ordered, and done by diagonals, sums and matrix products.

Labels are letters; the axes of an ellipsis are labels too, numbered from the right, so that they broadcast as axes do.
Operands are contracted two at a time, in the order that costs the fewest operations (found exactly for up to eight
operands, greedily for more).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod as product_of
from typing import Any, NamedTuple

from weft.core import joining, linear, reducing
from weft.core._common import ArrayLike, array, broadcast_node, reshape, to_node, together, transpose, wrap
from weft.graph.dims import is_now, prod
from weft.graph.node import Node

Stream = Any
Label = str | int
Labels = tuple[Label, ...]
Sizes = dict[Label, Any]
Path = list[tuple[int, ...]]

MOST_EXACT = 8
"""Operands for which the best order is searched among all."""


class Term(NamedTuple):
    """An operand (or a product of some) and what its axes are called."""

    node: Node
    labels: Labels


def einsum(subscripts: str, *operands: ArrayLike, stream: Stream = None) -> array:
    """Sums of products by index letters: letters that are not in the result are summed over.

    Without `->` the result has the letters that appear once, in alphabetical order, after the axes of an ellipsis.

    >>> einsum("ij,jk->ik", ones((2, 3)), ones((3, 4))).shape
    (2, 4)
    >>> einsum("...ii->...", ones((5, 2, 2)))
    array([2, 2, 2, 2, 2], dtype=float32)
    """
    terms, result, sizes = _parsed("einsum", subscripts, operands)
    terms = [_without_repetitions(term) for term in terms]
    for places in _path([t.labels for t in terms], result, sizes):
        chosen = [terms[i] for i in places]
        terms = [t for i, t in enumerate(terms) if i not in places]
        needed = {*result, *(label for t in terms for label in t.labels)}
        terms.append(
            _summed(chosen[0], needed) if len(chosen) == 1 else _contracted(chosen[0], chosen[1], needed, sizes)
        )
    (last,) = terms
    return wrap(transpose(last.node, tuple(last.labels.index(label) for label in result)))


def einsum_path(subscripts: str, *operands: ArrayLike) -> tuple[Path, str]:
    """(path, report): which operands `einsum` contracts in which order, and what that saves.

    Each step takes operands out of the list and puts their product at its end.

    >>> einsum_path("ij,jk,kl->il", ones((9, 2)), ones((2, 9)), ones((9, 2)))[0]
    [(1, 2), (0, 1)]
    """
    terms, result, sizes = _parsed("einsum_path", subscripts, operands)
    labels = [t.labels for t in terms]
    path = _path(labels, result, sizes)
    lines = [f"{subscripts}: {_cost(labels, result, sizes)} operations at once, "]
    total, left = 0, list(labels)
    for places in path:
        chosen = [left[i] for i in places]
        left = [t for i, t in enumerate(left) if i not in places]
        made = _kept(chosen, {*result, *(label for t in left for label in t)})
        cost = _cost(chosen, made, sizes)
        lines.append(f"  {','.join(map(_text, chosen))}->{_text(made)}: {cost}")
        left, total = [*left, made], total + cost
    lines[0] += f"{total} in these steps"
    return path, "\n".join(lines)


# ---- parsing ----


def _parsed(name: str, subscripts: str, operands: Sequence[ArrayLike]) -> tuple[list[Term], Labels, Sizes]:
    """The operands with their labels, the labels of the result, and the size of every label."""
    if not isinstance(subscripts, str):
        raise TypeError(
            f"[{name}] subscripts come first, as a string such as 'ij,jk->ik'; got {type(subscripts).__name__}."
        )
    if not operands:
        raise ValueError(f"[{name}] needs at least one operand.")
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    texts = left.split(",")
    if len(texts) != len(operands):
        raise ValueError(f"[{name}] '{subscripts}' describes {len(texts)} operands; got {len(operands)}.")
    nodes = [to_node(x) for x in operands]
    terms = [Term(x, _labels(name, text, x.ndim)) for x, text in zip(nodes, texts, strict=True)]
    sizes = _sizes(name, terms)
    used = [label for term in terms for label in term.labels]
    dots = sorted((label for label in sizes if isinstance(label, int)), reverse=True)
    if not arrow:
        return (
            terms,
            (*dots, *sorted(label for label in set(used) if isinstance(label, str) and used.count(label) == 1)),
            sizes,
        )
    result = _labels(name, right, len(right.replace("...", "")) + (len(dots) if "..." in right else 0))
    if len(set(result)) != len(result):
        raise ValueError(f"[{name}] the result '{right}' names an axis twice.")
    unknown = [label for label in result if label not in sizes]
    if unknown:
        raise ValueError(f"[{name}] the result '{right}' has letters that no operand has: {_text(unknown)}.")
    return terms, result, sizes


def _labels(name: str, text: str, ndim: int) -> Labels:
    """The labels of the axes of an array: letters, and numbers from the right for the axes of an ellipsis."""
    before, dots, after = text.partition("...")
    if "..." in after:
        raise ValueError(f"[{name}] '{text}' has more than one ellipsis.")
    for letter in before + after:
        if not (letter.isascii() and letter.isalpha()):
            raise ValueError(f"[{name}] subscripts are letters; got {letter!r} in '{text}'.")
    hidden = ndim - len(before) - len(after)
    if hidden < 0 or (hidden > 0 and not dots):
        raise ValueError(f"[{name}] '{text}' does not describe an array with {ndim} axes.")
    return (*before, *range(hidden - 1, -1, -1), *after)


def _sizes(name: str, terms: Sequence[Term]) -> Sizes:
    """The size of every label; axes of size 1 broadcast."""
    sizes: Sizes = {}
    for number, term in enumerate(terms):
        for label, n in zip(term.labels, term.node.shape, strict=True):
            known = sizes.get(label, 1)
            if is_now(known, 1):
                sizes[label] = n
            elif not is_now(n, 1) and n != known:
                what = "the ellipsis" if isinstance(label, int) else f"'{label}'"
                raise ValueError(f"[{name}] {what} has size {known} in one operand and {n} in operand {number}.")
    return sizes


def _text(labels: Sequence[Label]) -> str:
    """Labels as a user would write them."""
    letters = ["..." if isinstance(label, int) else label for label in labels]
    return "".join(letter for i, letter in enumerate(letters) if letter != "..." or letters[i - 1 : i] != ["..."])


# ---- the order ----


def _path(labels: Sequence[Labels], result: Labels, sizes: Sizes) -> Path:
    """Which terms to contract in which order."""
    if len(labels) == 1:
        return [(0,)]
    if len(labels) == 2:
        return [(0, 1)]
    # A symbolic size is read here, and thereby guarded: the order, and so the bits, are those of the plain call.
    return _exact_path(labels, result, sizes) if len(labels) <= MOST_EXACT else _greedy_path(labels, result, sizes)


def _kept(chosen: Sequence[Labels], needed: set[Label]) -> Labels:
    """The labels that a product of terms keeps."""
    return tuple(dict.fromkeys(label for labels in chosen for label in labels if label in needed))


def _cost(chosen: Sequence[Labels], result: Labels, sizes: Sizes) -> int:
    """Multiplications and additions of a product of terms."""
    space = {label for labels in chosen for label in labels}
    each = max(1, len(chosen) - 1) + (1 if space - set(result) else 0)
    return each * product_of(int(sizes[label]) for label in space)


def _exact_path(labels: Sequence[Labels], result: Labels, sizes: Sizes) -> Path:
    """The cheapest tree of pairs, by dynamic programming over sets of operands (bit masks)."""
    everything = (1 << len(labels)) - 1
    members = {1 << i: (labels[i], 0, None) for i in range(len(labels))}
    best: dict[int, tuple[Labels, int, tuple[int, int] | None]] = dict(members)
    for mask in range(1, everything + 1):
        if mask in best:
            continue
        outside = {*result, *(x for i, term in enumerate(labels) if not mask >> i & 1 for x in term)}
        part = (mask - 1) & mask
        while part:
            other = mask ^ part
            if part < other:  # each split once
                pair = [best[part][0], best[other][0]]
                made = _kept(pair, outside)
                cost = best[part][1] + best[other][1] + _cost(pair, made, sizes)
                if mask not in best or cost < best[mask][1]:
                    best[mask] = (made, cost, (part, other))
            part = (part - 1) & mask
    return _listed(best, everything, [1 << i for i in range(len(labels))])


def _listed(best: dict[int, tuple[Labels, int, tuple[int, int] | None]], mask: int, left: list[int]) -> Path:
    """A tree of pairs as places in the list of what is left, operands of a step before the step."""
    split = best[mask][2]
    if split is None:
        return []
    path: Path = []
    for part in split:
        path += _listed(best, part, left)
    i, j = sorted(left.index(part) for part in split)
    left.pop(j)
    left.pop(i)
    left.append(mask)
    return [*path, (i, j)]


def _greedy_path(labels: Sequence[Labels], result: Labels, sizes: Sizes) -> Path:
    """The cheapest pair first, again and again."""
    left, path = list(labels), []
    while len(left) > 1:

        def cost(pair: tuple[int, int], left: list[Labels] = left) -> int:
            return _cost([left[i] for i in pair], _outcome(left, pair, result), sizes)

        pair = min(combinations(range(len(left)), 2), key=cost)
        left = [*(t for i, t in enumerate(left) if i not in pair), _outcome(left, pair, result)]
        path.append(pair)
    return [*path]


def _outcome(left: Sequence[Labels], pair: tuple[int, int], result: Labels) -> Labels:
    rest = {*result, *(x for i, t in enumerate(left) if i not in pair for x in t)}
    return _kept([left[i] for i in pair], rest)


# ---- the work ----


def _without_repetitions(term: Term) -> Term:
    """The diagonal of axes that have one label."""
    node, labels = term
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i = labels.index(label)
            j = labels.index(label, i + 1)
            if node.shape[i] != node.shape[j]:
                raise ValueError(f"[einsum] '{label}' has sizes {node.shape[i]} and {node.shape[j]} in one operand.")
            node = to_node(joining.diagonal(wrap(node), 0, i, j))
            labels = (*(x for k, x in enumerate(labels) if k not in (i, j)), label)
    return Term(node, labels)


def _summed(term: Term, needed: set[Label]) -> Term:
    """The sum over labels that nobody needs."""
    gone = [i for i, label in enumerate(term.labels) if label not in needed]
    if not gone:
        return term
    return Term(to_node(reducing.sum(wrap(term.node), gone)), tuple(label for label in term.labels if label in needed))


def _contracted(x: Term, y: Term, needed: set[Label], sizes: Sizes) -> Term:
    """The product of two terms, summed over labels that nobody needs."""
    x, y = _summed(x, needed | set(y.labels)), _summed(y, needed | set(x.labels))
    inner = [label for label in x.labels if label in y.labels and label not in needed]
    if not inner:
        labels = _kept([x.labels, y.labels], needed)
        return Term(_multiplied(*(_aligned(t, labels) for t in (x, y))), labels)
    batch = [label for label in x.labels if label in y.labels and label in needed]
    rows, columns = ([label for label in t.labels if label not in (*batch, *inner)] for t in (x, y))
    left = _matrix(x, batch, rows, inner, sizes)
    right = _matrix(y, batch, inner, columns, sizes)
    out = to_node(linear.matmul(wrap(left), wrap(right)))
    shape = (*out.shape[: len(batch)], *(sizes[label] for label in (*rows, *columns)))
    return Term(reshape(out, shape), (*batch, *rows, *columns))


def _multiplied(x: Node, y: Node) -> Node:
    left, right = together("einsum", x, y)
    return left * right


def _aligned(term: Term, labels: Labels) -> Node:
    """The operand with an axis for every label, of size 1 where it has none."""
    order = sorted(range(len(term.labels)), key=lambda i: labels.index(term.labels[i]))
    shape = tuple(term.node.shape[term.labels.index(label)] if label in term.labels else 1 for label in labels)
    return reshape(transpose(term.node, tuple(order)), shape)


def _matrix(term: Term, batch: Sequence[Label], rows: Sequence[Label], columns: Sequence[Label], sizes: Sizes) -> Node:
    """The operand as a stack of matrices; axes of size 1 that meet a larger one are repeated."""
    order = (*batch, *rows, *columns)
    node = transpose(term.node, tuple(term.labels.index(label) for label in order))
    lead = node.shape[: len(batch)]
    node = broadcast_node(node, (*lead, *(sizes[label] for label in (*rows, *columns))))
    m, n = (prod(tuple(sizes[label] for label in group)) for group in (rows, columns))
    return reshape(node, (*lead, m, n))
