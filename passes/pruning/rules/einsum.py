"""Einsum: axes with one letter meet, those whose letter the result lacks are summed over."""

from __future__ import annotations

from amct_onnx.graph.parts import Node
from amct_onnx.passes.pruning.axes import Axis, Layout, has_labels, labels_of, size_of
from amct_onnx.passes.pruning.walk import Walk


def einsum(walk: Walk, node: Node) -> None:
    """Channels pass as they do through MatMul; constants follow, and make no channels of their own."""
    if not any(map(walk.has_labels, node.inputs)):
        return
    terms, result = _letters(_equation(node))
    layouts = [walk.follow_constant(node, index) or walk.layout(tensor) for index, tensor in enumerate(node.inputs)]
    known = [layout for layout in layouts if layout is not None]
    # One letter on two axes of an operand takes its diagonal.
    is_plain = all(len(set(term)) == len(term) for term in terms) and "." not in _equation(node)
    if len(known) < len(layouts) or not is_plain or list(map(len, known)) != list(map(len, terms)):
        walk.fix_inputs(node, "its equation cannot be followed")
        return
    met = {letter: _met(walk, node, terms, known, letter) for letter in dict.fromkeys("".join(terms))}
    for letter, axis in met.items():
        is_alone = sum(letter in term for term in terms) == 1
        if letter not in result and is_alone and has_labels(axis):
            walk.fix_inputs(node, "it adds up channels")
        elif letter not in result:
            walk.read(node, labels_of(axis, walk.labels))
    walk.set(node.outputs[0], [met[letter] for letter in result])


def _equation(node: Node) -> str:
    given = node.attrs["equation"]
    text = given.decode() if isinstance(given, bytes) else str(given)
    return text.replace(" ", "")


def _letters(equation: str) -> tuple[list[str], str]:
    operands, arrow, result = equation.partition("->")
    terms = operands.split(",")
    if not arrow:
        letters = "".join(terms)
        result = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    return terms, result


def _met(walk: Walk, node: Node, terms: list[str], layouts: list[Layout], letter: str) -> Axis:
    there = [
        (layout[term.index(letter)], f"'{tensor.name}'")
        for term, layout, tensor in zip(terms, layouts, node.inputs, strict=True)
        if letter in term and size_of(layout[term.index(letter)]) > 1
    ]
    return walk.unite_axes(node, there) if there else ()
