"""Calibration feeds from image files, prepared as a model was trained: resize, crop, scale, mean, std, layout."""

from __future__ import annotations

import enum
import importlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amct_onnx.analyse.feed_source import FeedSource, files_in
from amct_onnx.errors import ArgumentError, DataError, UsageError

logger = logging.getLogger(__name__)

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


class Color(enum.Enum):
    """Channels of the array, in order."""

    RGB = "RGB"
    BGR = "BGR"
    GRAY = "GRAY"


class Layout(enum.Enum):
    """Order of the array's dimensions."""

    NCHW = "NCHW"
    NHWC = "NHWC"


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How an image becomes an array, in the order in which it is done.

    Attributes:
        resize: (width, height); one number for the length of the shorter side, with the other in proportion; None to
            leave the size.
        crop: (width, height) cut from the middle; None for no cut.
        color: channels.
        scale: whether pixels are divided by 255 before `mean` and `std`.
        mean: subtracted, one number or one per channel.
        std: divided by, one number or one per channel.
        layout: order of dimensions.
        batch: images per feed; images that do not fill the last feed are left out.
    """

    resize: int | tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    color: Color = Color.RGB
    scale: bool = True
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: Layout = Layout.NCHW
    batch: int = 1

    def __post_init__(self) -> None:
        channels = 1 if self.color is Color.GRAY else 3
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, channels):
                wanted = "1 number" if channels == 1 else "1 or 3 numbers"
                raise ArgumentError(f"{{{name}}} has {len(values)} numbers; {self.color.value} images take {wanted}")
            if not np.isfinite(values).all():
                raise ArgumentError(f"{{{name}}} holds a number that is not finite; correct it")
        if not all(self.std):
            raise ArgumentError("{std} holds 0, by which nothing can be divided; correct it")
        if self.scale and max(map(abs, self.mean)) > 1:
            raise ArgumentError(
                "{mean} holds {value:g}, but pixels are scaled to [0, 1] first; give {mean} and {std} in that range, "
                "or switch scaling off (--no-scale)",
                value=max(self.mean, key=abs),
            )
        for name, size in (("resize", self.resize), ("crop", self.crop)):
            if size is not None and min((size,) if isinstance(size, int) else size) < 1:
                raise ArgumentError(f"{{{name}}} is {size}; a size is 1 pixel or more")
        if self.batch < 1:
            raise ArgumentError(f"{{batch}} is {self.batch}; a feed holds at least one image")


class ImageFeeds(FeedSource):
    """One float32 array per feed, for models of one input.

    Attributes:
        options: how images become arrays.
    """

    def __init__(self, source: str | os.PathLike[str], options: ImageOptions | None = None) -> None:
        """List the images of a folder, or take one image.

        Raises:
            UsageError: Pillow is not installed.
            DataError: there are no images, or fewer than one feed takes.
        """
        self.options = options or ImageOptions()
        self._pillow = _pillow()
        path = Path(source)
        found = [path] if path.is_file() else files_in(path, IMAGE_ENDINGS)
        if not found:
            raise DataError(f"{path}: the folder holds no image ({', '.join(IMAGE_ENDINGS)}); give another")
        batch = self.options.batch
        whole = len(found) // batch * batch
        if not whole:
            raise DataError(f"{path}: {len(found)} images do not fill one feed of {batch}; lower the batch size")
        if whole < len(found):
            logger.warning("%s: the last %d images do not fill a feed and are left out", path, len(found) - whole)
        self._files = found[:whole]

    @property
    def files(self) -> Sequence[Path]:
        """Every image, by feed."""
        return self._files

    def label(self, number: int) -> str:
        """The images of one feed, first and last."""
        images = self._batch(number)
        return str(images[0]) if len(images) == 1 else f"{images[0]} to {images[-1].name}"

    def __len__(self) -> int:
        return len(self._files) // self.options.batch

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        return (self._array(self._batch(number)) for number in range(len(self)))

    def _batch(self, number: int) -> Sequence[Path]:
        return self._files[number * self.options.batch : (number + 1) * self.options.batch]

    def _array(self, paths: Sequence[Path]) -> NDArray[np.float32]:
        images = [self._image(path) for path in paths]
        for path, image in zip(paths, images, strict=True):
            if image.shape != images[0].shape:
                raise DataError(
                    f"{path}: {_size(image)} pixels, but {paths[0].name} in the same feed has {_size(images[0])}; give "
                    "all one size with --resize or --crop"
                )
        stacked = np.stack(images)
        return np.ascontiguousarray(stacked.transpose(0, 3, 1, 2) if self.options.layout is Layout.NCHW else stacked)

    def _image(self, path: Path) -> NDArray[np.float32]:
        """One image as float32 [height, width, channels]."""
        mode = "L" if self.options.color is Color.GRAY else "RGB"
        try:
            with self._pillow.open(path) as image:
                pixels = self._cropped(self._resized(self._converted(image, mode)), path)
                array = np.asarray(pixels, np.float32)
        except DataError:
            raise
        except Exception as error:
            # Damaged images fail in as many ways as there are formats.
            raise DataError(
                f"{path}: cannot be read as an image ({error or type(error).__name__}); replace or remove it"
            ) from error
        array = array.reshape(*array.shape[:2], -1)
        if self.options.color is Color.BGR:
            array = array[:, :, ::-1]
        array = array / np.float32(255) if self.options.scale else array
        mean, std = np.array(self.options.mean, np.float32), np.array(self.options.std, np.float32)
        # What overflows is counted and reported with the statistics.
        with np.errstate(over="ignore"):
            return np.asarray((array - mean) / std, np.float32)

    def _converted(self, image: Any, mode: str) -> Any:
        """An image of 8 bits per channel in another mode; of 16 bits the higher 8."""
        if image.mode.startswith("I"):
            # Pillow takes the high byte of 16-bit colours as well, but cuts 16-bit gray off at 255.
            image = self._pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return image.convert(mode)

    def _resized(self, image: Any) -> Any:
        resize = self.options.resize
        if resize is None:
            return image
        if isinstance(resize, int):
            width, height = image.size
            short = min(width, height)
            resize = (resize * width // short, resize * height // short)
        return image.resize(resize, self._pillow.Resampling.BILINEAR)

    def _cropped(self, image: Any, path: Path) -> Any:
        if self.options.crop is None:
            return image
        width, height = self.options.crop
        if width > image.width or height > image.height:
            raise DataError(
                f"{path}: {image.width}x{image.height} pixels are too few to cut out {width}x{height}; resize it first "
                "(--resize)"
            )
        left, top = round((image.width - width) / 2), round((image.height - height) / 2)
        return image.crop((left, top, left + width, top + height))


def _size(image: NDArray[np.float32]) -> str:
    return f"{image.shape[1]}x{image.shape[0]}"


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise UsageError("reading images needs Pillow: pip install Pillow") from error
