"""Prints what MLflow's own client finds in a run, as JSON.

    read_mlflow.py TRACKING_URI EXPERIMENT
"""

import json
import sys
import tempfile

from mlflow import set_tracking_uri
from mlflow.tracking import MlflowClient

set_tracking_uri(sys.argv[1])
client = MlflowClient(sys.argv[1])
experiment = client.get_experiment_by_name(sys.argv[2])
result = []
for run in client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"]):
    run_id = run.info.run_id
    history = {}
    for key in run.data.metrics:
        points = sorted(client.get_metric_history(run_id, key), key=lambda point: point.step)
        history[key] = [[point.step, repr(point.value)] for point in points]
    artifacts = {}

    def walk(path):
        for item in client.list_artifacts(run_id, path):
            if item.is_dir:
                walk(item.path)
            else:
                with tempfile.TemporaryDirectory() as folder:
                    with open(client.download_artifacts(run_id, item.path, folder), "rb") as file:
                        artifacts[item.path] = file.read().decode("latin-1")

    walk("")
    result.append({"id": run_id, "name": run.info.run_name, "status": run.info.status, "params": run.data.params,
                   "tags": {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")},
                   "history": history, "artifacts": artifacts})
print(json.dumps(result))
