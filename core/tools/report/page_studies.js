// What several runs show together: scaling over devices, a sweep, the time to a target value.
"use strict";

/** Places of numbers of devices on an axis: by size, or by magnitude where there are many. */
function deviceAxis(counts) {
  const sorted = [...new Set(counts)].sort((a, b) => a - b);
  const of = sorted[sorted.length - 1] > 16 ? Math.log2 : (value) => value;
  const low = of(sorted[0]);
  const high = of(sorted[sorted.length - 1]);
  const at = (count) => high > low ? (of(count) - low) / (high - low) : 0.5;
  return {at, title: "devices", ticks: sorted.map((count) => ({text: String(count), at: at(count)}))};
}

const fromZero = (values, title) => ({title, low: 0, high: 1.08 * Math.max(...values.filter(isNumber), 1e-9)});
const figures = (...nodes) => element("div", {class: "figures"}, nodes.map((node) => element("article", {class: "panel"}, node)));

// --- Scaling ---

const twoDecimals = (value) => isNumber(value) ? value.toFixed(2) : "–";

function buildScaling() {
  // One number of devices says nothing about scaling.
  const all = data.scaling.filter((series) => series.rows.length > 1);
  const section = byId("scaling");
  if (all.length === 0) return;
  section.hidden = false;
  for (const series of all) {
    const fewest = series.rows[0].devices;
    if (series.label) section.append(element("h3", {textContent: series.label}));
    section.append(table(
      [{text: "devices", number: true}, {text: "seconds an epoch", number: true}, {text: "images/s", number: true}, {text: "speed-up", number: true}, {text: "of the ideal", number: true}, {text: "runs", class: "name"}],
      series.rows.map((row) => ({cells: [String(row.devices), formatValue(Number(row.seconds.toPrecision(4))), grouped(row.samples), twoDecimals(row.speedup),
        `${Math.round(100 * row.speedup * fewest / row.devices)} %`, row.runs.map((run) => runs[run].name).join(", ")]}))));
  }
  const rows = all.flatMap((series) => series.rows);
  const axis = deviceAxis(rows.map((row) => row.devices));
  const figure = (title, unit, key, more = []) => lineFigure({title, x: axis,
    y: fromZero([...rows.map((row) => row[key]), ...more.flatMap((line) => line.points.map((point) => point.y))], unit),
    series: [...all.map((series, color) => ({name: series.label, color,
      points: series.rows.map((row) => ({x: axis.at(row.devices), y: row[key], text: `${plural(row.devices, "device")}: ${formatValue(row[key])} ${unit}`}))})), ...more]});
  const fewest = Math.min(...rows.map((row) => row.devices));
  const ideal = {name: "ideal", dashed: true,
    points: [...new Set(rows.map((row) => row.devices))].sort((a, b) => a - b).map((devices) => ({x: axis.at(devices), y: devices / fewest}))};
  section.append(figures(figure("Time of an epoch", "s", "seconds"), figure("Throughput", "images/s", "samples"), figure("Speed-up", `times as fast as on ${plural(fewest, "device")}`, "speedup", [ideal])),
    element("p", {class: "quiet", textContent: "Means over the epochs whose time was logged (throughput_monitor leaves out the first), and over repeated runs."}));
}

// --- A sweep ---

const isText = (text) => text.trim() !== "" && isFinite(Number(text));
const numberOf = (text) => isText(text) ? Number(text) : null;
/** Highlights what belongs to a run of the sweep in the table and in all figures, while the mouse is over one of them. */
function connectRows(section) {
  const mark = (event, on) => {
    const row = event.target.closest?.("[data-row]")?.getAttribute("data-row");
    if (row === null || row === undefined) return;
    for (const node of section.querySelectorAll(`[data-row="${row}"]`)) node.classList.toggle("marked", on);
  };
  section.addEventListener("mouseover", (event) => mark(event, true));
  section.addEventListener("mouseout", (event) => mark(event, false));
}

const cellOf = (text, shown = text) => ({text, shown: text === "" ? "–" : shown});

