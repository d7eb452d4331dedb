"""DMQ: move the spread between a layer's input channels from its activations to its weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from amct_onnx.analyse.algorithms.uniform import FLOAT_EPSILON

_LEAST = float(np.nextafter(np.float32(FLOAT_EPSILON), np.float32(1)))
_MOST = float(np.nextafter(np.float32(1 / FLOAT_EPSILON), np.float32(1)))


def balance_factors(
    act_max: NDArray[np.floating], weight_max: NDArray[np.floating], *, migration_strength: float = 0.5
) -> NDArray[np.float32]:
    """``f = act_max^m / weight_max^(1 - m)`` per input channel; activations are divided by f, weights multiplied.

    A channel that is zero on one side takes the factor that puts its other side level with the largest balanced
    channel of that side; one that is zero on both, or with nothing to compare to, takes 1.

    Args:
        act_max: largest absolute activation, [channels_in].
        weight_max: largest absolute weight over all outputs, [channels_in].
        migration_strength: m, in [0.2, 0.8]; the larger, the more moves to the weights.

    Returns:
        float32 [channels_in], within (epsilon, 1 / epsilon) of float32.
    """
    acts, weights = act_max.astype(np.float64), weight_max.astype(np.float64)
    has_act, has_weight = acts >= FLOAT_EPSILON, weights >= FLOAT_EPSILON
    both = has_act & has_weight
    factors = np.ones(acts.shape)
    factors[both] = acts[both] ** migration_strength / weights[both] ** (1 - migration_strength)
    if both.any():
        level_act, level_weight = (acts[both] / factors[both]).max(), (weights[both] * factors[both]).max()
        only_weight, only_act = has_weight & ~has_act, has_act & ~has_weight
        factors[only_weight] = level_weight / weights[only_weight]
        factors[only_act] = acts[only_act] / level_act
    return np.clip(factors, _LEAST, _MOST).astype(np.float32)
