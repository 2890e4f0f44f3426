// The charts and their controls.
"use strict";

// --- The x axis ---

const longest = Math.max(0, ...curves.map((curve) => Math.max(0, ...(curve.seconds ?? []).filter(isNumber).slice(-1))));
const timeUnit = longest > 2 * HOUR ? {name: "h", size: HOUR} : longest > 180 ? {name: "min", size: 60} : {name: "s", size: 1};
const AXES = {
  step: {title: "step", available: true},
  epoch: {title: "epoch", available: runs.some((run) => run.epochEnds.length > 0)},
  time: {title: `time since the start [${timeUnit.name}]`, available: curves.some((curve) => curve.seconds)},
};

/** A step as a number of epochs: its share of the epoch, whose length is told by the last steps logged in each. */
function epochOf(run, step) {
  const ends = runs[run].epochEnds;
  let low = 0;
  let high = ends.length - 1;
  if (high < 0) return null;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle][1] >= step) high = middle; else low = middle + 1;
  }
  const before = low > 0 ? ends[low - 1][1] : 0;
  let length = ends[low][1] - before;
  // An epoch that is not over is taken to be as long as the one before.
  if (low === ends.length - 1 && low > 0) length = Math.max(length, before - (low > 1 ? ends[low - 2][1] : 0));
  return ends[low][0] + (length > 0 ? Math.min(1, (step - before) / length) : 0);
}

function xOf(curve) {
  if (state.axis === "time") return (curve.seconds ?? curve.steps.map(() => null)).map((value) => value === null ? null : value / timeUnit.size);
  if (state.axis === "epoch") return curve.steps.map((step) => epochOf(curve.run, step));
  return curve.steps;
}

/** Points of a curve as they are drawn: rising x, NaN for a gap. */
function pointsOf(curve) {
  const xs = [], values = [], means = [];
  const all = xOf(curve);
  let previous = -Infinity;
  for (let i = 0; i < all.length; ++i) {
    let x = all[i];
    if (x === null) continue;
    // Times that were rounded to the same, or a clock that was set back.
    if (x <= previous) x = previous + Math.max(1e-9, Math.abs(previous) * 1e-12);
    previous = x;
    xs.push(x);
    values.push(curve.values[i] ?? NaN);
    means.push((curve.means ? curve.means[i] : curve.values[i]) ?? NaN);
  }
  return {xs, values, means};
}

/** An exponential moving average that does not lean towards zero at its start (Kingma and Ba, 2015, section 3). */
function smoothed(values, weight) {
  let average = 0;
  let total = 0;
  return values.map((value) => {
    if (Number.isNaN(value)) return NaN;
    average = weight * average + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return average / total;
  });
}

// --- Charts ---

const FEWEST_TO_SMOOTH = 20;  // an average over a handful of validations would be misleading
const LEGEND_ORDER = ["training", "validation", "test"];

class Chart {
  constructor(description, group) {
    this.unit = description.unit;
    this.title = description.title;
    this.group = group;
    this.curves = description.curves.map((index) => curves[index]);
    this.names = [...new Set(this.curves.map((curve) => curve.name))];
    this.logarithmic = null;  // null: as all charts
    this.isVisible = false;
    this.isDirty = true;
    this.graph = null;
    this.build();
  }

  matches(text) {
    return text === "" || this.title.toLowerCase().includes(text) || this.names.some((name) => name.toLowerCase().includes(text));
  }

  /** What tells a curve from the others of this chart, apart from its run. */
  lineOf(curve) {
    return curve.line || (this.names.length > 1 ? curve.name : "");
  }

  labelOf(curve) {
    const parts = [severalRuns ? runs[curve.run].name : "", this.lineOf(curve)].filter((part) => part !== "");
    return parts.length > 0 ? parts.join(" · ") : curve.name;
  }

  /** Colours tell runs apart where there are several, and dashes the lines of one; otherwise colours tell the lines. */
  assignStyles() {
    const lines = [...new Set(this.curves.map((curve) => this.lineOf(curve)))];
    const taken = new Set();
    this.styles = this.curves.map((curve, index) => {
      if (severalRuns) return {color: curve.run, dash: lines.indexOf(this.lineOf(curve)) % DASHES.length};
      let color = Math.max(0, LEGEND_ORDER.indexOf(curve.group));
      while (taken.has(color)) ++color;
      taken.add(color);
      // Groups of parameters often have the same rate: what lies below shows between the dashes.
      return {color, dash: curve.group === "learning rate" ? index % DASHES.length : 0};
    });
  }

