"""Writes images of every kind that a folder may hold, and beside each what Pillow reads: the bytes of RGB in NAME.rgb and
width and height in list.txt. Arguments: the folder, and photographs."""

import pathlib
import sys

import numpy as np
from PIL import Image, ImageOps

folder = pathlib.Path(sys.argv[1])
photographs = [Image.open(path).convert("RGB") for path in sys.argv[2:]]
names = []
high_bytes = {}


def save(name, image, **options):
    image.save(folder / name, **options)
    names.append(name)


def with_orientation(number):
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


for i, photograph in enumerate(photographs):
    small = photograph.resize((211, 143))
    odd = photograph.resize((67, 45))
    for subsampling in (0, 1, 2):
        save(f"jpeg_{i}_{subsampling}.jpg", photograph, quality=90, subsampling=subsampling)
        save(f"jpeg_odd_{i}_{subsampling}.jpg", odd, quality=75, subsampling=subsampling)
    save(f"progressive_{i}.jpg", small, quality=60, progressive=True)
    save(f"grey_{i}.jpg", small.convert("L"), quality=85)
    save(f"cmyk_{i}.jpg", small.convert("CMYK"), quality=85)
    for number in range(1, 9):
        save(f"turned_{i}_{number}.jpg", odd, quality=90, exif=with_orientation(number))
    save(f"turned_{i}.png", odd, exif=with_orientation(6))
    save(f"turned_{i}.webp", odd, exif=with_orientation(8))
    save(f"rgb_{i}.png", small)
    save(f"grey_{i}.png", small.convert("L"))
    save(f"palette_{i}.png", small.convert("P"))
    save(f"palette16_{i}.png", small.quantize(16))
    save(f"palette_transparent_{i}.png", small.convert("P"), transparency=3)
    save(f"rgba_{i}.png", Image.merge("RGBA", [*small.split(), small.convert("L")]))
    save(f"la_{i}.png", Image.merge("LA", [small.convert("L"), small.convert("L")]))
    save(f"one_bit_{i}.png", small.convert("1"))
    save(f"transparent_{i}.png", small, transparency=(0, 0, 0))
    deep = np.asarray(small.convert("L")).astype(np.uint16) * 257 + 13
    save(f"grey16_{i}.png", Image.fromarray(deep))
    # The high byte, where Pillow's conversion would cut all values off at 255.
    high_bytes[f"grey16_{i}.png"] = Image.fromarray((deep >> 8).astype(np.uint8))
    save(f"lossy_{i}.webp", small, quality=80)
    save(f"lossless_{i}.webp", small, lossless=True)
    save(f"alpha_{i}.webp", Image.merge("RGBA", [*small.split(), small.convert("L")]), quality=80)
    save(f"animated_{i}.webp", small, save_all=True, append_images=[odd.resize(small.size)], quality=80)

with open(folder / "list.txt", "w") as lines:
    for name in names:
        image = high_bytes.get(name, ImageOps.exif_transpose(Image.open(folder / name))).convert("RGB")
        (folder / f"{name}.rgb").write_bytes(np.asarray(image).tobytes())
        lines.write(f"{name} {image.width} {image.height}\n")
