// Appended to a report by levin_report_test.cpp: uses the page as a reader does and writes what is wrong, a line each,
// into an element that the test reads from the browser's dump.
(() => {
  "use strict";
  const wrong = [];
  const expect = (condition, message) => { if (!condition) wrong.push(message); };
  const {charts, state, drawAll} = window.levinReport;
  const byId = (id) => document.getElementById(id);
  const change = (id, value, type = "input") => {
    const node = byId(id);
    if (node.type === "checkbox") node.checked = value; else node.value = value;
    node.dispatchEvent(new Event(type, {bubbles: true}));
    drawAll();
  };

  /** How many pixels of a chart's curves are coloured; axes and grid are grey. */
  const colouredPixels = (chart) => {
    const canvas = chart.plot.querySelector("canvas");
    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let i = 0; i < data.length; i += 4)
      if (data[i + 3] > 60 && Math.max(data[i], data[i + 1], data[i + 2]) - Math.min(data[i], data[i + 1], data[i + 2]) > 60) ++count;
    return count;
  };
  const hasFinite = (chart) => chart.curves.some((curve) => curve.min !== null && !state.hidden.has(curve.run));
  // Where there are very many, some stand for all.
  const looked = charts.filter((chart, i) => charts.length <= 100 || i % 20 === 0);
  const expectAllDrawn = (when) => {
    for (const chart of looked) {
      if (!hasFinite(chart)) expect(chart.plot.textContent.includes("no finite value"), `${when}: ${chart.title} does not say that nothing can be drawn`);
      else if (!chart.graph) wrong.push(`${when}: ${chart.title} is not drawn`);
      else expect(colouredPixels(chart) > 3, `${when}: ${chart.title} has no curve`);
    }
  };

  try {
    for (const chart of looked) chart.draw();
    // Time from the beginning of the navigation until these charts are drawn, in milliseconds.
    document.body.dataset.opened = String(Math.round(performance.now()));
    expect(charts.length === document.querySelectorAll(".chart").length && charts.length > 0, "no chart");
    expectAllDrawn("at first");
    expect(performance.getEntriesByType("resource").length === 0, "the page asked for " + performance.getEntriesByType("resource").map((entry) => entry.name).join());
    expect(byId("failure").hidden, byId("failure").textContent);
    expect(document.querySelectorAll("img:not(.batch), iframe, b").length === 0, "a name became an element");
    expect(document.documentElement.scrollWidth <= window.innerWidth, `the page is wider than the window: ${document.documentElement.scrollWidth} of ${window.innerWidth}`);

    for (const picture of document.querySelectorAll("img.batch")) expect(picture.complete && picture.naturalWidth > 0, "the picture of a batch is not shown");
    expect(byId("batches").hidden === (document.querySelectorAll("#batches table").length === 0), "the section of the training data");

    // What several runs show together.
    for (const id of ["sweep", "scaling", "targets"]) {
      const section = byId(id);
      if (section.hidden) continue;
      expect(section.querySelector("table tbody tr"), `${id} has a table`);
      for (const figure of section.querySelectorAll("svg")) {
        const box = figure.getBoundingClientRect();
        expect(box.width > 200 && box.height > 100, `a figure of ${id} has a size`);
        expect(!/NaN|undefined|Infinity/.test(figure.outerHTML), `a figure of ${id} has what is no number: ${figure.getAttribute("aria-label")}`);
        expect(figure.querySelector("polyline, circle"), `a figure of ${id} is empty: ${figure.getAttribute("aria-label")}`);
        for (const text of figure.querySelectorAll("text")) {
          const inner = text.getBoundingClientRect();
          expect(inner.left >= box.left - 1 && inner.right <= box.right + 1 && inner.top >= box.top - 1 && inner.bottom <= box.bottom + 1, `${id}: '${text.textContent}' is cut off`);
        }
      }
    }
    if (!byId("sweep").hidden) {
      const section = byId("sweep");
      const column = () => [...section.querySelectorAll("tbody tr")].map((row) => row.cells[4].textContent);
      const button = section.querySelectorAll("th button")[4];
      const before = column();
      button.click();
      const rising = column();
      button.click();
      const falling = column();
      const sorted = [...before].sort((a, b) => Number(a) - Number(b));
      expect(rising.join() === sorted.join(), `rows are sorted by the column: ${rising}`);
      expect(falling.join() === sorted.reverse().join(), `a second click sorts them the other way: ${falling}`);
      const line = section.querySelector("polyline[data-row]");
      line.dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
      expect(section.querySelectorAll("tr.marked").length === 1, "the mouse over a line marks the run's row");
      line.dispatchEvent(new MouseEvent("mouseout", {bubbles: true}));
      expect(section.querySelectorAll(".marked").length === 0, "and takes the mark back");
      change("sweep-metric", byId("sweep-metric").options[1].value, "change");
      expect(section.querySelector("svg").textContent.includes(byId("sweep-metric").value), "another metric is drawn");
      expect(section.querySelector("tr.best-run"), "the best run is marked");
    }

    if (document.currentScript.dataset.quick === undefined) {
      // The value under the mouse.
      const chart = charts.find((candidate) => candidate.graph && new Set(candidate.drawn[0].main).size > 20);
      const box = chart.plot.getBoundingClientRect();
      const mouse = (type, x, y) => new MouseEvent(type, {bubbles: true, cancelable: true, view: window, clientX: x, clientY: y, button: 0, detail: 1});
      const surface = () => chart.plot.querySelectorAll("canvas")[1];
      const legend = () => chart.legendValues[chart.drawn[0].index].textContent;
      surface().dispatchEvent(mouse("mousemove", box.left + box.width / 2, box.top + box.height / 2));
      const middle = legend();
      expect(/^step \d/.test(chart.xText.textContent), `hovering shows the step, not '${chart.xText.textContent}'`);
      surface().dispatchEvent(mouse("mousemove", box.left + box.width * 0.3, box.top + box.height / 2));
      expect(legend() !== middle, "hovering elsewhere shows another value");
      surface().dispatchEvent(mouse("mouseout", 0, 0));

      // Dragging zooms all charts; the button shows everything again.
      const whole = chart.graph.xAxisRange();
      const at = (share) => box.left + 60 + (box.width - 60) * share;
      surface().dispatchEvent(mouse("mousedown", at(0.3), box.top + 60));
      document.dispatchEvent(mouse("mousemove", at(0.6), box.top + 62));
      document.dispatchEvent(mouse("mouseup", at(0.6), box.top + 62));
      const part = chart.graph.xAxisRange();
      expect(part[1] - part[0] < 0.6 * (whole[1] - whole[0]), `dragging zooms: ${whole} became ${part}`);
      drawAll();
      for (const other of charts)
        if (other.graph) expect(Math.abs(other.graph.xAxisRange()[0] - part[0]) < 1e-6 * Math.abs(part[1]), `${other.title} has another x axis`);
      byId("whole").click();
      drawAll();
      expect(Math.abs(chart.graph.xAxisRange()[0] - whole[0]) < 1e-6, "the zoom is taken back");

      // Smoothing draws a second, calmer curve.
      const roughness = (values) => values.slice(1).reduce((sum, value, i) => sum + (Number.isFinite(value) && Number.isFinite(values[i]) ? Math.abs(value - values[i]) : 0), 0);
      const before = roughness(chart.drawn[0].main);
      change("smoothing", "0.9");
      expect(roughness(chart.drawn[0].main) < before, "smoothing makes a curve smoother");
      expect(chart.graph.numColumns() === 1 + 2 * chart.drawn.length, "the curve as it was is there, too");
      expectAllDrawn("smoothed");
      change("smoothing", "0");

      change("logarithmic", true, "change");
      expect(charts.some((candidate) => candidate.isLogarithmic()), "logarithmic charts");
      for (const candidate of charts)
        if (candidate.graph) expect(candidate.graph.yAxisRange(0).every(Number.isFinite), `${candidate.title} has a logarithmic axis`);
      change("logarithmic", false, "change");

      for (const option of byId("axis").options) {
        if (option.disabled) continue;
        change("axis", option.value, "change");
        if (option.value !== "time") expectAllDrawn(option.value);
        expect(chart.graph.xAxisRange().every(Number.isFinite), `the axis ${option.value} has a range`);
      }
      change("axis", "step", "change");

      change("filter", charts[0].names[0]);
      expect(!charts[0].node.hidden, "the filter shows what it names");
      change("filter", "no metric has such a name");
      expect(charts.every((candidate) => candidate.node.hidden) && !byId("no-match").hidden, "the filter hides everything else");
      change("filter", "");
      expect(charts.every((candidate) => !candidate.node.hidden), "an empty filter shows everything");

      byId("theme").click();
      byId("theme").click();
      drawAll();
      expect(document.documentElement.hasAttribute("data-dark"), "the theme is dark");
      expectAllDrawn("dark");
      byId("theme").click();

      const box0 = byId("run-switches").querySelector("input");
      if (box0) {
        box0.click();
        drawAll();
        expect(state.hidden.has(0), "a run can be hidden");
        expectAllDrawn("without the first run");
        box0.click();
        drawAll();
      }
    }
  } catch (error) {
    wrong.push(`the checks ended with ${error.stack}`);
  }
  const result = document.createElement("pre");
  result.id = "checks";
  result.textContent = "BEGIN\n" + wrong.join("\n") + "\nEND";
  document.body.append(result);
  console.error("checks done");
})();
