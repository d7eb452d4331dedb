"""The flags that say what calibration data is and how it is read."""

from __future__ import annotations

import argparse
import enum
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amct_onnx.analyse.bin_feeds import BIN_ENDINGS, BinFeeds, parse_data_types, parse_folders
from amct_onnx.analyse.feed_files import find_feeds
from amct_onnx.analyse.feed_source import FeedSource, files_in
from amct_onnx.analyse.image_feeds import IMAGE_ENDINGS, Color, ImageFeeds, ImageOptions, Layout
from amct_onnx.analyse.input_shapes import parse_input_shape
from amct_onnx.cli.flags import refuse_flags
from amct_onnx.errors import UsageError

_SIZE = re.compile(r"0{,3}[1-9][0-9]{,4}")
_ARRAY_ENDINGS = (".npz", ".npy")
_BIN_FLAGS = ("input_shape", "data_types")
IMAGE_FLAGS = ("mean", "std", "resize", "crop", "color", "layout", "no_scale", "batch")


def add_data_flags(parser: argparse.ArgumentParser, *, takes_sizes: bool = False) -> None:
    """Flags beside ``--data`` for raw files and images.

    Args:
        parser: of one command.
        takes_sizes: whether the command takes sizes of inputs without data, too.
    """
    sizes = "; without --data sizes to take for free ones" if takes_sizes else ""
    raw = parser.add_argument_group("data: folders of raw .bin files (one folder per input, with ; between)")
    shapes = f'shape of each input, in order: "x:1,3,224,224;ids:1,16"{sizes}'
    raw.add_argument("--input-shape", metavar="LIST", help=shapes)
    raw.add_argument("--data-types", metavar="LIST", help='type of each input: "float32;int64" (default: float32)')
    images = parser.add_argument_group("data: a folder of images (png, jpg, bmp, webp; steps in this order)")
    images.add_argument("--resize", metavar="SIZE", help="256: shorter side; 256x192: width x height (default: none)")
    images.add_argument("--crop", metavar="SIZE", help="cut 224 or 224x192 out of the middle (default: none)")
    images.add_argument("--color", choices=[color.value for color in Color], help="channels (default: RGB)")
    images.add_argument(
        "--no-scale", action="store_true", default=None, help="leave pixels from 0 to 255 instead of 0 to 1"
    )
    images.add_argument("--mean", metavar="LIST", help="one or three numbers: 0.485,0.456,0.406 (default: 0)")
    images.add_argument("--std", metavar="LIST", help="one or three numbers: 0.229,0.224,0.225 (default: 1)")
    images.add_argument("--layout", choices=[layout.value for layout in Layout], help="(default: NCHW)")
    images.add_argument("--batch", type=int, metavar="N", help="images per feed (default: 1)")


def feeds_from(
    arguments: argparse.Namespace, *, needing: Sequence[str] = (*_BIN_FLAGS, *IMAGE_FLAGS)
) -> FeedSource | None:
    """The feeds that the flags name; None without ``--data``.

    Args:
        arguments: the flags.
        needing: flags that mean nothing without it.

    Raises:
        UsageError: flags that do not belong together, or whose text means nothing.
        DataError: the data is not there, or cannot be read that way.
    """
    if not arguments.data:
        refuse_flags(arguments, needing, "belongs to --data, which is not given")
        return None
    folders = parse_folders(arguments.data)
    path = Path(arguments.data)
    if _is_raw(path, folders, has_shapes=bool(arguments.input_shape)):
        refuse_flags(arguments, IMAGE_FLAGS, "concerns images, not raw files")
        return _raw(arguments, folders)
    refuse_flags(arguments, _BIN_FLAGS, "concerns folders of .bin files")
    if _holds(path, IMAGE_ENDINGS):
        return ImageFeeds(path, _image_options(arguments))
    refuse_flags(arguments, IMAGE_FLAGS, f"concerns images, and {path} holds none")
    return find_feeds(path)


def _is_raw(path: Path, folders: tuple[Path, ...], *, has_shapes: bool) -> bool:
    if (len(folders) > 1 and not path.exists()) or _holds(path, BIN_ENDINGS):
        return True
    # Shapes speak of raw files, unless the data is plainly of another kind.
    return has_shapes and not any(_holds_only(path, endings) for endings in (_ARRAY_ENDINGS, IMAGE_ENDINGS))


def _holds_only(path: Path, endings: tuple[str, ...]) -> bool:
    if path.is_dir():
        return bool(files_in(path, endings)) and not files_in(path, BIN_ENDINGS)
    return path.suffix.lower() in endings


def _holds(path: Path, endings: tuple[str, ...]) -> bool:
    if path.is_dir():
        # Arrays come first where a folder holds pictures besides.
        return bool(files_in(path, endings)) and not files_in(path, _ARRAY_ENDINGS)
    return path.suffix.lower() in endings


def _raw(arguments: argparse.Namespace, folders: tuple[Path, ...]) -> BinFeeds:
    if not arguments.input_shape:
        raise UsageError('raw .bin files hold no shapes; give them: --input-shape "name:1,3,224,224"')
    shapes = parse_input_shape(arguments.input_shape)
    types = parse_data_types(arguments.data_types or ";".join(["float32"] * len(shapes)))
    return BinFeeds(folders, shapes, types)


def _image_options(arguments: argparse.Namespace) -> ImageOptions:
    chosen: dict[str, Any] = {
        "resize": None if arguments.resize in (None, "none") else _size("--resize", arguments.resize),
        "crop": None if arguments.crop in (None, "none") else _pair(_size("--crop", arguments.crop)),
        "color": _member(Color, arguments.color),
        "layout": _member(Layout, arguments.layout),
        "mean": None if arguments.mean is None else _numbers("--mean", arguments.mean),
        "std": None if arguments.std is None else _numbers("--std", arguments.std),
        "scale": not arguments.no_scale,
        "batch": arguments.batch,
    }
    return ImageOptions(**{name: value for name, value in chosen.items() if value is not None})


def _member(kind: type[enum.Enum], value: str | None) -> enum.Enum | None:
    return None if value is None else kind(value)


def _size(flag: str, text: str) -> int | tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(_SIZE.fullmatch(part) for part in parts):
        raise UsageError(f"{flag}: '{text}' is no size; write 224, or width x height as 224x192")
    return int(parts[0]) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _numbers(flag: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{flag}: '{text}' is no list of numbers; write 0.5, or 0.485,0.456,0.406") from error
