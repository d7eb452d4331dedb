"""The workloads, by name."""

from __future__ import annotations

from benchmarks.workloads.base import Workload
from benchmarks.workloads.minilm import Minilm
from benchmarks.workloads.mnist_mobilenet import MnistMobilenet
from benchmarks.workloads.mobilenet_v2 import MobilenetV2
from benchmarks.workloads.ppocrv4_rec import Ppocrv4Rec

WORKLOADS: dict[str, type[Workload]] = {
    workload.name: workload for workload in (MnistMobilenet, MobilenetV2, Ppocrv4Rec, Minilm)
}
