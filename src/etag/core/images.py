"""The form in which a network expects its images."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from etag.core.options import Options

Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True)
class Resize:
    """How an image of any shape becomes a square of `side` pixels. Without `crop` the whole image is squeezed into the
    square. With it, the shorter side is scaled to `side / crop` pixels, and the center is cut out."""

    side: int
    interpolation: Interpolation = "bilinear"
    crop: float | None = None

    @property
    def shorter_side(self) -> int:
        """The shorter side in pixels after scaling, before the center is cut out."""
        return self.side if self.crop is None else round(self.side / self.crop)

    def scaled_size(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) after scaling, before the center is cut out."""
        if self.crop is None:
            return self.side, self.side
        factor = self.shorter_side / min(width, height)
        return max(self.side, round(width * factor)), max(self.side, round(height * factor))


class ImageFormat(Options):
    """The images that pre-trained weights were trained on. It is part of the weights: other values make them worse."""

    size: PositiveInt = Field(description="side of the images in pixels")
    mean: tuple[float, ...] = Field(description="mean of each channel, for pixels between 0 and 1")
    std: tuple[PositiveFloat, ...] = Field(description="standard deviation of each channel")
    interpolation: Interpolation = Field("bilinear", description="how images are resized")
    crop: float | None = Field(
        None, gt=0, le=1, description="share of the shorter side that is left after cropping; null: nothing is cropped"
    )