  build() {
    this.assignStyles();
    this.plot = element("div", {class: "plot"});
    this.xText = element("span");
    this.legendValues = [];
    this.legendLines = [];
    this.legend = element("div", {class: "legend"});
    this.curves.forEach((curve, index) => {
      const value = element("span", {class: "value", textContent: "–"});
      const swatch = element("span", {class: `swatch dash${this.styles[index].dash}`});
      const label = this.labelOf(curve);
      const line = element("div", {class: "legend-line", title: label}, swatch, element("span", {class: "name", textContent: label}), value);
      this.legendValues.push(value);
      this.legendLines.push(line);
      this.legend.append(line);
    });
    this.legend.style.setProperty("--label", Math.min(36, Math.max(...this.curves.map((curve) => this.labelOf(curve).length))));
    this.logButton = element("button", {type: "button", textContent: "log", title: "logarithmic y axis", "aria-pressed": "false"});
    this.logButton.addEventListener("click", () => {
      this.logarithmic = !this.isLogarithmic();
      this.draw();
    });
    const wideButton = element("button", {type: "button", textContent: "wide", title: "as wide as the page", "aria-pressed": "false"});
    wideButton.addEventListener("click", () => {
      const isWide = this.node.classList.toggle("wide");
      wideButton.setAttribute("aria-pressed", String(isWide));
      if (this.graph) this.graph.resize();
    });
    this.note = element("div", {class: "chart-note", hidden: true});
    this.node = element("article", {class: "chart"},
      element("div", {class: "chart-head"},
        element("h3", {class: "chart-title", textContent: this.title, title: this.names.join("\n")}),
        element("span", {class: "chart-unit", textContent: this.unit}),
        element("span", {class: "chart-tools"}, this.logButton, wideButton)),
      this.plot,
      element("div", {class: "chart-foot"}, this.xText, element("span", {class: "x-title"})),
      this.legend, this.note);
    this.node.chart = this;
  }

  isLogarithmic() {
    return (this.logarithmic ?? state.logarithmic) && this.curves.some((curve) => curve.max !== null && curve.max[1] > 0);
  }

  shown() {
    return this.curves.map((curve, index) => ({curve, index})).filter(({curve}) => !state.hidden.has(curve.run));
  }

  /** Says what the curves cannot show. */
  describeFaults(shown) {
    const faults = shown.filter(({curve}) => curve.nan + curve.infinite > 0).map(({curve}) => {
      const counts = [curve.nan > 0 ? `${grouped(curve.nan)} NaN` : "", curve.infinite > 0 ? `${grouped(curve.infinite)} infinite` : ""];
      return `${this.labelOf(curve)}: ${counts.filter((text) => text !== "").join(" and ")} of ${plural(curve.points, "value")}`;
    });
    const unplaced = shown.filter(({curve}) => state.axis === "time" && !curve.seconds).length;
    if (unplaced > 0) faults.push(`${plural(unplaced, "curve")} without times: metrics.csv has none, event files have`);
    this.note.textContent = faults.join("; ");
    this.note.hidden = faults.length === 0;
  }

  draw() {
    this.isDirty = false;
    const shown = this.shown();
    const colors = palette();
    const smooth = state.smoothing > 0;
    const logarithmic = this.isLogarithmic();
    this.logButton.setAttribute("aria-pressed", String(logarithmic));
    this.drawn = shown.map(({curve, index}) => {
      const points = pointsOf(curve);
      const calm = smooth && points.xs.length > FEWEST_TO_SMOOTH;
      return {...points, curve, index, main: calm ? smoothed(points.means, state.smoothing) : points.values};
    });
    const rows = this.rows(smooth);
    const few = Math.max(...this.drawn.map(({xs}) => xs.length), 0) <= 60;
    const labels = ["x"];
    const series = {};
    for (const {index} of this.drawn) {
      const {color, dash} = this.styles[index];
      const hue = colors[color % colors.length];
      if (smooth) {
        labels.push(`raw${index}`);
        series[`raw${index}`] = {color: hue + "44", strokeWidth: 1, highlightCircleSize: 0};
      }
      labels.push(`main${index}`);
      series[`main${index}`] = {color: hue, strokeWidth: 1.6, strokePattern: DASHES[dash], drawPoints: few, pointSize: few ? 2.2 : 1};
    }
    this.legendLines.forEach((line, index) => {
      const {color} = this.styles[index];
      line.firstChild.style.borderTopColor = colors[color % colors.length];
      line.hidden = state.hidden.has(this.curves[index].run);
    });
    this.node.querySelector(".x-title").textContent = AXES[state.axis].title;
    this.describeFaults(shown);
    this.showValues(null);

    if (this.graph) this.graph.destroy();
    this.graph = null;
    this.plot.replaceChildren();
    if (!rows.some((row) => row.some((value, column) => column > 0 && isNumber(value)))) {
      this.plot.append(element("p", {class: "quiet", textContent: "no finite value to draw"}));
      return;
    }
    this.graph = new Dygraph(this.plot, rows, this.options(labels, series, rows, logarithmic));
  }

