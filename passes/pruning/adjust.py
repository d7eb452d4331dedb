"""What has to change beside channels that go: constants that hold something for each of them, and sizes.

An adjustment is found when channels are followed, and applied when it is known which of them stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from amct_onnx.graph.edit import Editor, drop_attributes, replace_input, set_attribute
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.op_table import known_constant
from amct_onnx.graph.parts import Constant, Node, Tensor, Variable
from amct_onnx.graph.weights import Array, DerivedValues
from amct_onnx.passes.pruning.labels import LabelArray

Keep = Callable[[LabelArray], NDArray[np.bool_]]
"""Which positions stay, from their labels."""


class Adjustment(Protocol):
    """One change of one node."""

    @property
    def node(self) -> Node:
        """The node."""
        ...

    def concerned(self) -> list[LabelArray]:
        """The labels it depends on."""
        ...

    def apply(self, model: Model, keep: Keep) -> None:
        """Make the change."""
        ...


@dataclass(frozen=True, eq=False)
class Slice:
    """A constant input loses the positions of channels that go, on one or more of its axes.

    Attributes:
        node: the reader.
        index: which input.
        axes: axis of the constant -> labels of its positions.
    """

    node: Node
    index: int
    axes: Mapping[int, LabelArray]

    def concerned(self) -> list[LabelArray]:
        """The labels it depends on."""
        return list(self.axes.values())

    def apply(self, model: Model, keep: Keep) -> None:
        """Make the change."""
        self.apply_for(model, keep, [self])

    def key(self, keep: Keep) -> tuple[object, ...]:
        """What is equal for readers whose constants stay one: the constant, and what it loses."""
        masks = [(axis, keep(labels).tobytes()) for axis, labels in sorted(self.axes.items())]
        return (id(known_constant(self.node.inputs[self.index])), *masks)

    def apply_for(self, model: Model, keep: Keep, readers: Sequence[Slice]) -> None:
        """Make the change for all readers of one constant that lose the same."""
        kept = {axis: keep(labels) for axis, labels in self.axes.items()}
        if all(mask.all() for mask in kept.values()):
            return
        old = self.node.inputs[self.index]
        constant = known_constant(old)

        def sliced() -> Array:
            values = constant_array(constant)
            for axis, mask in kept.items():
                values = np.compress(mask, values, axis=axis)
            return np.ascontiguousarray(values)

        shape = [int(kept[axis].sum()) if axis in kept else int(size) for axis, size in enumerate(constant.shape)]
        values = DerivedValues(shape, np.dtype(constant.dtype), sliced)
        made = model.rewrite_constant(old, values, len(readers))
        for reader in readers:
            replace_input(reader.node, reader.index, made)


@dataclass(frozen=True, eq=False)
class GroupedWeight:
    """The weight of a convolution in groups: every group loses inputs and outputs of its own, as many as the others.

    Attributes:
        node: the convolution.
        rows: labels along the weight's first axis, [groups, rows per group]: of its outputs; for a transposed
            convolution of its inputs.
        columns: labels along its second axis, of every group, [groups, columns].
    """

    node: Node
    rows: LabelArray
    columns: LabelArray

    def concerned(self) -> list[LabelArray]:
        """The labels it depends on."""
        return [self.rows, self.columns]

    def apply(self, model: Model, keep: Keep) -> None:
        """Make the change."""
        rows, columns = keep(self.rows), keep(self.columns)
        if rows.all() and columns.all():
            return
        constant = known_constant(self.node.inputs[1])
        groups, per_group = rows.shape
        first, second = int(rows.sum()), int(columns[0].sum())

        def sliced() -> Array:
            values = constant_array(constant)
            parts = values.reshape(groups, per_group, *values.shape[1:])
            return np.concatenate([parts[group][rows[group]][:, columns[group]] for group in range(groups)])

        shape = [first, second, *(int(size) for size in constant.shape[2:])]
        change_input(model, self.node, 1, DerivedValues(shape, np.dtype(constant.dtype), sliced))


@dataclass(frozen=True, eq=False)
class Sizes:
    """Entries of a constant that holds sizes shrink with the channels.

    Attributes:
        node: the reader.
        index: which input.
        entries: position in the constant -> labels of the axis whose size stands there.
    """

    node: Node
    index: int
    entries: Mapping[int, LabelArray]

    def concerned(self) -> list[LabelArray]:
        """The labels it depends on."""
        return list(self.entries.values())

    def apply(self, model: Model, keep: Keep) -> None:
        """Make the change."""
        old = self.node.inputs[self.index]
        values = np.array(constant_array(known_constant(old)))
        flat = values.reshape(-1)
        for position, labels in self.entries.items():
            flat[position] = int(keep(labels).sum())
        change_input(model, self.node, self.index, values)


@dataclass(frozen=True, eq=False)
class Entries:
    """Entries of a computed shape become constants.

    Attributes:
        node: the reader.
        index: which input.
        count: number of entries.
        given: position -> labels of the axis whose size stands there, or the size itself.
        counted: labels of axes from whose lengths these entries are computed.
    """

    node: Node
    index: int
    count: int
    given: Mapping[int, LabelArray | int]
    counted: Sequence[LabelArray]

    def concerned(self) -> list[LabelArray]:
        """The labels it depends on."""
        return [*self.counted, *(value for value in self.given.values() if not isinstance(value, int))]

    def apply(self, model: Model, keep: Keep) -> None:
        """Make the change."""
        name = f"{self.node.name}.shape"
        parts, nodes = self._parts(model, name)
        for position, value in self.given.items():
            size = value if isinstance(value, int) else int(keep(value).sum())
            parts[position] = model.add_constant(f"{name}.{position}", np.array([size], np.int64))
        whole = model.new_tensor(name, np.dtype(np.int64))
        nodes.append(Node("Concat", name, {"axis": 0}, parts, [whole]))
        replace_input(self.node, self.index, whole)
        editor = Editor(model)
        editor.insert_before(self.node, nodes)
        editor.commit()

    def _parts(self, model: Model, name: str) -> tuple[list[Tensor], list[Node]]:
        """Every entry as a tensor of its own; those of a concatenation of single entries are that already."""
        old = self.node.inputs[self.index]
        if old.inputs and old.inputs[0].op == "Concat" and len(old.inputs[0].inputs) == self.count:
            return list(old.inputs[0].inputs), []
        parts: list[Tensor] = []
        nodes: list[Node] = []
        for position in range(self.count):
            parts.append(model.new_tensor(f"{name}.entry{position}", np.dtype(np.int64)))
            if position not in self.given:
                picked = model.add_constant(f"{name}.position{position}", np.array([position], np.int64))
                nodes.append(Node("Gather", parts[-1].name, {"axis": 0}, [old, picked], [parts[-1]]))
        return parts, nodes


@dataclass(frozen=True, eq=False)
class Indices:
    """Constant positions on an axis move up behind channels that go; those of channels that go are dropped.

    Attributes:
        node: a Gather.
        index: which input holds the positions.
        labels: labels of the axis that they point into.
    """

    node: Node
    index: int
    labels: LabelArray

    def concerned(self) -> list[LabelArray]:
        """The labels it depends on."""
        return [self.labels]

    def apply(self, model: Model, keep: Keep) -> None:
        """Make the change."""
        kept = keep(self.labels)
        if kept.all():
            return
        values = np.array(constant_array(known_constant(self.node.inputs[self.index])))
        positions = np.where(values < 0, values + kept.size, values)
        moved = np.cumsum(kept) - 1
        left = positions[kept[positions]] if values.ndim else positions
        change_input(model, self.node, self.index, np.asarray(moved[left], values.dtype))


@dataclass(frozen=True, eq=False)
class Attribute:
    """An attribute that counts channels, or lists such counts.

    Attributes:
        node: its owner.
        name: its name.
        counted: labels that are counted for it, or several of them for a list.
        is_list: whether it is a list.
        divisor: what the count is divided by.
    """

    node: Node
    name: str
    counted: tuple[LabelArray, ...]
    is_list: bool = False
    divisor: int = 1

    def concerned(self) -> list[LabelArray]:
        """The labels it depends on."""
        return list(self.counted)

    def apply(self, model: Model, keep: Keep) -> None:
        """Make the change."""
        counts = [int(keep(labels).sum()) // self.divisor for labels in self.counted]
        set_attribute(self.node, self.name, counts if self.is_list else counts[0])


@dataclass(frozen=True, eq=False)
class Unread:
    """An optional input that says nothing is left out.

    Attributes:
        node: the reader.
        index: which input.
        labels: the channels along it.
    """

    node: Node
    index: int
    labels: LabelArray

    def concerned(self) -> list[LabelArray]:
        """The labels it depends on."""
        return [self.labels]

    def apply(self, _model: Model, _keep: Keep) -> None:
        """Make the change."""
        replace_input(self.node, self.index, Variable.empty())


@dataclass(frozen=True, eq=False)
class Picked:
    """Of a computed input the positions that stay are picked in front of the node.

    Attributes:
        node: the reader.
        index: which input.
        axes: axis of the input -> labels of its positions.
    """

    node: Node
    index: int
    axes: Mapping[int, LabelArray]

    def concerned(self) -> list[LabelArray]:
        """The labels it depends on."""
        return list(self.axes.values())

    def apply(self, model: Model, keep: Keep) -> None:
        """Make the change."""
        tensor = self.node.inputs[self.index]
        nodes: list[Node] = []
        for axis, labels in self.axes.items():
            kept = keep(labels)
            if kept.all():
                continue
            name = f"{tensor.name}.kept{axis}"
            picked = model.new_tensor(name, tensor.dtype)
            positions = model.add_constant(f"{name}.positions", np.flatnonzero(kept).astype(np.int64))
            nodes.append(Node("Gather", name, {"axis": axis}, [tensor, positions], [picked]))
            tensor = picked
        replace_input(self.node, self.index, tensor)
        editor = Editor(model)
        editor.insert_before(self.node, nodes)
        editor.commit()


@dataclass(frozen=True, eq=False)
class SplitSizes:
    """The sizes of a Split's results, wherever they stand."""

    node: Node
    parts: tuple[LabelArray, ...]

    def concerned(self) -> list[LabelArray]:
        """The labels it depends on."""
        return list(self.parts)

    def apply(self, model: Model, keep: Keep) -> None:
        """Make the change."""
        counts = [int(keep(labels).sum()) for labels in self.parts]
        if len(set(counts)) == 1 and not _gives_sizes(self.node):
            return
        if model.opset < _SPLIT_INPUT_OPSET:
            set_attribute(self.node, "split", counts)
            return
        if "num_outputs" in self.node.attrs:
            drop_attributes(self.node, ("num_outputs",))
        sizes = model.add_constant(f"{self.node.name}.split", np.array(counts, np.int64))
        if len(self.node.inputs) > 1:
            replace_input(self.node, 1, sizes)
        else:
            self.node.inputs.append(sizes)


