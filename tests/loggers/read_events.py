"""Prints as JSON what TensorBoard's own reader finds in a folder of event files.

usage: python read_events.py FOLDER

Numbers are printed as Python's repr, since JSON has no NaN.
"""

import json
import sys
import zlib

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.util import tensor_util


def plugin_tags(accumulator, plugin):
    try:
        return accumulator.PluginTagToContent(plugin)
    except KeyError:
        return {}


def hparam_value(value):
    return repr(getattr(value, value.WhichOneof("kind")))


def png_rows(data):
    """The bytes of each row of a PNG without interlacing, its filters undone (PNG specification, section 9)."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, compressed = 8, b""
    while at < len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        content = data[at + 8 : at + 8 + length]
        assert zlib.crc32(kind + content) == int.from_bytes(data[at + 8 + length : at + 12 + length], "big")
        if kind == b"IHDR":
            width, height = int.from_bytes(content[:4], "big"), int.from_bytes(content[4:8], "big")
            assert content[8] == 8 and content[12] == 0
            channels = {0: 1, 2: 3, 6: 4}[content[9]]
        elif kind == b"IDAT":
            compressed += content
        at += 12 + length
    raw, stride = zlib.decompress(compressed), width * channels
    rows, above = [], [0] * stride
    for y in range(height):
        kind, *row = raw[y * (stride + 1) : (y + 1) * (stride + 1)]
        for x in range(stride):
            left = row[x - channels] if x >= channels else 0
            corner = above[x - channels] if x >= channels else 0
            guess = left + above[x] - corner
            paeth = min((left, above[x], corner), key=lambda value: abs(guess - value))
            row[x] = (row[x] + [0, left, above[x], (left + above[x]) // 2, paeth][kind]) % 256
        rows.append(row)
        above = row
    return rows


def main():
    everything = {name: 0 for name in ("scalars", "histograms", "tensors", "images")}
    accumulator = event_accumulator.EventAccumulator(sys.argv[1], size_guidance=everything)
    accumulator.Reload()
    tags = accumulator.Tags()

    found = {"scalars": {}, "histograms": {}, "images": {}, "text": {}, "hparams": {}, "status": None}
    for tag in tags["scalars"]:
        found["scalars"][tag] = [[event.step, repr(event.value)] for event in accumulator.Scalars(tag)]
    for tag in tags["histograms"]:
        found["histograms"][tag] = [
            {
                "step": event.step,
                "min": repr(event.histogram_value.min),
                "max": repr(event.histogram_value.max),
                "count": repr(event.histogram_value.num),
                "counted": repr(sum(event.histogram_value.bucket)),
            }
            for event in accumulator.Histograms(tag)
        ]
    for tag in tags["images"]:
        found["images"][tag] = [
            {
                "step": event.step,
                "width": event.width,
                "height": event.height,
                "rows": png_rows(event.encoded_image_string),
            }
            for event in accumulator.Images(tag)
        ]
    for tag in plugin_tags(accumulator, "text"):
        found["text"][tag] = [
            [event.step, tensor_util.make_ndarray(event.tensor_proto)[0].decode()]
            for event in accumulator.Tensors(tag)
        ]
    hparams = plugin_tags(accumulator, hparams_metadata.PLUGIN_NAME)
    if hparams_metadata.SESSION_START_INFO_TAG in hparams:
        start = hparams_metadata.parse_session_start_info_plugin_data(hparams[hparams_metadata.SESSION_START_INFO_TAG])
        found["hparams"] = {name: hparam_value(value) for name, value in start.hparams.items()}
    if hparams_metadata.SESSION_END_INFO_TAG in hparams:
        end = hparams_metadata.parse_session_end_info_plugin_data(hparams[hparams_metadata.SESSION_END_INFO_TAG])
        found["status"] = end.status
    found["graph"] = [
        {
            "name": node.name,
            "op": node.op,
            "inputs": list(node.input),
            "device": node.device,
            "sizes": [[d.size for d in shape.dim] for shape in node.attr["_output_shapes"].list.shape],
        }
        for node in (accumulator.Graph().node if tags["graph"] else [])
    ]
    print(json.dumps(found))


main()
