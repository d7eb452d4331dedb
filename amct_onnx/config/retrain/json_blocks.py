"""The blocks of one layer in a retrain config in JSON -> what they ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from amct_onnx.config.json_members import MemberReader
from amct_onnx.config.json_text import Value
from amct_onnx.config.retrain.bounds import BITS, no_width, out_of_bounds
from amct_onnx.config.retrain.json_keys import (
    DATA_ALGORITHM,
    DATA_CONFIG,
    DATA_KEYS,
    FILTER,
    FILTER_ALGORITHM,
    FILTER_KEYS,
    N_OUT_OF_M,
    PRUNE_CONFIG,
    SELECTIVE,
    SELECTIVE_ALGORITHM,
    SELECTIVE_KEYS,
    WEIGHT_ALGORITHMS,
    WEIGHT_CONFIG,
    WEIGHT_KEYS,
)
from amct_onnx.config.retrain.options import DataQuant, FilterPruning, Pruning, SelectivePruning, WeightQuant


class JsonBlockReader(MemberReader):
    """Reads blocks; what is wrong with them is collected in ``findings``."""

    def data(self, value: Value, layer: str) -> DataQuant:
        """``retrain_data_config``."""
        members, found = self._read(value, DATA_CONFIG, layer, DATA_KEYS)
        self._one_of(members, found, "algo", (DATA_ALGORITHM,), layer)
        self._bounded(members, found, ("clip_max", "clip_min"), layer)
        for given, missing in (("clip_max", "clip_min"), ("clip_min", "clip_max")):
            if given in members and missing not in members:
                self.fault(members[given].line, layer, f"{given} stands without {missing}; give both or neither")
        return DataQuant(
            bits=self._bits(members, found, "activations", layer),
            clip_max=_number(found.get("clip_max")),
            clip_min=_number(found.get("clip_min")),
            fixed_min=found.get("fixed_min"),
        )

    def weight(self, value: Value, layer: str) -> WeightQuant:
        """``retrain_weight_config``."""
        members, found = self._read(value, WEIGHT_CONFIG, layer, WEIGHT_KEYS)
        self._one_of(members, found, "algo", WEIGHT_ALGORITHMS, layer)
        return WeightQuant(
            algorithm=found.get("algo", WEIGHT_ALGORITHMS[0]),
            bits=self._bits(members, found, "weights", layer),
            channel_wise=found.get("channel_wise"),
        )

    def pruning(self, value: Value, layer: str) -> Pruning:
        """``regular_prune_config``; ``prune_type`` says which keys it has."""
        kinds = self.typed(value, PRUNE_CONFIG, dict, layer) or {}
        kind = self.typed(kinds.get("prune_type"), "prune_type", str, layer)
        if "prune_type" not in kinds:
            self.fault(value.line, layer, f"prune_type is missing in {PRUNE_CONFIG}; add {FILTER} or {SELECTIVE}")
        elif kind is not None:
            self._one_of(kinds, {"prune_type": kind}, "prune_type", (FILTER, SELECTIVE), layer)
        return self._selective(value, layer) if kind == SELECTIVE else self._filters(value, layer, kind)

    def _filters(self, value: Value, layer: str, kind: str | None) -> FilterPruning:
        # Of a kind that is not known its keys are not, either.
        keys = FILTER_KEYS if kind == FILTER else {**FILTER_KEYS, **SELECTIVE_KEYS}
        members, found = self._read(value, PRUNE_CONFIG, layer, keys)
        if kind == FILTER:
            self._one_of(members, found, "algo", (FILTER_ALGORITHM,), layer)
            self._bounded(members, found, ("prune_ratio",), layer)
            if "prune_ratio" not in members:
                self.fault(value.line, layer, f"prune_ratio is missing; {FILTER_ALGORITHM} needs it: add it")
        return FilterPruning(
            ratio=float(found.get("prune_ratio", 0.0)), ascend_optimized=found.get("ascend_optimized", True)
        )

    def _selective(self, value: Value, layer: str) -> SelectivePruning:
        members, found = self._read(value, PRUNE_CONFIG, layer, SELECTIVE_KEYS)
        self._one_of(members, found, "algo", (SELECTIVE_ALGORITHM,), layer)
        self._one_of(members, found, "n_out_of_m_type", N_OUT_OF_M, layer)
        self._bounded(members, found, ("update_freq",), layer)
        default = SelectivePruning()
        return SelectivePruning(
            n_out_of_m=found.get("n_out_of_m_type", default.n_out_of_m),
            update_freq=found.get("update_freq", default.update_freq),
        )

    def _read(
        self, value: Value, what: str, layer: str, keys: Mapping[str, type]
    ) -> tuple[dict[str, Value], dict[str, Any]]:
        """The known members of a block, and the data of those that are of their type."""
        members = self.members(value, what, layer, keys)
        typed = {name: self.typed(member, name, keys[name], layer) for name, member in members.items()}
        return members, {name: data for name, data in typed.items() if data is not None}

    def _one_of(
        self, members: Mapping[str, Value], found: Mapping[str, Any], key: str, known: Iterable[str], layer: str
    ) -> None:
        names = tuple(known)
        if key in found and found[key] not in names:
            rule = f"it is one of {', '.join(names)}" if len(names) > 1 else f"it is {names[0]}"
            self.fault(members[key].line, layer, f'{key} is "{found[key]}", but {rule}; correct it')

    def _bounded(self, members: Mapping[str, Value], found: Mapping[str, Any], keys: Iterable[str], layer: str) -> None:
        for key in keys:
            if message := out_of_bounds(key, found.get(key)):
                self.fault(members[key].line, layer, message)

    def _bits(self, members: Mapping[str, Value], found: Mapping[str, Any], what: str, layer: str) -> int:
        name = found.get("dst_type")
        if message := no_width(name, what):
            self.fault(members["dst_type"].line, layer, message)
            return 8
        return BITS[name or "INT8"]


def _number(value: float | None) -> float | None:
    """As a float, since JSON may write 6 for 6.0."""
    return None if value is None else float(value)
