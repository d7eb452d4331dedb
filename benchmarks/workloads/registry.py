"""The workloads, by name."""

from __future__ import annotations

from benchmarks.workloads.base import Workload
from benchmarks.workloads.captcha_crnn import CaptchaCrnn
from benchmarks.workloads.minilm import Minilm
from benchmarks.workloads.mnist_digits import MnistMobilenet, MnistResnet
from benchmarks.workloads.mobilenet_v2 import MobilenetV2
from benchmarks.workloads.ppocrv4_rec import Ppocrv4Rec
from benchmarks.workloads.rapid_orientation import RapidOrientation

WORKLOADS: dict[str, type[Workload]] = {
    workload.name: workload
    for workload in (
        MnistMobilenet,
        MnistResnet,
        MobilenetV2,
        Ppocrv4Rec,
        RapidOrientation,
        CaptchaCrnn,
        Minilm,
    )
}
