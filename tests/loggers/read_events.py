"""Prints as JSON what TensorBoard's own reader finds in a folder of event files.

usage: python read_events.py FOLDER

Numbers are printed as Python's repr, since JSON has no NaN.
"""

import json
import sys

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


def main():
    everything = {name: 0 for name in ("scalars", "histograms", "tensors")}
    accumulator = event_accumulator.EventAccumulator(sys.argv[1], size_guidance=everything)
    accumulator.Reload()
    tags = accumulator.Tags()

    found = {"scalars": {}, "histograms": {}, "text": {}, "hparams": {}, "status": None}
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
    print(json.dumps(found))


main()
