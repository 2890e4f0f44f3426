#!/usr/bin/env python3
"""The agent of Weights & Biases starts the example program as the page docs/sweeps.md says. Its server has no part in it."""

import json
import os
import re
import subprocess
import sys

from support import SOURCE, Skip, Training, expect_contains, expect_equal, main

# Takes what the server would send, as JSON, and starts the run with W&B's own agent.
AGENT = """
import json, sys
import yaml
from wandb.wandb_agent import Agent

sweep = yaml.safe_load(sys.argv[1])
agent = Agent(api=None, queue=None)
agent._sweep_command = sweep["command"]
values = json.loads(sys.argv[2])
assert set(sweep["parameters"]) <= set(values)
agent._command_run({"program": sweep["program"], "run_id": "first", "args": {name: {"value": value} for name, value in values.items()}})
sys.exit(agent._run_processes["first"].wait())
"""


def agent(workspace):
    """Numbers, Booleans, words, lists and mappings arrive as they were meant."""
    python = os.environ.get("LEVIN_TEST_PYTHON", str(SOURCE / ".deps/test-venv/bin/python"))
    found = subprocess.run([python, "-c", "import wandb, yaml"], capture_output=True, check=False) if os.path.exists(python) else None
    if found is None or found.returncode != 0:
        raise Skip("there is no wandb; hint: scripts/bootstrap")
    training = Training(workspace, images=80)
    sweep = re.search(r"```yaml\n(program: .*?)```", (SOURCE / "docs/sweeps.md").read_text(), re.DOTALL).group(1)
    sweep = sweep.replace("build/bin/fashion_mnist", str(training.program))
    sweep = sweep.replace("examples/fashion_mnist/mlp.yaml", str(SOURCE / "examples/fashion_mnist/mlp.yaml"))
    options = dict(word[2:].split("=", 1) for word in training.words("runs", devices=1) if "=" in word)
    options |= {"model.lr": 0.00021544346900318823, "trainer.strategy": "auto", "trainer.enable_progress_bar": False,
                "trainer.logger": ["csv"], "trainer.callbacks": [{"device_stats_monitor": {"interval": 0.5}}],
                "trainer.max_epochs": 1, "data.num_workers": 0}
    environment = {"WANDB_MODE": "offline", "WANDB_SWEEP_ID": "sweep", "WANDB_DIR": str(workspace.folder)}
    output = workspace.run("agent", [python, "-W", "ignore", "-c", AGENT, sweep, json.dumps(options)], environment)
    expect_contains(output, "max_epochs 1 is reached", "what the run wrote")
    config = (training.versions("runs")[0] / "config.yaml").read_text()
    expect_contains(config, "lr: 0.00021544346900318823", "the run's configuration")
    expect_contains(config, "enable_progress_bar: False", "the run's configuration")
    expect_contains(config, "interval: 0.5", "the run's configuration")
    expect_equal(len(training.versions("runs")), 1, "the number of runs")


if __name__ == "__main__":
    sys.exit(main({"agent": agent}))