_SPLIT_INPUT_OPSET = 13


def _gives_sizes(node: Node) -> bool:
    return "split" in node.attrs or (len(node.inputs) > 1 and not node.inputs[1].is_empty())


@dataclass(frozen=True, eq=False)
class Range:
    """A Slice along an axis of channels: its bounds move, and become a Gather's positions where steps are left out.

    Attributes:
        node: the Slice, with constant bounds in inputs.
        axis: the axis.
        labels: labels of that axis before slicing.
        positions: what it takes, in order.
        entry: where in its bounds this axis stands.
    """

    node: Node
    axis: int
    labels: LabelArray
    positions: NDArray[np.int64]
    entry: int

    def concerned(self) -> list[LabelArray]:
        """The labels it depends on."""
        return [self.labels]

    def apply(self, model: Model, keep: Keep) -> None:
        """Make the change."""
        kept = keep(self.labels)
        if kept.all():
            return
        moved = np.cumsum(kept) - 1
        taken = moved[self.positions[kept[self.positions]]]
        for index, value in ((1, int(taken[0])), (2, int(taken[-1]) + 1), (4, 1)):
            if index < len(self.node.inputs):
                values = np.array(constant_array(known_constant(self.node.inputs[index])))
                values.reshape(-1)[self.entry] = value
                change_input(model, self.node, index, values)


def change_input(model: Model, node: Node, index: int, values: Array | DerivedValues) -> Constant:
    """Give one input of one node new constant values; other readers keep theirs."""
    old: Tensor = node.inputs[index]
    constant = model.rewrite_constant(old, values)
    replace_input(node, index, constant)
    return constant
