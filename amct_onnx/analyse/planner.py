"""From a prepared model and data to a plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from amct_onnx.analyse.algorithms import Bounds, choose_activation
from amct_onnx.analyse.algorithms.uniform import half_precision, scale_and_offset, signal_to_noise_db
from amct_onnx.analyse.body_statistics import obstacle_to_watching, statistics_key, watch_bodies
from amct_onnx.analyse.calibration_model import result_key, state_key
from amct_onnx.analyse.configurable import within_limits
from amct_onnx.analyse.engine import Calibration, calibrate
from amct_onnx.analyse.input_wishes import InputWish, find_inputs, in_source
from amct_onnx.analyse.obstacles import (
    Obstacle,
    accumulator_obstacle,
    data_obstacle,
    rounds_to_zero,
    scale_obstacle,
    weight_obstacle,
)
from amct_onnx.analyse.options import PlanOptions
from amct_onnx.analyse.product_scales import MINIMUM_PAIR_DB, ProductScales, factor_options
from amct_onnx.analyse.recurrent_scales import (
    complete_entry,
    computed_states,
    input_scale,
    joined_states,
    recurrent_obstacle,
    state_scale,
)
from amct_onnx.analyse.statistics import Distribution, TensorStatistics
from amct_onnx.analyse.walk import Progress, check_enough
from amct_onnx.analyse.weight_scales import WeightScales, fit_scales
from amct_onnx.analyse.whole_steps import Shift, find_shift, in_whole_steps
from amct_onnx.config import ActivationOptions
from amct_onnx.errors import ArgumentError, DataError, NothingToCompressError
from amct_onnx.findings import by_reason
from amct_onnx.graph import Model, Tensor, constant_array
from amct_onnx.graph.op_table import multiplies_computed, resolve_constant
from amct_onnx.passes.base import Refusal
from amct_onnx.passes.fold_gemm import FoldGemm
from amct_onnx.passes.locate import Layer, Survey, locate_layers
from amct_onnx.passes.qdq_bodies import body_results
from amct_onnx.passes.qdq_placement import Placement, output_bounds, place_pairs, runs_on_integers, scale_source
from amct_onnx.passes.recurrent import RecurrentLayer
from amct_onnx.record import LayerRecord, Record, RecordHeader
from amct_onnx.rewrite import Prepared
from amct_onnx.rewrite.products import second_names
from amct_onnx.stopwatch import Stopwatch

_NO_PAIRS = Placement((), ())
_NOT_REACHED = Obstacle("it lies inside a control-flow body, and calibration never came to it", "give data that does")


@dataclass(frozen=True)
class Plan:
    """A compression plan.

    Attributes:
        record: quantization of the layers, keyed by layer name.
        tensors: quantization of what only the QDQ form quantizes, keyed by tensor name.
        refusals: candidates that stay float, with the reason.
        calibration: the statistics it rests on.
        seconds: what calibrating and choosing scales took.
    """

    record: Record
    tensors: Record
    refusals: tuple[Refusal, ...] = ()
    calibration: Calibration = field(default_factory=lambda: Calibration({}, 0), compare=False, repr=False)
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)


def make_plan(
    prepared: Prepared, data: Any | Calibration, options: PlanOptions, *, sha256: str, progress: Progress | None = None
) -> Plan:
    """Calibrate and choose every scale.

    Args:
        prepared: the model; not changed.
        data: calibration feeds (:func:`amct_onnx.analyse.feeds.iterate_feeds`), or statistics of an earlier walk.
        options: the choices.
        sha256: digest of the source model, kept in the record's header.
        progress: wraps the iterator of feeds.

    Raises:
        NothingToCompressError: no layer can be quantized, as the model or the data are.
        ArgumentError: a layer to skip does not exist.
        DataError: the data does not fit the model.
    """
    watch = Stopwatch()
    model = prepared.model.copy()
    survey = _survey(model, options)
    FoldGemm({layer.name for layer in survey.layers}).run(model)
    prepared = replace(prepared, model=model)
    found = _located(model, options)
    options = within_limits(options, found.layers)
    inside = [layer for layer in found.all_layers if layer.in_body]
    results = body_results(model, found.layers) if options.qdq_tensors else {}
    chooser = _Chooser(prepared, found.outside_bodies(), options)
    keep_values = options.needs_values
    if isinstance(data, Calibration):
        calibration = data
        _check_statistics(data, chooser.observed, sha256, keep_values=keep_values)
        check_enough(data.feeds, options.feeds)
    else:
        walked = calibrate(
            model.proto,
            model.base_dir,
            chooser.observed,
            data,
            origins={name: prepared.origin_of(name) for name in chooser.observed},
            keep_values=keep_values,
            progress=progress,
            limit=options.feeds,
        )
        calibration = replace(walked, source_sha256=sha256)
        if inside and obstacle_to_watching(data) is None:
            seen = watch_bodies(
                prepared,
                inside,
                options,
                data,
                feeds=calibration.feeds,
                sha256=sha256,
                results=results,
                progress=progress,
            )
            calibration = replace(calibration, statistics={**calibration.statistics, **seen})
    watch.lap("calibrating")
    inner = _Inner(inside, results, obstacle_to_watching(data))
    plan = chooser.plan(calibration, survey, RecordHeader(source_sha256=sha256), inner)
    watch.lap("choosing scales")
    return replace(plan, record=_with_skips(plan.record, prepared.skip_fusion), seconds=watch.seconds)


def _with_skips(record: Record, names: Collection[str]) -> Record:
    """The record with ``skip_fusion`` on these nodes, so that it is applied to the graph that it was made for.

    A node that stays float gets an entry that says nothing else.
    """
    skips = {name: replace(record.layers.get(name, LayerRecord()), skip_fusion=True) for name in sorted(names)}
    return replace(record, layers={**record.layers, **skips})


def _check_statistics(given: Calibration, wanted: Sequence[str], sha256: str, *, keep_values: bool) -> None:
    if given.source_sha256 != sha256:
        raise DataError("the statistics were taken from another model; calibrate this one")
    missing = [name for name in wanted if name not in given.statistics]
    if missing:
        raise DataError(
            f"the statistics lack {len(missing)} of the tensors, like '{missing[0]}'; calibrate with the same output "
            "forms, the same layers skipped, and --matmul-inputs where that is given"
        )
    if keep_values and not all(given.statistics[name].keep_values for name in wanted):
        raise DataError("the statistics hold extremes only, enough for minmax; calibrate again for another method")


def check_names(model: Model, given: Iterable[str], argument: str) -> None:
    """Whether the model has nodes of the names that a user gave.

    Raises:
        ArgumentError: it has not; `argument` says as what the name was given.
    """
    names = {node.name for graph in model.graphs() for node in graph.nodes}
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, n=1, cutoff=0.4)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise ArgumentError(
                f"{{{argument}}}: '{{name}}' is not in the model; {{hint}}`amct_onnx inspect` shows the names",
                name=name,
                hint=hint,
            )


def _located(model: Model, options: PlanOptions) -> Survey:
    wanted = options.matmul_inputs and "MatMul" not in options.skip_types
    products = {node.name for node in model.nodes() if wanted and multiplies_computed(node)}
    return locate_layers(model, options.skip, products=products)


def _survey(model: Model, options: PlanOptions) -> Survey:
    check_names(model, options.skip, "skip")
    survey = _located(model, options)
    if not survey.all_layers and not options.tensors:
        raise _nothing_left(survey.refusals)
    return survey


def _nothing_left(refusals: Sequence[Refusal]) -> NothingToCompressError:
    reasons = by_reason(
        (f"'{r.node}' ({r.op_type})", f"{r.reason} (remedy: {r.remedy})" if r.remedy else r.reason) for r in refusals
    )
    return NothingToCompressError(
        "no layer of the model can be quantized; "
        + (reasons or "it has no Conv, Gemm, MatMul, AveragePool, LSTM, GRU or RNN")
    )


@dataclass(frozen=True)
class _Inner:
    """What lies inside bodies.

    Attributes:
        layers: the layers.
        results: layer name -> its result, for those whose kernel writes integers.
        unwatched: why nothing was seen of them.
    """

    layers: Sequence[Layer | RecurrentLayer]
    results: Mapping[str, Tensor]
    unwatched: Obstacle | None


class _Chooser:
    """Chooses scales for one model once its statistics are there."""

    def __init__(self, prepared: Prepared, survey: Survey, options: PlanOptions) -> None:
        self._prepared = prepared
        self._layers = survey.layers
        self._recurrent = survey.recurrent
        self._options = options
        self._pairs = pairs = self._placement(self._layers)
        self._tensors = _tensors_by_name(prepared.model)
        wishes, against = find_inputs(prepared.model, self._layers, options.tensors)
        self._inputs, unseen = in_source(prepared.model, wishes)
        self._against_inputs = (*against, *unseen)
        single = [wish.site.tensor.name for wish in self._inputs]
        seconds = second_names(self._layers)
        read = [*(layer.activation.name for layer in self._layers), *seconds.values()]
        for recurrent in self._recurrent:
            read += [recurrent.activation.name, *(tensor.name for tensor in computed_states(recurrent))]
        watched = [*read, *pairs.tensors, *single]
        self._source = {name: scale_source(self._tensors[name]).name for name in watched}
        self.observed: tuple[str, ...] = tuple(dict.fromkeys(self._source.values()))
        self._chosen: dict[tuple[str, ActivationOptions], tuple[float, int]] = {}
        shifts = {name: find_shift(self._tensors[name], pairs.tensors) for name in self.observed}
        self._shifts = {name: shift for name, shift in shifts.items() if shift is not None}
        self._wanted = self._wishes(seconds)
        self._weights = WeightScales(prepared, options)

    def _wishes(self, seconds: Mapping[str, str]) -> dict[str, ActivationOptions]:
        """How watched tensors are quantized: as a layer, a single input or a product (`seconds`) asks, in this order.

        What shares its scale with one of these is quantized alike.
        """
        options, source = self._options, self._source
        layers = [layer for layer in self._layers if layer.second is None]
        wishes = [(source[layer.activation.name], options.of(layer.name).activation) for layer in layers]
        wishes += [(source[wish.site.tensor.name], wish.activation) for wish in self._inputs]
        wishes += [(source[tensor], factor_options(options, name)) for name, tensor in seconds.items()]
        return dict(reversed(wishes))

    def plan(
        self,
        calibration: Calibration,
        survey: Survey,
        header: RecordHeader,
        inner: _Inner,
    ) -> Plan:
        """The plan."""
        entries: dict[str, LayerRecord] = {}
        products = self._products(calibration)
        refusals = [*survey.refusals, *self._against_inputs]
        for layer in (*self._layers, *self._recurrent, *inner.layers):
            if isinstance(layer, RecurrentLayer):
                chosen = self._recurrent_entry(layer, calibration, inner.unwatched)
            elif layer.in_body:
                chosen = self._body_entry(layer, calibration, inner.unwatched)
            elif layer.second is not None:
                chosen = products.entry(layer, layer.second)
            else:
                chosen = self._entry(layer, calibration)
            if isinstance(chosen, LayerRecord):
                entries[layer.name] = chosen
            else:
                refusals.append(Refusal(layer.name, layer.op_type, *chosen))
        layers = dict(entries)
        for wish in self._inputs:
            chosen = self._input_entry(wish, calibration, entries)
            if isinstance(chosen, LayerRecord):
                entries[wish.site.key] = chosen
            else:
                refusals.append(Refusal(wish.site.key, wish.site.node.op, *chosen))
        if not entries:
            raise _nothing_left(refusals)
        tensors, against = self._tensor_entries(self._remaining_pairs(layers), calibration)
        tensors.update(self._body_tensors(inner, calibration, entries))
        tensors.update(products.second_entries(layer for layer in self._layers if layer.name in layers))
        return Plan(
            Record(entries, header=header),
            Record(tensors, header=header),
            (*refusals, *against),
            calibration,
        )

    def _products(self, calibration: Calibration) -> ProductScales:
        def choose(name: str, wanted: ActivationOptions) -> tuple[float, int]:
            return self._activation(name, calibration, wanted)

        return ProductScales(self._options, calibration, self._source, choose)

    def _remaining_pairs(self, entries: Mapping[str, LayerRecord]) -> Placement:
        """The pairs that still pay when only the layers with an entry are quantized."""
        if not self._options.qdq_tensors or all(layer.name in entries for layer in self._layers):
            return self._pairs
        return self._placement([layer for layer in self._layers if layer.name in entries])

    def _placement(self, layers: Iterable[Layer]) -> Placement:
        if not self._options.qdq_tensors:
            return _NO_PAIRS
        on_integers = [layer for layer in layers if runs_on_integers(layer, self._bits(layer))]
        on_integers = [layer for layer in on_integers if layer.second is None]
        keep_float = self._prepared.multiplied | self._prepared.unseen
        return place_pairs(self._prepared.model, on_integers, keep_float=keep_float)

    def _bits(self, layer: Layer) -> int:
        return self._options.of(layer.name).activation.bits

    def _tensor_entries(
        self, pairs: Placement, calibration: Calibration
    ) -> tuple[dict[str, LayerRecord], list[Refusal]]:
        """Entries of what only the QDQ form quantizes, and what had better stay float there."""
        tensors: dict[str, LayerRecord] = {}
        refusals: list[Refusal] = []
        for name in pairs.tensors:
            against = self._against_pair(name, calibration)
            if against is None:
                tensors[name] = _tensor_entry(*self._activation(name, calibration))
            else:
                refusals.append(Refusal(name, "tensor", against, "none needed; other output forms are not concerned"))
        for name in pairs.constants:
            constant = self._constant(name)
            if constant is not None:
                tensors[name] = _tensor_entry(*constant)
        return tensors, refusals

    def _entry(self, layer: Layer, calibration: Calibration) -> LayerRecord | Obstacle:
        source = self._source[layer.activation.name]
        seen = calibration.statistics[source]
        obstacle = data_obstacle(seen, is_float=source not in calibration.not_float)
        if obstacle is not None:
            return obstacle
        options = self._options.of(layer.name)
        scale, offset = self._activation(layer.activation.name, calibration, options.activation)
        return self._with_weights(layer, seen, scale, offset)

    def _body_entry(self, layer: Layer, calibration: Calibration, unwatched: Obstacle | None) -> LayerRecord | Obstacle:
        seen = calibration.statistics.get(statistics_key(layer.name))
        if seen is None:
            return unwatched or _NOT_REACHED
        obstacle = data_obstacle(seen, is_float=True)
        if obstacle is not None:
            return obstacle
        wanted, bounds = self._options.of(layer.name).activation, Bounds(*output_bounds(layer.activation))
        return self._with_weights(layer, seen, *choose_activation(wanted, seen.distribution(), bounds=bounds))

    def _recurrent_entry(
        self, layer: RecurrentLayer, calibration: Calibration, unwatched: Obstacle | None
    ) -> LayerRecord | Obstacle:
        obstacle = recurrent_obstacle(layer, self._options)
        if obstacle is not None:
            return obstacle
        if layer.in_body:
            data, states = (calibration.statistics.get(key(layer.name)) for key in (statistics_key, state_key))
            if data is None:
                return unwatched or _NOT_REACHED
            chosen = input_scale(layer, data, self._options)
            seen = states or TensorStatistics()
        else:
            sources = [self._source[tensor.name] for tensor in computed_states(layer)]
            seen = joined_states(layer, [calibration.statistics[name] for name in sources], calibration.feeds)
            source = self._source[layer.activation.name]
            chosen = input_scale(
                layer, calibration.statistics[source], self._options, is_float=source not in calibration.not_float
            )
        state = state_scale(layer, seen, self._options)
        if isinstance(chosen, Obstacle):
            return chosen
        if isinstance(state, Obstacle):
            return state
        return complete_entry(layer, self._options, chosen, state)

    def _body_tensors(
        self, inner: _Inner, calibration: Calibration, entries: Mapping[str, LayerRecord]
    ) -> dict[str, LayerRecord]:
        """Results of quantized layers in bodies; one that another layer reads is quantized as that asks."""
        read = {id(layer.activation) for layer in inner.layers if layer.name in entries}
        wanted = replace(self._options.default.activation, bits=8)
        found: dict[str, LayerRecord] = {}
        for name, tensor in inner.results.items():
            seen = calibration.statistics.get(result_key(name))
            if name in entries and id(tensor) not in read and seen is not None and seen.count:
                bounds = Bounds(*output_bounds(tensor))
                found[tensor.name] = _tensor_entry(*choose_activation(wanted, seen.distribution(), bounds=bounds))
        return found

    def _with_weights(
        self, layer: Layer, seen: TensorStatistics, scale_d: float, offset_d: int
    ) -> LayerRecord | Obstacle:
        """The entry of a layer whose data input has this scale and offset."""
        options = self._options.of(layer.name)
        scale_d = half_precision(scale_d) if self._options.force_fp16 else scale_d
        weight, bias = self._weights.constants(layer)
        obstacle = scale_obstacle(scale_d, seen) or weight_obstacle(weight, bias)
        if obstacle is not None:
            return obstacle
        scale_w = fit_scales(layer, weight, bias, self._weights.choose(layer, weight), scale_d)
        return accumulator_obstacle(scale_w, scale_d) or LayerRecord(
            scale_d=scale_d,
            offset_d=offset_d,
            scale_w=tuple(scale_w.tolist()),
            offset_w=(0,) * scale_w.size,
            tensor_balance_factor=tuple(self._prepared.balance.get(layer.name, np.zeros(0)).tolist()),
            act_type=f"INT{options.activation.bits}",
            wts_type=None if layer.weight is None else f"INT{options.weight.bits}",
        )

    def _input_entry(
        self, wish: InputWish, calibration: Calibration, entries: Mapping[str, LayerRecord]
    ) -> LayerRecord | Obstacle:
        name = wish.site.tensor.name
        source = self._source[name]
        seen = calibration.statistics[source]
        obstacle = data_obstacle(seen, is_float=source not in calibration.not_float)
        if obstacle is not None:
            return obstacle
        if wish.site.key in entries:
            return Obstacle("a layer has the name that its record entry would have", "rename that layer")
        scale_d, offset_d = self._activation(name, calibration, wish.activation)
        scale_d = half_precision(scale_d) if self._options.force_fp16 else scale_d
        return scale_obstacle(scale_d, seen) or LayerRecord(
            scale_d=scale_d, offset_d=offset_d, is_tensor_quantize=True, act_type=f"INT{wish.activation.bits}"
        )

    def _activation(
        self, name: str, calibration: Calibration, wanted: ActivationOptions | None = None
    ) -> tuple[float, int]:
        """Scale and offset of a tensor: those of the tensor it shares its scale with.

        Without `wanted`, for what only the QDQ form quantizes, as the first layer that reads it asks.
        """
        source = self._source[name]
        options = wanted or replace(self._wanted.get(source, self._options.default.activation), bits=8)
        if (source, options) not in self._chosen:
            seen = calibration.statistics[source].distribution()
            chosen = choose_activation(options, seen, bounds=Bounds(*output_bounds(self._tensors[source])))
            if source in self._shifts and options.bits == 8 and not options.symmetric:
                chosen = self._in_whole_steps(chosen, self._shifts[source], seen, calibration)
            self._chosen[source, options] = chosen
        return self._chosen[source, options]

    def _in_whole_steps(
        self, chosen: tuple[float, int], shift: Shift, seen: Distribution, calibration: Calibration
    ) -> tuple[float, int]:
        name = shift.before.name
        before = calibration.statistics[self._source[name]]
        if not (before.keep_values and before.count):
            return chosen
        quant_before = self._activation(name, calibration)
        return in_whole_steps(*chosen, shift.number, seen, before.distribution(), quant_before)

    def _against_pair(self, name: str, calibration: Calibration) -> str | None:
        """Why a tensor that only the QDQ form quantizes had better stay float there."""
        seen = calibration.statistics[self._source[name]]
        if not seen.count:
            return "calibration saw no finite value of it"
        scale, offset = self._activation(name, calibration)
        if rounds_to_zero(scale, max(-seen.low, seen.high)):
            return "its values are too small for 8 bits and would all become zero; it stays float in QDQ"
        if not seen.keep_values:
            return None
        fidelity = signal_to_noise_db(seen.distribution(), scale, offset, bits=8)
        if fidelity >= MINIMUM_PAIR_DB:
            return None
        return f"8 bits represent its values too badly (signal-to-noise ratio {fidelity:.0f} dB); it stays float in QDQ"

    def _constant(self, name: str) -> tuple[float, int] | None:
        """A constant operand is covered completely, or not at all when it holds infinite values."""
        constant = resolve_constant(self._tensors[name])
        values = constant_array(constant)
        if not np.isfinite(values).all():
            return None
        low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
        return scale_and_offset(low, high, bits=8, symmetric=self._options.default.activation.symmetric)


def _tensor_entry(scale: float, offset: int) -> LayerRecord:
    return LayerRecord(scale_d=scale, offset_d=offset, act_type="INT8")


def _tensors_by_name(model: Model) -> Mapping[str, Tensor]:
    tensors = {tensor.name: tensor for tensor in (*model.graph.inputs, *model.graph.initializers.values())}
    tensors.update({tensor.name: tensor for node in model.graph.nodes for tensor in node.outputs})
    return tensors
