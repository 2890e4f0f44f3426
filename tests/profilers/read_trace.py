#!/usr/bin/env python3
"""Reads a trace and prints the ranges that each call of an operator lies in, outermost first.

    read_trace.py TRACE OPERATOR

Fails where the trace is not JSON, or its ranges on a thread overlap without one being inside of the other.
"""

import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]

threads = {}
for event in events:
    if event.get("cat") in ("cpu_op", "user_annotation"):
        threads.setdefault((event["pid"], event["tid"]), []).append(event)

SLACK = 0.002  # microseconds: times are rounded to nanoseconds
for of_thread in threads.values():
    of_thread.sort(key=lambda event: (event["ts"], -event["dur"]))
    inside = []
    for event in of_thread:
        while inside and inside[-1]["ts"] + inside[-1]["dur"] <= event["ts"] + SLACK:
            inside.pop()
        if inside and event["ts"] + event["dur"] > inside[-1]["ts"] + inside[-1]["dur"] + SLACK:
            sys.exit(f"{event['name']} and {inside[-1]['name']} overlap")
        if event["name"] == sys.argv[2]:
            ranges = [outer["name"] for outer in inside if outer["cat"] == "user_annotation"]
            print(" > ".join([*ranges, json.dumps(event.get("args", {}).get("Input Dims"))]))
        inside.append(event)
