"""Running a model over the same feeds again and again, each time on from what was kept of the time before.

Layers are fitted one stage after the other, and each stage runs the model again, of which only what lies behind the
former stage has changed. So the tensors alive there are kept, and the next run begins with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TypeAlias

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper

from amct_onnx.analyse.feeds import Feed
from amct_onnx.analyse.segments import inputs_alone, is_repeated, read_by
from amct_onnx.graph import BuiltModel
from amct_onnx.graph.weights import Array
from amct_onnx.runtime import InferenceSession, InputSpec, Part, array_outputs, fetch, input_specs, open_session

KEPT_BYTES = 2**27
"""What is kept of all feeds of one model at most; feeds of which there is no room run from further back."""

_Kind: TypeAlias = tuple[str, str, int]
"""Name, numpy type and rank of a tensor."""


def alive_before(proto: ModelProto, made: AbstractSet[str]) -> frozenset[str]:
    """What is computed before the first node that makes some tensor of `made`, and read there or later."""
    numbers = (index for index, node in enumerate(proto.graph.node) if not made.isdisjoint(node.output))
    return alive_at(proto, next(numbers, 0))


def alive_at(proto: ModelProto, number: int) -> frozenset[str]:
    """What is computed before the node of this number, and read there or later, or given out."""
    before, behind = proto.graph.node[:number], proto.graph.node[number:]
    computed = {name for node in before if not is_repeated(node) for name in node.output if name}
    read = {info.name for info in proto.graph.output}.union(*(read_by(node) for node in behind))
    return frozenset(computed & read)


def part_between(proto: ModelProto, known: Collection[_Kind], wanted: Iterable[str]) -> Part:
    """The nodes that make some tensors when others are known already.

    Args:
        proto: the model, which may lack the bytes of its weights.
        known: the other tensors.
        wanted: the tensors to make.
    """
    graph = proto.graph
    given = {name for name, _, _ in known}
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output}
    outputs = [ValueInfoProto(name=name) for name in wanted]
    waiting, read, numbers = [info.name for info in outputs], set[str](), set[int]()
    while waiting:
        name = waiting.pop()
        index = makers.get(name)
        if index is not None and name not in given and index not in numbers:
            numbers.add(index)
            waiting.extend(read_by(graph.node[index]))
        read.add(name)
    fed = [info for info in graph.input if info.name in read and info.name not in given]
    fed += [_declared(*kind) for kind in sorted(known) if kind[0] in read]
    infos = [info for info in graph.value_info if info.name in read - given]
    return Part([graph.node[index] for index in sorted(numbers)], fed, outputs, infos, read)


def _kinds(tensors: Mapping[str, Array]) -> frozenset[_Kind]:
    return frozenset((name, array.dtype.str, array.ndim) for name, array in tensors.items())


def _declared(name: str, dtype: str, rank: int) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [None] * rank)


class Resumed:
    """One model in several walks over the same feeds.

    Between walks it may change, but not in what makes the tensors that were kept.

    Attributes:
        kept: key of a feed -> tensors that the next walk goes on from.
        feeds: the most feeds that a walk so far has held.
    """

    def __init__(self, kept: Mapping[bytes, Feed] | None = None) -> None:
        """Begin from the inputs, or from what was kept of another model that makes the same of them.

        Args:
            kept: :attr:`kept` of the other model.
        """
        self.kept = dict(kept or {})
        self.feeds = 0
        self._room = KEPT_BYTES - sum(_nbytes(tensors) for tensors in self.kept.values())
        self._sessions: dict[frozenset[_Kind], InferenceSession | None] = {}

    def begin(
        self,
        model: ModelProto | BuiltModel,
        base_dir: Path | None,
        wanted: Collection[str],
        keep: Collection[str] | None = None,
    ) -> None:
        """Begin a walk.

        Args:
            model: the model as it is now.
            base_dir: folder of external weights of a ModelProto.
            wanted: tensors that :meth:`run` gives.
            keep: tensors that the next walk goes on from; none of them for the inputs, None for where this one begins.
        """
        self._model, self._base_dir = model, base_dir
        self._wanted, self._keep = frozenset(wanted), None if keep is None else frozenset(keep)
        self._sessions.clear()

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What has to be fed."""
        alone = inputs_alone(skeleton_of(self._model))
        return input_specs(open_session(self._model, base_dir=self._base_dir, part=alone))

    def run(self, feed: Feed, key: bytes) -> dict[str, Array]:
        """What is wanted of one feed, and what it was made from, by name; it may not be kept.

        Args:
            feed: the inputs.
            key: by which the feed is known again in the next walk, see :func:`feed_key`.
        """
        kept = self.kept.get(key, {})
        kinds = _kinds(kept)
        if kinds not in self._sessions:
            self._sessions[kinds] = self._opened(kinds)
        shown = {**feed, **kept}
        if session := self._sessions[kinds]:
            shown |= _fetched(session, shown)
        if self._keep is not None and self._keep <= shown.keys():
            self._store(key, {name: shown[name] for name in self._keep})
        return shown

    def _opened(self, kinds: frozenset[_Kind]) -> InferenceSession | None:
        """The session that makes what is wanted; None where all of it is known already."""
        keep = self._keep or frozenset()
        session = self._maker_of(self._wanted | keep, kinds)
        if session and not keep <= {*array_outputs(session), *(name for name, _, _ in kinds)}:
            # A sequence, or a type that numpy has not, cannot be fed again.
            return self._maker_of(self._wanted, kinds)
        return session

    def _maker_of(self, wanted: frozenset[str], kinds: frozenset[_Kind]) -> InferenceSession | None:
        proto = skeleton_of(self._model)
        names = wanted - {name for name, _, _ in kinds} - {info.name for info in proto.graph.input}
        if not names:
            return None
        part = part_between(proto, kinds, sorted(names))
        return open_session(self._model, base_dir=self._base_dir, part=part, lean=True)

    def _store(self, key: bytes, tensors: Feed) -> None:
        room = self._room + _nbytes(self.kept.get(key, {})) - _nbytes(tensors)
        if room >= 0:
            self.kept[key] = {name: np.array(array) for name, array in tensors.items()}
            self._room = room


def feed_key(feed: Feed) -> bytes:
    """A digest of a feed: those of equal values have the same, wherever they stand, as data may be shuffled anew."""
    found = hashlib.sha256()
    for name, array in sorted(feed.items()):
        found.update(repr((name, array.dtype.str, array.shape)).encode())
        # An array of strings holds pointers.
        found.update(repr(array.tolist()).encode() if array.dtype == np.object_ else np.ascontiguousarray(array).data)
    return found.digest()


def skeleton_of(model: ModelProto | BuiltModel) -> ModelProto:
    """The model, perhaps without the bytes of its weights."""
    return model.skeleton if isinstance(model, BuiltModel) else model


def _fetched(session: InferenceSession, known: Feed) -> Feed:
    names = [node.name for node in session.get_outputs()]
    made = fetch(session, names, {node.name: known[node.name] for node in session.get_inputs()})
    return dict(zip(names, made, strict=True))


def _nbytes(tensors: Feed) -> int:
    return sum(array.nbytes for array in tensors.values())
