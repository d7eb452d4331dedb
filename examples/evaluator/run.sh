#!/bin/sh
# Quantize a model from the command line, calibrated by an evaluator.
#
# Usage: sh run.sh [OUTPUTS]
set -eu
here=$(dirname "$0")
outputs=${1:-outputs}
model=$(python -c "from amct_onnx import demo; print(demo.load().model_path)")

amct_onnx calibration \
    --model "$model" \
    --save_path "$outputs/mnist_mobilenet" \
    --evaluator "$here/mnist_evaluator.py" \
    --batch_num 4

python "$here/mnist_evaluator.py" "$model" "$outputs/mnist_mobilenet_fake_quant_model.onnx"
