// The page around the charts: summary, findings, tables of values, configuration and files.
"use strict";

// --- Summary ---

const curvesOfRun = (run) => curves.filter((curve) => curve.run === run);
const bestOf = (curve) => curve.best === "max" ? curve.max : curve.best === "min" ? curve.min : null;

/** Names of the metrics that a reader asks for first: the monitored ones, then held-out, then training. */
function headlines(most) {
  const names = new Set(runs.map((run) => run.monitor).filter((name) => curves.some((curve) => curve.name === name)));
  for (const group of ["validation", "test", "training"])
    for (const curve of curves) if (curve.group === group && curve.best !== "") names.add(curve.name);
  return [...names].slice(0, most);
}

/** The mean of the means of a run's curves of such names; null when there is none. */
function meanOf(run, pattern) {
  const means = curvesOfRun(run).filter((curve) => pattern.test(curve.name) && isNumber(curve.mean)).map((curve) => curve.mean);
  return means.length > 0 ? means.reduce((a, b) => a + b) / means.length : null;
}

function maxOf(run, pattern) {
  const values = curvesOfRun(run).filter((curve) => pattern.test(curve.name) && curve.max).map((curve) => curve.max[1]);
  return values.length > 0 ? Math.max(...values) : null;
}

const lastStep = (run) => Math.max(0, ...curvesOfRun(run).map((curve) => curve.lastStep));
const epochsOf = (run) => runs[run].epochEnds.length > 0 ? runs[run].epochEnds[runs[run].epochEnds.length - 1][0] + 1 : null;

function hardwareFacts(run) {
  const facts = [];
  const add = (label, value, unit, detail) => value !== null && facts.push({label, value: formatValue(Number(value.toPrecision(3))), unit, detail});
  const speeds = curvesOfRun(run).filter((curve) => /^throughput\/(samples|steps)_per_second$|^[a-z]+_per_second$/.test(curve.name));
  if (speeds.length > 0) {
    const speed = speeds.find((curve) => curve.name.includes("samples")) ?? speeds[0];
    add(speed.name.replace("throughput/", "").replace(/_per_second$/, "") + " per second", speed.mean, "", "mean");
  }
  add("GPU utilization", meanOf(run, /(^|\/)gpu\d*\/utilization_percent$/), "%", "mean of all GPUs");
  add("GPU memory", maxOf(run, /(^|\/)gpu\d*\/memory_used_mib$/), "MiB", "highest of all GPUs");
  add("MFU", meanOf(run, /^(rank\d+\/)?throughput\/mfu_percent$/), "%", "mean");
  add("CPU utilization", meanOf(run, /^(rank\d+\/)?cpu\/utilization_percent$/), "%", "mean; 100 is one core");
  return facts;
}

const STATUS_TEXT = {finished: "finished", failed: "failed or interrupted", unfinished: "not ended", unknown: "unknown"};
const STATUS_DETAIL = {unfinished: "it runs, or was killed", unknown: "no event file says"};
const statusNode = (status) => [element("span", {class: `dot ${status}`}), STATUS_TEXT[status]];

function card(label, value, {unit = "", detail = "", title = ""} = {}) {
  return element("div", {class: "card", title},
    element("div", {class: "label", textContent: label}),
    element("div", {class: "value"}, value, unit ? element("small", {textContent: unit}) : null),
    element("div", {class: "detail", textContent: detail}));
}

function buildCards() {
  const [run] = runs;
  const cards = element("div", {class: "cards"});
  cards.append(card("status", statusNode(run.status), {detail: STATUS_DETAIL[run.status] ?? ""}));
  if (isNumber(run.seconds)) cards.append(card("duration", formatSeconds(run.seconds), {detail: `began ${formatTime(run.started)}`}));
  if (curves.length > 0) cards.append(card("steps", grouped(lastStep(0)), {detail: epochsOf(0) === null ? "" : plural(epochsOf(0), "epoch")}));
  for (const name of headlines(5)) {
    const curve = curves.find((candidate) => candidate.name === name);
    const best = bestOf(curve);
    if (best === null) continue;
    const last = curve.last ? `last ${formatValue(curve.last[1])}` : "";
    cards.append(card(`best ${name}`, formatValue(best[1]), {detail: `at step ${grouped(best[0])}, ${last}`, title: name}));
  }
  for (const fact of hardwareFacts(0)) cards.append(card(fact.label, fact.value, fact));
  byId("summary").append(cards);
}

function table(heads, rows, className = "") {
  const numeric = heads.map((head) => head.number ? "number" : "");
  return element("div", {class: "scroll"}, element("table", {class: className},
    element("thead", {}, element("tr", {}, heads.map((head, i) => element("th", {class: numeric[i], scope: "col"}, head.swatch, head.swatch ? " " : null, head.text)))),
    element("tbody", {}, rows.map((row) => element("tr", {class: row.class ?? ""},
      row.cells.map((cell, i) => element("td", {class: `${numeric[i]} ${heads[i].class ?? ""} ${cell?.class ?? ""}`}, cell?.content ?? cell)))))));
}