/** A table whose rows are sorted by the column that is clicked: by the cells' texts, of which empty ones come last. */
function sortableTable(heads, rows) {
  let order = {column: null, descending: false};
  const body = element("tbody");
  const show = () => {
    const sorted = [...rows];
    if (order.column !== null)
      sorted.sort((a, b) => {
        const [x, y] = [a.cells[order.column].text, b.cells[order.column].text];
        if (x === "" || y === "") return (x === "") - (y === "");
        const [p, q] = [numberOf(x), numberOf(y)];
        const difference = p !== null && q !== null ? p - q : x < y ? -1 : x > y ? 1 : 0;
        return order.descending ? -difference : difference;
      });
    body.replaceChildren(...sorted.map((row) => element("tr", {class: row.class ?? "", "data-row": row.row},
      row.cells.map((cell, i) => element("td", {class: heads[i].number ? "number" : "name-part", textContent: cell.shown})))));
  };
  const cells = heads.map((head, column) => {
    const button = element("button", {type: "button", class: "sort", textContent: head.text});
    const cell = element("th", {class: head.number ? "number" : "", scope: "col"}, button);
    button.addEventListener("click", () => {
      order = {column, descending: order.column === column && !order.descending};
      cells.forEach((other) => other.removeAttribute("aria-sort"));
      cell.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
      show();
    });
    return cell;
  });
  show();
  return element("div", {class: "scroll"}, element("table", {class: "sortable"}, element("thead", {}, element("tr", {}, cells)), body));
}

/** How good a value is among others, from 0 to 1; null where it is none. */
function shareOf(value, values, maximized) {
  const known = values.filter(isNumber);
  if (!isNumber(value)) return null;
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const share = high > low ? (value - low) / (high - low) : 1;
  return maximized ? share : 1 - share;
}

function sweepTable(sweep, best) {
  const hasRungs = sweep.runs.some((run) => run.rung !== "");
  const hasErrors = sweep.runs.some((run) => run.error !== "");
  const isNumeric = (texts) => texts.every((text) => text === "" || isText(text));
  const heads = [{text: "run"}, {text: "status"}, ...(hasRungs ? [{text: "rung", number: true}] : []), {text: "seconds", number: true},
    ...sweep.options.map((name, i) => ({text: name, number: isNumeric(sweep.runs.map((run) => run.options[i]))})),
    ...sweep.metrics.map((name) => ({text: name, number: true})), ...(hasErrors ? [{text: "error"}] : [])];
  const rows = sweep.runs.map((run, index) => {
    const cells = [cellOf(run.name), cellOf(run.status, run.status.replaceAll("_", " ")), ...(hasRungs ? [cellOf(run.rung)] : []),
      isNumber(run.seconds) ? cellOf(String(run.seconds), formatValue(Number(run.seconds.toPrecision(4)))) : cellOf(""), ...run.options.map((text) => cellOf(text)),
      ...run.metrics.map((text) => cellOf(text, isText(text) ? formatValue(Number(text)) : text)), ...(hasErrors ? [cellOf(run.error)] : [])];
    return {row: index, cells, class: index === best ? "best-run" : run.status === "failed" ? "failed-run" : ""};
  });
  return sortableTable(heads, rows);
}

