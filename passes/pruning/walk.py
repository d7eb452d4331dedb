"""Follow channels through a graph, from the layers that make them to everything that reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from amct_onnx.graph.edit import replace_input
from amct_onnx.graph.model import Graph, Model, bodies_of, constant_array, with_bodies
from amct_onnx.graph.op_table import is_standard, resolve_constant
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.graph.weights import Array
from amct_onnx.passes.pruning.adjust import Adjustment, Slice
from amct_onnx.passes.pruning.axes import (
    Axis,
    Layout,
    has_labels,
    is_constant,
    labelled,
    labels_of,
    plain_axis,
    plain_layout,
    size_of,
)
from amct_onnx.passes.pruning.labels import LabelArray, Labels
from amct_onnx.passes.pruning.sizes import Size, Sizes, computed_sizes, constant_sizes, sizes_of_axes, total_size

_SHAPE_INPUTS = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0, "Resize": 3}
"""Operators whose rules look at every entry of the shape that they are given -> which input that is."""
_CARRYING = frozenset({"Loop", "Scan"})
"""Operators in whose bodies nobody sees what an input holds."""

Shapes = Mapping[str, Sequence[int | str | None]]


@dataclass(frozen=True, eq=False)
class Producer:
    """A layer that makes channels.

    Attributes:
        node: the layer.
        labels: those of its output channels.
        groups: equal blocks of channels from which as many must go.
    """

    node: Node
    labels: LabelArray
    groups: int = 1


@dataclass(frozen=True, eq=False)
class Reader:
    """A node on the way of channels, as a prune record names it.

    Attributes:
        node: the node.
        labels: the channels as it counts them: its inputs, or for what passes them on its results.
        groups: of a convolution that takes its inputs in groups.
        weight: which input holds the weights for them.
    """

    node: Node
    labels: LabelArray
    groups: int = 1
    weight: int = 1


@dataclass(frozen=True, eq=False)
class Balance:
    """Blocks of channels from which as many must go: labels [blocks, channels per block]."""

    labels: LabelArray


@dataclass
class Flow:
    """Everything that was found while following channels.

    Attributes:
        labels: the labels.
        producers: layers that make channels, in graph order.
        readers: nodes on the way of channels, in graph order.
        recurrences: recurrent layers, which read in every step the channels that they made in the last.
        adjustments: what has to change with them.
        balances: which blocks must stay of one size.
        approximate: nodes whose results change for other channels, too: name -> labels.
        tensors: the axes of the tensors along which channels run, by name.
        layouts: the same by ``id`` of the tensor, since a name may mean two tensors in bodies.
        loose: computed sizes that lost a reader, since they count channels and must not change with them.
    """

    labels: Labels = field(default_factory=Labels)
    producers: list[Producer] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    recurrences: list[Reader] = field(default_factory=list)
    adjustments: list[Adjustment] = field(default_factory=list)
    balances: list[Balance] = field(default_factory=list)
    approximate: dict[str, LabelArray] = field(default_factory=dict)
    tensors: dict[str, Layout] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    loose: list[Tensor] = field(default_factory=list)


class Walk:
    """One walk over a graph; rules use it to read and write what is known of tensors."""

    def __init__(
        self, model: Model, shapes: Shapes, declared: Shapes, kept: Mapping[str, str], rules: Mapping[str, Rule]
    ) -> None:
        """Begin.

        Args:
            model: a model with named nodes.
            shapes: sizes of every tensor, free ones with a number in place.
            declared: the same, free ones as None or a name.
            kept: layers whose channels all stay -> why.
            rules: what operators do.
        """
        self.model = model
        self.flow = Flow()
        self.kept = kept
        self._shapes = shapes
        self._declared = declared
        self._sizes: dict[int, Sizes] = {}
        self._frozen: dict[int, Constant] = {}
        self._shared: dict[int, Mapping[int, LabelArray]] = {}
        self._parts: list[tuple[LabelArray, str]] = []
        self._rules = rules
        self._in_bodies = _read_in_bodies(model.graph, rules)

    def follow_nodes(self, graph: Graph) -> None:
        """Let every node of a graph do with channels what its rule says."""
        for node in graph.nodes:
            if _is_constant(node):
                continue
            if not self.note_sizes(node):
                self._follow(node)
            for tensor in node.outputs:
                if id(tensor) in self._in_bodies:
                    self.fix(tensor, self._in_bodies[id(tensor)])

    def _follow(self, node: Node) -> None:
        rule = self._rules.get(node.op) if is_standard(node) else None
        self.freeze_sizes(node)
        if rule is None:
            self.fix_inputs(node, "pruning has no rule for this operator")
        else:
            rule(self, node)

    @property
    def labels(self) -> Labels:
        """All labels."""
        return self.flow.labels

    def layout(self, tensor: Tensor) -> Layout | None:
        """What is known of a tensor's axes; None when not even their number."""
        known = self.flow.layouts.get(id(tensor))
        if known is not None:
            return known
        shape = self.shape(tensor)
        return None if shape is None else plain_layout(shape)

    def shape(self, tensor: Tensor) -> tuple[int, ...] | None:
        """Sizes of a tensor's axes."""
        constant = resolve_constant(tensor)
        sizes = self._shapes.get(tensor.name) if constant is None else constant.shape
        known = [size for size in sizes or () if isinstance(size, int)]
        return tuple(known) if sizes is not None and len(known) == len(sizes) else None

    def fixed_axes(self, tensor: Tensor, rank: int) -> set[int]:
        """Which axes of a tensor have one length whatever is fed."""
        declared = self._declared.get(tensor.name) or ()
        return {axis for axis, size in enumerate(declared) if isinstance(size, int)} if len(declared) == rank else set()

    def set(self, tensor: Tensor, layout: Sequence[Axis]) -> None:
        """Say what the axes of a result are."""
        if any(map(has_labels, layout)):
            self.flow.layouts[id(tensor)] = tuple(layout)
            self.flow.tensors[tensor.name] = tuple(layout)

    def has_labels(self, tensor: Tensor) -> bool:
        """Whether channels run along one of its axes."""
        return id(tensor) in self.flow.layouts

    def axis_labels(self, tensor: Tensor, axis: int) -> LabelArray | None:
        """Labels along one axis of a tensor; None without."""
        layout = self.flow.layouts.get(id(tensor))
        return None if layout is None else labels_of(layout[axis], self.labels)

    def values(self, tensor: Tensor) -> Array | None:
        """Values of a constant; None when it is computed."""
        constant = resolve_constant(tensor)
        return None if constant is None else constant_array(constant)

    def sizes(self, tensor: Tensor) -> Sizes | None:
        """The sizes that a tensor holds, computed from shapes or constant."""
        return self._sizes.get(id(tensor)) or constant_sizes(tensor)

    def note_sizes(self, node: Node) -> bool:
        """Follow a node that computes sizes; False when it does anything else."""
        if node.op in ("Shape", "Size"):
            made = self._shape_sizes(node)
        elif any(id(tensor) in self._sizes for tensor in node.inputs):
            made = computed_sizes(node, self.sizes)
        else:
            return False
        if made is not None:
            self._sizes[id(node.outputs[0])] = made
        return made is not None

    def _shape_sizes(self, node: Node) -> Sizes | None:
        layout = self.layout(node.inputs[0])
        if layout is None:
            return None
        declared = self._declared.get(node.inputs[0].name) or [None] * len(layout)
        if len(declared) != len(layout):
            declared = [None] * len(layout)
        sizes = [self._length(axis, size) for axis, size in zip(layout, declared, strict=True)]
        if node.op == "Size":
            return total_size(sizes)
        begin, end = int(node.attrs.get("start", 0)), node.attrs.get("end")
        return sizes_of_axes(sizes[begin:end])

    def _length(self, axis: Axis, declared: int | str | None) -> Size:
        carrying = [factor for factor in axis if factor.labels is not None]
        value = declared if isinstance(declared, int) else size_of(axis) if is_constant(axis) else None
        if not carrying:
            return Size(value)
        channels = labels_of(axis, self.labels) if len(carrying) == 1 else None
        return Size(value, channels, tuple(factor.labels for factor in carrying if factor.labels is not None))

    def freeze_sizes(self, node: Node) -> None:
        """Let a node read constants where it reads sizes that count channels and are the same whatever is fed.

        The rules then see them, and what is no size (a scale made of the number of channels) stays as it is. Where
        the feed decides them, too, no constant can take their place, and these channels stay.
        """
        for index, tensor in enumerate(node.inputs):
            sizes = self._sizes.get(id(tensor))
            if index == _SHAPE_INPUTS.get(node.op) or sizes is None or not sizes.counted:
                continue
            if node.op in _CARRYING:
                self.fix(tensor, f"{node.op} '{node.name}': it carries on what is computed from their number")
                continue
            self.freeze(node, index)
            if node.inputs[index] is tensor:
                self.fix(
                    tensor, f"{node.op} '{node.name}': it reads '{tensor.name}', which is computed from their number"
                )

    def freeze(self, node: Node, index: int) -> None:
        """Let a node read a constant in place of sizes, where they are known."""
        tensor = node.inputs[index]
        values = self._sizes[id(tensor)].values()
        if values is None:
            return
        if id(tensor) not in self._frozen:
            self._frozen[id(tensor)] = self.model.add_constant(f"{tensor.name}.size", values)
            self.flow.loose.append(tensor)
        replace_input(node, index, self._frozen[id(tensor)])

    def keep_one(self, node: Node, labels: LabelArray) -> None:
        """Of a part that is read by itself something must be left."""
        self._parts.append((labels, f"{node.op} '{node.name}': one channel of each part stays"))

    def settle_parts(self) -> None:
        """Choose what is left of parts."""
        self.labels.keep_one_of_each(self._parts)

    def follow_constant(self, node: Node, index: int, *, leave: int | None = None) -> Layout | None:
        """Let a constant input follow the channels that its positions meet later on.

        Args:
            node: the reader.
            index: which input.
            leave: the axis along which positions do not stay what they are.

        Returns:
            Its layout; None when the input is computed.
        """
        constant = resolve_constant(node.inputs[index])
        if constant is None or not constant.shape:
            return None
        rank = len(constant.shape)
        sizes = [int(size) for size in constant.shape]
        followed = {
            axis: self.labels.fresh(size)
            for axis, size in enumerate(sizes)
            if size > 1 and (leave is None or axis != leave % rank)
        }
        self.slice(node, index, followed)
        return tuple(labelled(followed[axis]) if axis in followed else plain_axis(sizes[axis]) for axis in range(rank))

    def fix(self, tensor: Tensor, reason: str) -> None:
        """Let all channels of a tensor stay, and those that it counts."""
        for axis in self.flow.layouts.get(id(tensor), ()):
            for factor in axis:
                if factor.labels is not None:
                    self.labels.fix(factor.labels, reason)
        if id(tensor) in self._sizes:
            for labels in self._sizes[id(tensor)].counted:
                self.labels.fix(labels, reason)

    def fix_inputs(self, node: Node, reason: str) -> None:
        """Let all channels that a node reads stay."""
        for tensor in node.inputs:
            self.fix(tensor, f"{node.op} '{node.name}': {reason}")

    def adjust(self, adjustment: Adjustment) -> None:
        """Note what has to change with the channels."""
        self.flow.adjustments.append(adjustment)

    def slice(self, node: Node, index: int, axes: Mapping[int, LabelArray | None]) -> None:
        """Note that a constant input loses positions along these axes; a computed one cannot."""
        if index >= len(node.inputs) or node.inputs[index].is_empty():
            return
        found = {axis: labels for axis, labels in axes.items() if labels is not None}
        constant = resolve_constant(node.inputs[index])
        if constant is not None and len(constant.shape) > 1:
            self._share(node, constant, found)
        if not found:
            return
        if constant is None:
            for labels in found.values():
                self.labels.fix(labels, f"{node.op} '{node.name}': input {index} is computed and holds one value each")
            return
        self.adjust(Slice(node, index, found))

    def _share(self, node: Node, constant: Constant, axes: Mapping[int, LabelArray]) -> None:
        """A weight that several layers share loses the same positions for all of them, or it would be many weights."""
        before = self._shared.setdefault(id(constant), axes)
        if before is axes or _is_uniform(constant):
            return
        for axis in {*before, *axes}:
            first, second = before.get(axis), axes.get(axis)
            if first is not None and second is not None:
                self.labels.unite(first, second)
                continue
            for labels in (first, second):
                if labels is not None:
                    self.labels.fix(labels, f"{node.op} '{node.name}': it shares its weight with a layer without them")

    def produce(self, node: Node, count: int, groups: int = 1) -> LabelArray:
        """New channels of a layer."""
        labels = self.labels.fresh(count)
        self.flow.producers.append(Producer(node, labels, groups))
        if node.name in self.kept:
            self.labels.fix(labels, self.kept[node.name])
        if groups > 1:
            self.balance(labels, groups)
        return labels

    def balance(self, labels: LabelArray, groups: int) -> None:
        """Note that blocks of channels must stay of one size."""
        self.flow.balances.append(Balance(labels.reshape(groups, -1)))

    def read(self, node: Node, labels: LabelArray | None, groups: int = 1) -> None:
        """Note that a node lies on the way of channels."""
        if labels is not None:
            self.flow.readers.append(Reader(node, labels, groups))

    def unite_axes(self, node: Node, axes: Sequence[tuple[Axis, str]]) -> Axis:
        """Axes that meet position by position, as one; each with what it belongs to."""
        sizes = [axis for axis, _ in axes]
        carrying = [axis for axis in sizes if has_labels(axis)]
        if not carrying:
            return sizes[0]
        found = [labels_of(axis, self.labels) for axis in sizes]
        first = next(labels for labels in found if labels is not None)
        for labels, (_, what) in zip(found, axes, strict=True):
            if labels is None:
                self.labels.fix(first, f"{node.op} '{node.name}': it meets {what}, which is no layer's")
            elif labels is not first:
                self.labels.unite(first, labels)
        same = len(carrying) == len(sizes) and all(_alike(carrying[0], axis) for axis in carrying)
        return carrying[0] if same or len(carrying) == 1 else labelled(first)


