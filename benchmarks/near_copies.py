"""How many changed copies of photos `etag check` finds, and how many different photos it takes for copies.

    python benchmarks/near_copies.py FOLDER [--every 2]

First the groups among the photos themselves: look at them, they may be copies or not. Photos that are in no group are
then changed (every second one), in memory, and looked for among all of these photos.
"""

import argparse
import io
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from etag.app.near_copies import near_copies
from etag.data.decode import inspect
from etag.data.folders import list_images
from measure import print_table

Change = Callable[[Image.Image], Image.Image]


def scaled(factor: float) -> Change:
    return lambda image: image.resize((round(factor * image.width), round(factor * image.height)))


def cropped(share: float, chance: random.Random) -> Change:
    """Cut off this share of each side, somewhere."""

    def cut(image: Image.Image) -> Image.Image:
        width, height = round((1 - share) * image.width), round((1 - share) * image.height)
        left, top = chance.randint(0, image.width - width), chance.randint(0, image.height - height)
        return image.crop((left, top, left + width, top + height))

    return cut


def changes() -> dict[str, tuple[Change, int]]:
    """What is done to a photo, and the quality with which it is saved."""
    chance = random.Random(0)
    small = cropped(0.05, chance)
    return {
        "JPEG, quality 50": (lambda image: image, 50),
        "JPEG, quality 20": (lambda image: image, 20),
        "half the size": (scaled(0.5), 85),
        "a quarter of the size": (scaled(0.25), 85),
        "1.7 times the size": (scaled(1.7), 85),
        "20 % brighter": (lambda image: ImageEnhance.Brightness(image).enhance(1.2), 85),
        "gray": (lambda image: image.convert("L"), 85),
        "3 % of each side cropped": (cropped(0.03, chance), 85),
        "5 % of each side cropped": (cropped(0.05, chance), 85),
        "the same, at half the size, quality 50": (lambda image: scaled(0.5)(small(image)), 50),
        "10 % of each side cropped": (cropped(0.1, chance), 85),
        "20 % of each side cropped": (cropped(0.2, chance), 85),
        "mirrored": (ImageOps.mirror, 85),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=2, help="change every so manyth photo")
    options = parser.parse_args()
    files = list_images(options.folder)
    photos = np.stack([inspect(file)[0] for file in files])
    groups = near_copies(photos)
    for group in groups:
        print(f"nearly the same: {' ~ '.join(files[row] for row in group)}.")
    print(f"{len(files)} photos, {len(groups)} groups of near copies.\n")
    alone = sorted(set(range(len(files))) - {row for group in groups for row in group})
    chosen = list(range(0, len(alone), options.every))
    rows = []
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "changed.jpg"
        for name, (change, quality) in changes().items():
            copies = []
            for place in chosen:
                with Image.open(files[alone[place]]) as image:
                    buffer = io.BytesIO()
                    change(image.convert("RGB")).save(buffer, "JPEG", quality=quality)
                file.write_bytes(buffer.getvalue())
                copies.append(inspect(file)[0])
            found = near_copies(np.concatenate([photos[alone], np.stack(copies)]))
            right = [[place, len(alone) + number] for number, place in enumerate(chosen)]
            true = sum(group in right for group in found)
            share = f"{true / len(chosen):.1%} ({true} of {len(chosen)})"
            rows.append({"change": name, "found": share, "other groups": len(found) - true})
    print_table(rows)


if __name__ == "__main__":
    main()
