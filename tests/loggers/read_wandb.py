"""Prints what W&B's own reader finds in a .wandb file, as JSON, and what `wandb sync` lists.

    read_wandb.py RUN_FOLDER/wandb/offline-run-TIME-ID/run-ID.wandb
"""

import hashlib
import base64
import json
import sys

import wandb

wandb._assert_is_internal_process = True
from wandb.proto import wandb_internal_pb2  # noqa: E402
from wandb.sdk.internal.datastore import DataStore  # noqa: E402
from wandb.sdk.internal.sender import SendManager  # noqa: E402


def items(updates):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in updates}


class SystemRows(SendManager):
    """What W&B's client sends to the server for the System panel."""

    def __init__(self):
        self._fs = self
        self._run = None
        self.rows = []

    def __bool__(self):
        return True

    def push(self, filename, row):
        self.rows.append(json.loads(row))


system = SystemRows()
store = DataStore()
store.open_for_scan(sys.argv[1])
found = {"kinds": [], "history": [], "config": {}, "summary": {}, "files": [], "artifacts": [], "numbers": []}
while (data := store.scan_data()) is not None:
    record = wandb_internal_pb2.Record()
    record.ParseFromString(data)
    kind = record.WhichOneof("record_type")
    found["kinds"].append(kind)
    found["numbers"].append(record.num)
    if kind == "run":
        run = system._run = record.run
        found["run"] = {"id": run.run_id, "project": run.project, "entity": run.entity, "name": run.display_name,
                        "group": run.run_group, "tags": list(run.tags), "notes": run.notes}
    elif kind == "config":
        found["config"].update(items(record.config.update))
    elif kind == "history":
        row = items(record.history.item)
        assert row["_step"] == record.history.step.num
        found["history"].append({key: repr(value) if isinstance(value, float) else value for key, value in row.items()
                                 if key not in ("_timestamp", "_runtime")})
    elif kind == "stats":
        system.send_stats(record)
    elif kind == "summary":
        found["summary"].update({key: repr(value) for key, value in items(record.summary.update).items()})
    elif kind == "files":
        found["files"] += [file.path for file in record.files.files]
    elif kind == "metric":
        found["metric"] = [record.metric.glob_name, record.metric.step_metric, record.metric.options.step_sync]
    elif kind == "exit":
        found["exit"] = record.exit.exit_code
    elif kind == "artifact":
        # The digests as W&B's client computes them.
        artifact = wandb.Artifact(record.artifact.name, type=record.artifact.type)
        for entry in record.artifact.manifest.contents:
            content = open(entry.local_path, "rb").read()
            assert entry.size == len(content)
            assert entry.digest == base64.b64encode(hashlib.md5(content).digest()).decode()
            artifact.add_file(entry.local_path, name=entry.path)
        assert artifact.digest == record.artifact.digest, (artifact.digest, record.artifact.digest)
        found["artifacts"].append({"name": record.artifact.name, "type": record.artifact.type,
                                   "aliases": list(record.artifact.aliases),
                                   "metadata": json.loads(record.artifact.metadata),
                                   "files": [entry.path for entry in record.artifact.manifest.contents]})
found["system"] = system.rows
print(json.dumps(found))
