#!/bin/sh
# Quantize a model from the command line, calibrated with raw .bin files.
#
# Usage: sh run.sh [OUTPUTS]
set -eu
here=$(dirname "$0")
outputs=${1:-outputs}

python "$here/prepare_data.py" "$outputs/data"

amct_onnx calibration \
    --model "$outputs/data/mnist_mobilenet.onnx" \
    --save_path "$outputs/mnist_mobilenet" \
    --input_shape "image:50,1,28,28" \
    --data_dir "$outputs/data/image/" \
    --data_types "float32" \
    --batch_num 4