function buildSweep() {
  const {sweep} = data;
  if (!sweep) return;
  const section = byId("sweep");
  section.hidden = false;
  const valuesOf = (metric) => sweep.runs.map((run) => numberOf(run.metrics[sweep.metrics.indexOf(metric)] ?? ""));
  const counts = new Map();
  for (const run of sweep.runs) counts.set(run.status, (counts.get(run.status) ?? 0) + 1);
  const monitored = valuesOf(sweep.monitor);
  // One that was stopped early is the best only where none came to its end.
  const anyFinished = sweep.runs.some((run, i) => run.status === "finished" && monitored[i] !== null);
  let best = null;
  monitored.forEach((value, i) => {
    if (anyFinished && sweep.runs[i].status !== "finished") return;
    if (value !== null && (best === null || (sweep.maximized ? value > monitored[best] : value < monitored[best]))) best = i;
  });
  const statuses = [...counts].map(([status, count]) => `${grouped(count)} ${status.replaceAll("_", " ")}`).join(", ");
  section.append(element("p", {textContent: `${plural(sweep.runs.length, "run")}: ${statuses}.` + (best === null ? "" :
    ` Best ${sweep.monitor}: ${formatValue(monitored[best])}, run ${sweep.runs[best].name} (${sweep.options.map((name, i) => `${name}=${sweep.runs[best].options[i]}`).join(", ")}).`)}));
  for (const note of sweep.notes) section.append(element("p", {class: "problem-text", textContent: note}));
  section.append(sweepTable(sweep, best));

  const metrics = sweep.metrics.filter((name) => valuesOf(name).some(isNumber));
  if (metrics.length === 0) return;
  const choice = element("select", {"aria-label": "metric", id: "sweep-metric"}, metrics.map((name) => element("option", {value: name, textContent: name})));
  choice.value = metrics.includes(sweep.monitor) ? sweep.monitor : metrics[0];
  const drawn = element("div");
  const draw = () => {
    const metric = choice.value;
    const values = valuesOf(metric);
    const texts = sweep.runs.map((run) => run.metrics[sweep.metrics.indexOf(metric)]).map((text) => isText(text) ? text : "");
    const maximized = metric === sweep.monitor ? sweep.maximized : curves.some((curve) => curve.name === metric && curve.best === "max");
    const scales = sweep.options.map((name, i) => new Scale(sweep.runs.map((run) => run.options[i])));
    const textOf = (run, i) => `${run.name}: ${sweep.options.map((name, option) => `${name}=${run.options[option]}`).join(", ")}, ${metric} ${formatValue(values[i])}`;
    const axes = [...sweep.options.map((name, i) => ({title: name, scale: scales[i]})), {title: metric, scale: new Scale(texts)}];
    const lines = sweep.runs.map((run, i) => ({row: i, share: shareOf(values[i], values, maximized), text: textOf(run, i),
      values: axes.map(({scale}, axis) => scale.at(axis < sweep.options.length ? run.options[axis] : texts[i]))}));
    const known = values.filter(isNumber);
    const margin = 0.08 * (Math.max(...known) - Math.min(...known) || Math.abs(known[0]) || 1);
    const y = {title: metric, low: Math.min(...known) - margin, high: Math.max(...known) + margin};
    const byOption = sweep.options.map((name, option) => {
      const points = sweep.runs.map((run, i) => ({x: scales[option].at(run.options[option]), y: values[i], run: i, text: textOf(run, i)}));
      const means = scales[option].hasPlaces ? scales[option].ticks.map(({at, text}) => {
        const here = points.filter((point) => point.x === at && isNumber(point.y)).map((point) => point.y);
        return {x: at, y: here.length > 0 ? here.reduce((a, b) => a + b) / here.length : null, text: `mean at ${text}`};
      }) : [];
      return lineFigure({title: `${metric} by ${name}`, x: {title: name, ticks: scales[option].ticks}, y, legend: false,
        series: [{name: "mean", dashed: true, points: means}, {name: "", color: 0, bare: true, points}]});
    });
    drawn.replaceChildren(element("article", {class: "panel"}, element("div", {class: "figure-scroll"}, parallelFigure(`${metric}: parallel coordinates, a line a run`, axes, lines))), figures(...byOption));
  };
  choice.addEventListener("change", draw);
  draw();
  section.append(element("p", {}, element("label", {class: "quiet"}, "metric ", choice)), drawn,
    element("p", {class: "quiet", textContent: "Blue is good, orange is bad; a dashed grey line is a run without the value, dashes in the small figures join means. The curves of all runs are below."}));
  connectRows(section);
}

// --- The time to a target value ---

function buildTargets() {
  const section = byId("targets");
  data.targets.forEach((target, color) => {
    section.hidden = false;
    const title = `${target.metric} ${formatValue(target.value)}`;
    const reached = target.runs.filter((row) => row.step !== null);
    section.append(element("h3", {textContent: title}),
      element("p", {class: "quiet", textContent: `${grouped(reached.length)} of ${plural(runs.length, "run")} reached it.` +
        (reached.some((row) => row.seconds === null) ? " Only event files tell times: add the logger tensorboard for the seconds." : "")}));
    if (reached.length === 0) return;
    const byTime = [...reached].sort((a, b) => (a.seconds ?? Infinity) - (b.seconds ?? Infinity) || a.step - b.step);
    section.append(table([{text: "run", class: "name"}, {text: "devices", number: true}, {text: "seconds", number: true}, {text: "steps", number: true}],
      byTime.map((row) => ({cells: [runs[row.run].name, row.devices === null ? "–" : String(row.devices), row.seconds === null ? "–" : formatValue(Number(row.seconds.toPrecision(4))), grouped(row.step)]}))));
    const timed = reached.filter((row) => row.devices !== null && row.seconds !== null);
    if (timed.length === 0) return;
    const axis = deviceAxis(timed.map((row) => row.devices));
    const fastest = axis.ticks.map((tick) => ({x: tick.at, y: Math.min(...timed.filter((row) => String(row.devices) === tick.text).map((row) => row.seconds)), text: `fastest on ${tick.text}`}));
    section.append(figures(lineFigure({title: `Time to ${title} by number of devices`, x: axis, y: fromZero(timed.map((row) => row.seconds), "s"), legend: false,
      series: [{name: "fastest", dashed: true, points: fastest},
        {name: "", color, bare: true, points: timed.map((row) => ({x: axis.at(row.devices), y: row.seconds, text: `${runs[row.run].name}: ${formatSeconds(row.seconds)} on ${plural(row.devices, "device")}`}))}]})));
  });
}
