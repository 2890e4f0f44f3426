#!/usr/bin/env python3
"""Runs parameter_server_benchmark for docs/parameter-server.md: ddp, and parameter servers, with workers of equal speed
and with one that is twice as slow. Prints a table and draws accuracy over time. The column "time of ddp" is the median
over the rounds of a run's seconds against those of ddp in the same round, with the smallest and largest in brackets.

    benchmarks/parameter_server_study.py build/bin/parameter_server_benchmark docs/images/parameter-server.svg

Needs nothing but Python. Options: --workers, --epochs, --rounds (the runs with the median time are taken).
"""

import argparse
import csv
import io
import subprocess

STRATEGIES = {
    "ddp": "{name: ddp_threads, backend: gloo}",
    "sync": "{name: parameter_server_threads, backend: gloo, servers: 2}",
    "async": "{name: parameter_server_threads, mode: async, backend: gloo, servers: 2}",
    "async, max_staleness 4": "{name: parameter_server_threads, mode: async, backend: gloo, servers: 2, "
    "max_staleness: 4}",
    "async, delay_compensation 0.5": "{name: parameter_server_threads, mode: async, backend: gloo, servers: 2, "
    "delay_compensation: 0.5}",
}
COLOURS = ["#555555", "#1f77b4", "#d62728", "#ff9c2a", "#2ca02c"]
PANELS = {1: "workers of equal speed", 2: "one worker twice as slow"}


def run(program, strategy, workers, slowness, epochs):
    done = subprocess.run([program, STRATEGIES[strategy], str(workers), str(slowness), str(epochs)],
                          capture_output=True, text=True, check=True)
    return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(io.StringIO(done.stdout))]


def draw(path, panels, workers):
    width, height, left, top, panel_width, panel_height = 900, 400, 60, 60, 360, 250
    longest = max(row["seconds"] for panel in panels.values() for rows in panel.values() for row in rows)
    worst = min(row["val_acc"] for panel in panels.values() for rows in panel.values() for row in rows)
    best = max(row["val_acc"] for panel in panels.values() for rows in panel.values() for row in rows)
    low, high = int(worst * 100) / 100, int(best * 100 + 1) / 100
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="sans-serif" font-size="13">', f'<rect width="{width}" height="{height}" fill="white"/>',
           f'<text x="{left}" y="22" font-size="15">Fashion-MNIST, MLP, {workers} workers: accuracy on validation over '
           'seconds of training</text>']
    for number, (slowness, series) in enumerate(panels.items()):
        x0, y0 = left + number * (panel_width + 70), top
        x = lambda seconds: x0 + seconds / longest * panel_width
        y = lambda accuracy: y0 + (high - accuracy) / (high - low) * panel_height
        svg.append(f'<text x="{x0}" y="{y0 - 12}">{PANELS[slowness]}</text>')
        steps = 5
        for i in range(steps + 1):
            accuracy = low + (high - low) * i / steps
            svg.append(f'<line x1="{x0}" x2="{x0 + panel_width}" y1="{y(accuracy):.1f}" y2="{y(accuracy):.1f}" '
                       'stroke="#e4e4e4"/>')
            svg.append(f'<text x="{x0 - 8}" y="{y(accuracy) + 4:.1f}" text-anchor="end">{accuracy:.3f}</text>')
            seconds = longest * i / steps
            svg.append(f'<text x="{x(seconds):.1f}" y="{y0 + panel_height + 20}" text-anchor="middle">'
                       f'{seconds:.0f} s</text>')
        for colour, (strategy, rows) in zip(COLOURS, series.items()):
            points = " ".join(f'{x(row["seconds"]):.1f},{y(row["val_acc"]):.1f}' for row in rows)
            svg.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
            svg += [f'<circle cx="{x(row["seconds"]):.1f}" cy="{y(row["val_acc"]):.1f}" r="3" fill="{colour}"/>'
                    for row in rows]
    for number, (colour, strategy) in enumerate(zip(COLOURS, STRATEGIES)):
        x0 = left + [0, 80, 165, 255, 445][number]
        svg.append(f'<circle cx="{x0}" cy="{height - 28}" r="4" fill="{colour}"/>')
        svg.append(f'<text x="{x0 + 9}" y="{height - 24}">{strategy}</text>')
    svg.append("</svg>")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(svg) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("picture")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    panels = {}
    print("| workers | strategy | images/s | seconds | time of ddp | accuracy |\n|---|---|---|---|---|---|")
    for slowness, words in PANELS.items():
        # Rounds go through all strategies, so that what slows the machine for a while slows all of them.
        rounds = [{strategy: run(options.program, strategy, options.workers, slowness, options.epochs)
                   for strategy in STRATEGIES} for _ in range(options.rounds)]
        panels[slowness] = {}
        for strategy in STRATEGIES:
            runs = sorted((each[strategy] for each in rounds), key=lambda rows: rows[-1]["seconds"])
            rows = panels[slowness][strategy] = runs[len(runs) // 2]
            images = 55000 * len(rows) / rows[-1]["seconds"]
            ratios = sorted(each[strategy][-1]["seconds"] / each["ddp"][-1]["seconds"] for each in rounds)
            ratio = f"{ratios[len(ratios) // 2]:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            print(f'| {words} | {strategy} | {images:.0f} | {rows[-1]["seconds"]:.1f} | {ratio} | '
                  f'{rows[-1]["val_acc"]:.4f} |', flush=True)
    draw(options.picture, panels, options.workers)


main()
