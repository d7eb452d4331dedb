"""Rules on prune records for which no model is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from amct_onnx.record.prune import AttrType, PruneNode, PruneRecord, mask_words

_ATTR_TYPES = {
    "type": AttrType.STRING,
    "begin": AttrType.INT,
    "end": AttrType.INT,
    "group": AttrType.INT,
    "prune_group": AttrType.INT,
    "prune_index": AttrType.INTS,
    "mask_shape": AttrType.INTS,
    "selective_mask": AttrType.INTS,
}


def prune_complaints(prune: PruneRecord) -> Iterator[str]:
    """Yield what is wrong with a prune record as a whole."""
    cascade = bool(prune.producers or prune.consumers)
    if cascade == (prune.selective_prune is not None):
        yield "a prune_record holds either producers with their consumers or one selective_prune; split or complete it"
    elif cascade and not (prune.producers and prune.consumers):
        missing = "consumer" if prune.producers else "producer"
        yield f"the prune_record has no {missing}; a cascade names both: add it or delete the prune_record"


def node_complaints(role: str, node: PruneNode) -> Iterator[str]:
    """Yield what is wrong with one node of a prune record."""
    wrong = list(_attr_types(node))
    yield from wrong
    if wrong:
        return
    if role == "selective_prune":
        yield from _mask(node)
    else:
        yield from _range(node)


def _attr_types(node: PruneNode) -> Iterator[str]:
    counts = Counter(attr.name for attr in node.attrs)
    yield from (f"attr {name} stands {count} times; delete all but one" for name, count in counts.items() if count > 1)
    for attr in node.attrs:
        wanted = _ATTR_TYPES.get(attr.name, attr.type)
        if attr.type is not wanted:
            yield f"attr {attr.name} has type {attr.type.name}; it is written type: {wanted.name}, {wanted.value}: ..."


def _range(node: PruneNode) -> Iterator[str]:
    begin, end = node.begin, node.end
    if begin is None or end is None:
        yield f"attr {'begin' if begin is None else 'end'} is missing; give the range of channels, begin and end"
        return
    if not 0 <= begin < end:
        yield f"begin is {begin} and end is {end}; a range has 0 <= begin < end: correct it"
        return
    if node.prune_group is not None and (node.prune_group < 1 or (end - begin) % node.prune_group):
        yield f"prune_group is {node.prune_group}; it divides the {end - begin} channels of the range: correct it"
    if node.group is not None and node.group < 1:
        # A convolution in groups may read the range beside others, so its groups need not divide it.
        yield f"group is {node.group}; a convolution has 1 or more: correct it"
    yield from _index(node.prune_index or (), begin, end)


def _index(index: tuple[int, ...], begin: int, end: int) -> Iterator[str]:
    outside = next((channel for channel in index if not begin <= channel < end), None)
    if outside is not None:
        yield f"prune_index names channel {outside}, outside its range [{begin}, {end}); correct it"
    if len(set(index)) != len(index):
        twice = next(channel for channel, count in Counter(index).items() if count > 1)
        yield f"prune_index names channel {twice} twice; delete one"
    elif outside is None and len(index) == end - begin:
        yield "prune_index names every channel of its range; keep at least one"


def _mask(node: PruneNode) -> Iterator[str]:
    shape, words = node.mask_shape, node.selective_mask
    if not shape or min(shape) < 1:
        yield "mask_shape is missing or holds a length below 1; give the shape of the weight"
    elif words is not None and len(words) != mask_words(shape):
        yield (
            f"selective_mask has {len(words)} words; a mask of shape {list(shape)} takes {mask_words(shape)}: "
            "search the mask again"
        )