def _is_uniform(constant: Constant) -> bool:
    """Whether all values are the same: exporters store such constants once, whoever reads them."""
    values = constant_array(constant)
    return bool((values == values.reshape(-1)[:1]).all())


def _alike(first: Axis, second: Axis) -> bool:
    """Whether two axes have the same factors, labels apart."""
    kinds = [[(factor.size, factor.labels is None) for factor in axis] for axis in (first, second)]
    return kinds[0] == kinds[1]


Rule = Callable[[Walk, Node], None]
"""What a node does with channels: reads the layouts of its inputs, says those of its results."""


def follow(
    model: Model,
    shapes: Shapes,
    rules: Mapping[str, Rule],
    *,
    declared: Shapes | None = None,
    kept: Mapping[str, str] | None = None,
) -> Flow:
    """Follow the channels of every layer of the main graph, and of branches.

    Args:
        model: a model with named nodes.
        shapes: sizes of every tensor, free ones with a number in place; what is not there cannot be followed.
        rules: what operators do.
        declared: what is known of sizes whatever is fed.
        kept: layers whose channels all stay -> why.
    """
    walk = Walk(model, shapes, declared or {}, kept or {}, rules)
    walk.follow_nodes(model.graph)
    for tensor in model.graph.outputs:
        walk.fix(tensor, f"it is the model's output '{tensor.name}'")
    walk.settle_parts()
    return walk.flow


def _is_constant(node: Node) -> bool:
    return bool(node.outputs) and resolve_constant(node.outputs[0]) is not None


def _read_in_bodies(graph: Graph, rules: Mapping[str, Rule]) -> dict[int, str]:
    """``id`` of every tensor that bodies without a rule read -> why its channels stay; branches have a rule."""
    found: dict[int, str] = {}
    for node in graph.control_nodes:
        bodies = list(bodies_of(node))
        if is_standard(node) and node.op in rules:
            for body in bodies:
                found.update(_read_in_bodies(body, rules))
            continue
        reason = f"{node.op} '{node.name}': its body reads it"
        for body in bodies:
            for inner in with_bodies(body):
                read = (*(tensor for reader in inner.nodes for tensor in reader.inputs), *inner.outputs)
                found.update((id(tensor), reason) for tensor in read)
    return found