const pointCell = (point) => point === null || point === undefined ? "–" :
  {content: [formatValue(point[1]), element("span", {class: "at", textContent: `@ ${grouped(point[0])}`})]};

function buildRunTable() {
  const names = headlines(5);
  const best = new Map();
  for (const name of names)
    for (const curve of curves) {
      const value = curve.name === name ? bestOf(curve) : null;
      if (value && (!best.has(name) || (curve.best === "max" ? value[1] > best.get(name) : value[1] < best.get(name)))) best.set(name, value[1]);
    }
  const factLabels = [...new Set(runs.flatMap((run, index) => hardwareFacts(index).map((fact) => fact.label)))];
  const heads = [{text: "run", class: "name"}, {text: "status", class: "status"}, {text: "began", class: "when"}, {text: "duration", number: true}, {text: "steps", number: true}, {text: "epochs", number: true},
    ...names.map((name) => ({text: `best ${name}`, number: true})), ...factLabels.map((label) => ({text: label, number: true}))];
  const rows = runs.map((run, index) => ({cells: [
    {content: [runSwatch(index), " ", run.name]}, {content: statusNode(run.status)}, isNumber(run.started) ? formatTime(run.started) : "–",
    isNumber(run.seconds) ? formatSeconds(run.seconds) : "–", grouped(lastStep(index)), epochsOf(index) ?? "–",
    ...names.map((name) => {
      const curve = curves.find((candidate) => candidate.run === index && candidate.name === name);
      const value = curve ? bestOf(curve) : null;
      if (!value) return "–";
      return {...pointCell(value), class: value[1] === best.get(name) ? "best" : ""};
    }),
    ...factLabels.map((label) => {
      const fact = hardwareFacts(index).find((candidate) => candidate.label === label);
      return fact ? `${fact.value} ${fact.unit}` : "–";
    })]}));
  byId("summary").append(table(heads, rows));
}

function buildFindings() {
  const section = byId("findings");
  const quietRuns = [];
  runs.forEach((run, index) => {
    const list = element("ul", {class: "findings"});
    for (const finding of run.findings)
      list.append(element("li", {class: finding.problem ? "problem" : ""}, element("strong", {textContent: finding.text}), element("div", {class: "remedy", textContent: finding.remedy})));
    for (const note of run.notes) list.append(element("li", {textContent: note}));
    if (list.children.length === 0) {
      quietRuns.push(run.name);
      return;
    }
    if (severalRuns) section.append(element("h3", {}, runSwatch(index), " ", run.name));
    section.append(list);
  });
  const ofRuns = (names) => severalRuns && names.length < runs.length ? ` (${names.join(", ")})` : "";
  if (quietRuns.length > 0)
    section.append(element("p", {textContent: `Nothing stands out in the values that were logged${ofRuns(quietRuns)}.`}));

  const missing = new Map();
  for (const run of runs)
    for (const what of run.withoutData) missing.set(what, [...(missing.get(what) ?? []), run.name]);
  const words = [...missing].map(([what, names]) => what + ofRuns(names));
  if (words.length > 0)
    section.append(element("p", {class: "quiet findings-more", textContent: `Not logged, hence not looked at: ${words.join("; ")}.`}));
}

function buildValues() {
  if (curves.length === 0) {
    byId("values").append(element("p", {class: "quiet", textContent: "No value has been logged."}));
    return;
  }
  const faulty = ["nan", "infinite"].filter((kind) => curves.some((curve) => curve[kind] > 0));
  const heads = [{text: "metric", class: "name mono"}, ...(severalRuns ? [{text: "run"}] : []), {text: "points", number: true}, {text: "last", number: true},
    {text: "min @ step", number: true}, {text: "max @ step", number: true}, {text: "mean", number: true}, ...faulty.map((kind) => ({text: kind === "nan" ? "NaN" : kind, number: true}))];
  const order = [...curves].sort((a, b) => a.name < b.name ? -1 : a.name > b.name ? 1 : a.run - b.run);
  const count = (value) => value > 0 ? {content: grouped(value), class: "problem-text"} : "0";
  const rows = order.map((curve) => ({cells: [curve.name, ...(severalRuns ? [{content: [runSwatch(curve.run), " ", runs[curve.run].name]}] : []), grouped(curve.points),
    curve.last ? formatValue(curve.last[1]) : "–", {...asCell(pointCell(curve.min)), class: curve.best === "min" ? "best" : ""},
    {...asCell(pointCell(curve.max)), class: curve.best === "max" ? "best" : ""}, formatValue(curve.mean), ...faulty.map((kind) => count(curve[kind]))]}));
  const whole = table(heads, rows);
  if (rows.length <= 40) byId("values").append(whole);
  else byId("values").append(element("details", {}, element("summary", {textContent: `${grouped(rows.length)} rows`}), whole));
}

const asCell = (cell) => typeof cell === "string" ? {content: cell} : cell;