  options(labels, series, rows, logarithmic) {
    const first = rows[0][0];
    const last = rows[rows.length - 1][0];
    const isShare = this.unit === "%" && /utilization|wait/i.test(this.title);
    const top = Math.max(...this.curves.map((curve) => curve.max ? curve.max[1] : 0));
    const ground = {gridLineColor: grey.grid, axisLineColor: grey.line, axisLabelFontSize: 11};
    return {
      labels, series, ...ground,
      legend: "never",
      connectSeparatedPoints: true,
      logscale: logarithmic,
      includeZero: this.group === "throughput" || this.group === "hardware",
      valueRange: isShare && !logarithmic ? [0, Math.max(102, top * 1.04)] : null,
      dateWindow: state.window ?? (first === last ? [first - 1, last + 1] : null),
      xRangePad: 4, yRangePad: 8,
      highlightCircleSize: 3.5,
      animatedZooms: false,
      axes: {
        x: {axisLabelFormatter: (value, granularity, option, graph) => formatTick(value, graph.xAxisRange()), axisLabelWidth: 64},
        y: {axisLabelFormatter: (value, granularity, option, graph) => formatTick(value, graph.yAxisRange(0), logarithmic), axisLabelWidth: 52, pixelsPerLabel: 34},
      },
      highlightCallback: (event, x) => this.showValues(x),
      unhighlightCallback: () => this.showValues(null),
      zoomCallback: (low, high) => setWindow(this.graph && this.graph.isZoomed("x") ? [low, high] : null, this),
    };
  }

  /** Rows of x and a column a curve (two when curves are smoothed); null where a curve has no point. */
  rows(smooth) {
    const width = smooth ? 2 : 1;
    const columns = 1 + width * this.drawn.length;
    const byX = new Map();
    this.drawn.forEach(({xs, values, main}, position) => {
      xs.forEach((x, i) => {
        let row = byX.get(x);
        if (row === undefined) byX.set(x, row = [x, ...new Array(columns - 1).fill(null)]);
        if (smooth) row[1 + width * position] = values[i];
        row[width * (position + 1)] = main[i];
      });
    });
    return [...byX.values()].sort((a, b) => a[0] - b[0]);
  }

  /** Shows in the legend the values nearest to x, or the last ones. */
  showValues(x) {
    for (const {xs, main, curve, index} of this.drawn) {
      let text;
      if (x === null) text = main.length > FEWEST_TO_SMOOTH && state.smoothing > 0 ? main[main.length - 1] : curve.last ? curve.last[1] : NaN;
      else text = xs.length > 0 && x >= xs[0] && x <= xs[xs.length - 1] ? main[nearest(xs, x)] : null;
      this.legendValues[index].textContent = formatValue(text);
    }
    this.xText.textContent = x === null ? "last values" : `${state.axis === "time" ? "at" : state.axis} ${formatValue(x)}${state.axis === "time" ? " " + timeUnit.name : ""}`;
  }
}

function nearest(xs, x) {
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle;
  }
  return x - xs[low] <= xs[high] - x ? low : high;
}

function formatTick(value, range, logarithmic = false) {
  const size = Math.abs(value);
  if (size >= 1e4) {
    const [divisor, suffix] = size >= 1e9 ? [1e9, "G"] : size >= 1e6 ? [1e6, "M"] : [1e3, "k"];
    return `${Number((value / divisor).toPrecision(4))}${suffix}`;
  }
  if (logarithmic) return size !== 0 && size < 1e-3 ? value.toExponential(0) : String(Number(value.toPrecision(3)));
  const span = range[1] - range[0];
  if (Math.max(Math.abs(range[0]), Math.abs(range[1])) < 1e-3) return value === 0 ? "0" : value.toExponential(1);
  const digits = Math.min(8, Math.max(0, Math.ceil(1 - Math.log10(span))));
  return String(Number(value.toFixed(digits)));
}

const charts = [];

/** Shows the part of the x axis that was chosen in one chart in all others. */
function setWindow(window, source) {
  state.window = window;
  for (const chart of charts) {
    if (chart === source || !chart.graph) continue;
    if (chart.isVisible) chart.graph.updateOptions({dateWindow: window});
    else chart.isDirty = true;
  }
}

/** Draws what is in sight now and the rest when it comes into sight. */
function redraw() {
  for (const chart of charts) {
    chart.isDirty = true;
    if (chart.isVisible) chart.draw();
  }
}

function drawAll() {
  for (const chart of charts) if (chart.isDirty && !chart.node.hidden) chart.draw();
}

const observer = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = entry.target.chart;
    chart.isVisible = entry.isIntersecting;
    if (chart.isVisible && chart.isDirty) chart.draw();
  }
}, {rootMargin: "400px 0px"});

function buildCharts() {
  for (const group of groups) {
    const grid = element("div", {class: "grid"});
    const id = "group-" + group.title.replaceAll(" ", "-");
    const section = element("section", {id, class: "group"}, element("h2", {textContent: group.title}), grid);
    section.style.setProperty("--charts", group.charts.length);
    // The chart that a reader looks at first is larger.
    section.style.setProperty("--span", Math.max(group.charts.length, group.title === "training and validation" ? 2 : 1));
    for (const description of group.charts) {
      const chart = new Chart(description, group.title);
      charts.push(chart);
      grid.append(chart.node);
      observer.observe(chart.node);
    }
    byId("charts").append(section);
    byId("sections").append(element("a", {href: `#${id}`, textContent: group.title}));
  }
  for (const [id, title] of [["values", "values"], ["configuration", "configuration"]])
    byId("sections").append(element("a", {href: `#${id}`, textContent: title}));
  byId("toolbar").hidden = charts.length === 0;
}

// --- Controls ---

const grey = {grid: "", line: ""};  // colours of the style sheet for what is drawn on canvases

function applyTheme() {
  const dark = state.theme === "dark" || (state.theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.toggleAttribute("data-dark", dark);
  document.documentElement.style.colorScheme = dark ? "dark" : "light";
  byId("theme").textContent = `theme: ${state.theme}`;
  const style = getComputedStyle(document.documentElement);
  for (const name of Object.keys(grey)) grey[name] = style.getPropertyValue(`--${name}`).trim();
  palette().forEach((color, index) => document.documentElement.style.setProperty(`--color${index}`, color));
  for (const swatch of document.querySelectorAll("[data-run-color]"))
    swatch.style.borderTopColor = palette()[Number(swatch.dataset.runColor) % palette().length];
}

function buildControls() {
  for (const [name, axis] of Object.entries(AXES))
    byId("axis").append(element("option", {value: name, textContent: name === "time" ? "time" : axis.title, disabled: !axis.available}));
  byId("axis").addEventListener("change", (event) => {
    state.axis = event.target.value;
    state.window = null;
    redraw();
  });
  byId("smoothing").addEventListener("input", (event) => {
    state.smoothing = Number(event.target.value);
    byId("smoothing-value").textContent = String(state.smoothing);
    redraw();
  });
  byId("logarithmic").addEventListener("change", (event) => {
    state.logarithmic = event.target.checked;
    for (const chart of charts) chart.logarithmic = null;
    redraw();
  });
  byId("whole").addEventListener("click", () => {
    state.window = null;
    redraw();
  });
  byId("filter").addEventListener("input", (event) => {
    const text = event.target.value.trim().toLowerCase();
    for (const chart of charts) chart.node.hidden = !chart.matches(text);
    for (const section of document.querySelectorAll(".group"))
      section.hidden = [...section.querySelectorAll(".chart")].every((node) => node.hidden);
    byId("no-match").hidden = charts.some((chart) => !chart.node.hidden);
  });
  byId("theme").addEventListener("click", () => {
    state.theme = {auto: "light", light: "dark", dark: "auto"}[state.theme];
    applyTheme();
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    applyTheme();
    redraw();
  });
  window.addEventListener("beforeprint", drawAll);
  if (!severalRuns) return;
  runs.forEach((run, index) => {
    const box = element("input", {type: "checkbox", checked: true});
    box.addEventListener("change", () => {
      state.hidden[box.checked ? "delete" : "add"](index);
      redraw();
    });
    byId("run-switches").append(element("label", {title: run.path}, box, runSwatch(index), run.name));
  });
}

function runSwatch(index) {
  const swatch = element("span", {class: "swatch"});
  swatch.style.display = "inline-block";
  swatch.dataset.runColor = index;
  return swatch;
}