// --- Training data ---

const MOST_CLASSES = 100;

function classTable(data) {
  const largest = [...data.classes].sort((a, b) => b.count - a.count).slice(0, MOST_CLASSES);
  const shown = data.classes.filter((each) => largest.includes(each));
  const rows = shown.map((each) => ({cells: [each.name, grouped(each.count), `${formatValue(Number((100 * each.count / data.examples).toPrecision(3)))} %`]}));
  const more = data.classes.length - shown.length;
  return [table([{text: "class", class: "name"}, {text: "examples", number: true}, {text: "share", number: true}], rows),
    more > 0 ? element("p", {class: "quiet", textContent: `${plural(more, "more name")} with fewer examples left out.`}) : null];
}

function buildBatches() {
  const section = byId("batches");
  runs.forEach((run, index) => {
    if (run.data === null) return;
    section.hidden = false;
    if (severalRuns) section.append(element("h3", {}, runSwatch(index), " ", run.name));
    const value = (number) => isNumber(number) ? formatValue(Number(number.toPrecision(4))) : "–";
    section.append(table([{text: "tensor of the first batch", class: "name"}, {text: "shape"}, {text: "type"}, {text: "min", number: true}, {text: "max", number: true}, {text: "mean", number: true}],
      run.data.tensors.map((tensor) => ({cells: [tensor.name, tensor.shape, tensor.type, value(tensor.min), value(tensor.max), value(tensor.mean)]}))));
    if (run.data.picture) section.append(element("img", {class: "batch", src: run.data.picture, alt: "images of the first batch, as training sees them"}));
    if (run.data.classes.length > 0) {
      section.append(element("p", {class: "quiet", textContent: `Classes of the first ${plural(run.data.examples, "example")} of rank 0:`}));
      section.append(...classTable(run.data).filter((node) => node !== null));
    }
  });
}

function buildConfiguration() {
  const section = byId("configuration");
  const rows = data.configuration;
  if (rows.length === 0) {
    section.append(element("p", {class: "quiet", textContent: "There is neither config.yaml nor hparams.yaml."}));
    return;
  }
  const makeTable = (chosen) => table(
    [{text: "option", class: "mono"}, ...runs.map((run, index) => severalRuns ? {text: run.name, class: "mono", swatch: runSwatch(index)} : {text: "value", class: "mono"})],
    chosen.map((row) => ({class: severalRuns && row.differs ? "differs" : "", cells: [row.path, ...row.values.map((value) => value === null ? {content: "–"} : value)]})), "config");
  if (!severalRuns) {
    section.append(makeTable(rows));
    return;
  }
  const differing = rows.filter((row) => row.differs);
  section.append(element("p", {class: "quiet", textContent: differing.length === 0 ? "The runs' options are all equal." :
    `${plural(differing.length, "option")} of ${grouped(rows.length)} ${differing.length === 1 ? "differs" : "differ"}.`}));
  if (differing.length > 0) section.append(makeTable(differing));
  section.append(element("details", {}, element("summary", {textContent: "all options"}), makeTable(rows)));
}

function buildFiles() {
  const section = byId("files");
  let any = false;
  runs.forEach((run, index) => {
    if (run.profiles.length + run.traces.length + run.checkpoints.length === 0) return;
    any = true;
    if (severalRuns) section.append(element("h3", {textContent: run.name}));
    for (const file of run.profiles) {
      const cut = file.cut ? "\n…" : "";
      section.append(element("details", {open: run.profiles.length === 1 && !severalRuns},
        element("summary", {textContent: `Profile ${file.name}`}), element("pre", {textContent: file.text + cut})));
    }
    if (run.traces.length > 0) {
      section.append(element("p", {textContent: "Traces, for ui.perfetto.dev, chrome://tracing or TensorBoard:"}));
      section.append(element("ul", {class: "plain"}, run.traces.map((file) => element("li", {}, element("a", {href: file.link, textContent: file.name}), ` ${formatSize(file.size)}`))));
    }
    if (run.checkpoints.length > 0)
      section.append(element("details", {}, element("summary", {textContent: plural(run.checkpoints.length, "checkpoint")}),
        element("ul", {class: "plain"}, run.checkpoints.map((path) => element("li", {class: "mono", textContent: path})))));
  });
  section.hidden = !any;
}

const paths = data.sweep ? data.sweep.path : runs.map((run) => run.path).join(" · ");
byId("subtitle").textContent = `${labels ? labels + " — " : ""}${paths.length > 400 ? paths.slice(0, 400) + "…" : paths} — made ${formatTime(data.made)}`;
applyTheme();
buildSweep();
buildScaling();
buildTargets();
if (severalRuns) buildRunTable(); else buildCards();
buildFindings();
buildCharts();
buildControls();
buildValues();
buildBatches();
buildConfiguration();
buildFiles();
applyTheme();

// For tests, and for the curious in a browser's console.
window.levinReport = {charts, state, drawAll};
