"use strict";
// Draws the charts of a report from the data in #data. Knows nothing about runs.
(() => {
  let { axes, charts, xs, updates } = JSON.parse(document.getElementById("data").textContent);
  // Okabe and Ito's colours, which colour-blind readers can distinguish; black is the text colour.
  const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8c8c00", "#7f7f7f"];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (k) => COLOURS[k % COLOURS.length];
  const faded = (hex, alpha) => hex + Math.round(alpha * 255).toString(16).padStart(2, "0");
  let drawn = [];

  const UNITS = [[1e9, " G"], [1e6, " M"], [1e3, " k"]];
  const PERIODS = [[86400, " d"], [3600, " h"], [60, " min"]];
  // Seconds between the marks of an axis of times.
  const STEPS = [0.001, 0.01, 0.1, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200,
                 10800, 21600, 43200, 86400, 172800, 432000, 864000, 1728000];

  /* All in the unit that suits the largest: an axis has one form of numbers. */
  const numbers = (values, digits) => {
    const most = Math.max(...values.map(Math.abs));
    const [unit, name] = UNITS.find(([size]) => most >= size && most >= 1e4) ?? [1, ""];
    return values.map((v) => (v && most < 1e-3 ? v.toExponential(2) : v ? +(v / unit).toPrecision(digits) + name : "0"));
  };
  const number = (value) => (value == null ? "–" : numbers([value], 4)[0]);
  const duration = (s) => {
    if (s == null) return "–";
    if (s < 60) return number(s) + " s";
    const minutes = Math.floor(s / 60);
    return minutes < 60 ? `${minutes} min ${Math.round(s % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  };
  const durations = (ticks) => {
    const [unit, name] = PERIODS.find(([size]) => ticks.every((s) => s % size === 0)) ?? [1, " s"];
    return ticks.map((s) => (s ? +(s / unit).toPrecision(6) + name : "0"));
  };
  const onAxis = (axis, value) => (axis === "wall_s" ? duration(value) : number(value));
  const onTicks = (axis, ticks) => (axis === "wall_s" ? durations(ticks) : numbers(ticks, 6));

  /* Each series becomes columns over positions of its own, if it has some on this axis; uPlot.join
     aligns them. */
  function columns(entry, axis) {
    const chart = entry.chart;
    const tables = [], options = [{ label: axes[axis], value: (_, v) => onAxis(axis, v) }], bands = [];
    let total = null;
    chart.series.filter((series) => axis in xs[series.x]).forEach((series, k) => {
      const stroke = colour(series.colour ?? k);
      const x = xs[series.x][axis];
      const add = (y, extra) => {
        tables.push([x, y]);
        options.push({ stroke, width: 1.6, spanGaps: true, value: (_, v) => number(v), points: { show: false }, ...extra });
      };
      if (chart.stacked) {
        // A part that a record leaves out was 0, unless the record has none at all.
        const recorded = (i) => chart.series.some((other) => other.y[i] != null);
        const top = series.y.map((v, i) => (recorded(i) ? (v ?? 0) + (total?.[i] ?? 0) : null));
        add(top, { label: series.label, fill: faded(stroke, 0.5),
                   value: (_, __, ___, i) => number(i == null ? null : entry.chart.series[k].y[i]) });
        if (total) bands.push({ series: [tables.length, tables.length - 1] });
        total = top;
        return;
      }
      add(series.y, { label: series.label, dash: series.dash ? [6, 4] : undefined,
                      points: { show: (u, s) => u.data[s].filter((v) => v != null).length < 60, size: 5, fill: stroke } });
      if (series.low) {
        add(series.high, { label: series.range + " high", width: 0, class: "band" });
        add(series.low, { label: series.range + " low", width: 0, class: "band" });
        bands.push({ series: [tables.length - 1, tables.length], fill: faded(stroke, 0.18) });
      }
    });
    return { data: tables.length ? uPlot.join(tables) : [[]], options, bands };
  }

  const marks = (entry, axis) => ({
    hooks: { draw: [(u) => {
      u.ctx.save();
      u.ctx.strokeStyle = css("--bad");
      u.ctx.setLineDash([3, 3]);
      for (const mark of entry.chart.marks) {
        const x = Math.round(u.valToPos(mark[axis], "x", true));
        u.ctx.beginPath();
        u.ctx.moveTo(x, u.bbox.top);
        u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
        u.ctx.stroke();
      }
      u.ctx.restore();
    }] },
  });

  function draw(figure, chart, axis) {
    const entry = { figure, chart };
    const { data, options, bands } = columns(entry, axis);
    const ink = { stroke: css("--faint"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
    const u = new uPlot({
      width: figure.clientWidth - 24,
      height: chart.wide ? 340 : 220,
      series: options,
      bands,
      scales: { x: { time: false }, y: chart.stacked ? { range: [0, 1] } : {} },
      axes: [
        { ...ink, label: axes[axis], labelSize: 22, space: 80, values: (_, ticks) => onTicks(axis, ticks),
          ...(axis === "wall_s" && { incrs: STEPS }) },
        { ...ink, size: 64, values: (_, ticks) => numbers(ticks, 6) },
      ],
      cursor: { sync: { key: "all" }, drag: { x: true, y: false } },
      plugins: [marks(entry, axis)],
    }, data, figure);
    entry.u = u;
    u.root.querySelectorAll(".u-legend .u-series").forEach((row, k) => {
      if (!k) return;
      const show = row.querySelector("th");
      show.tabIndex = 0;
      show.setAttribute("role", "button");
      show.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          u.setSeries(k, { show: !u.series[k].show });
        }
      });
    });
    drawn.push(entry);
  }

  function drawAll(axis) {
    drawn.forEach(({ u }) => u.destroy());
    drawn = [];
    for (const chart of charts) draw(document.getElementById(chart.id), chart, axis);
    count(axis);
  }

  function count(axis) {
    document.documentElement.dataset.drawn = `${drawn.length} over ${axis}`;
  }

  /* Charts of the same lines stay where they are, with what was enlarged or hidden in them. */
  function update(body, axis) {
    const fresh = document.createElement("main"), caption = (figure) => figure.firstChild.textContent;
    fresh.innerHTML = body; // runs no script; texts are escaped as in the page itself
    const kept = new Map(drawn.map((entry) => [caption(entry.figure), entry]));
    const opened = new Set([...document.querySelectorAll("details[open] summary")].map((s) => s.textContent));
    const focused = document.activeElement;
    const added = charts.filter((chart) => {
      const figure = fresh.querySelector(`#${chart.id}`), entry = kept.get(caption(figure));
      if (!entry) return true;
      const { data, options } = columns({ chart }, axis);
      if (String(entry.u.series.map((s) => s.label)) !== String(options.map((s) => s.label))) return true;
      kept.delete(caption(figure));
      Object.assign(entry, { chart, data });
      entry.figure.id = figure.id;
      entry.figure.ariaLabel = figure.ariaLabel;
      figure.replaceWith(entry.figure);
    });
    fresh.querySelectorAll("summary").forEach((s) => { s.parentNode.open = opened.has(s.textContent); });
    fresh.querySelector("fieldset")?.replaceWith(document.querySelector("fieldset") ?? "");
    document.querySelector("main").replaceWith(fresh);
    if (fresh.contains(focused)) focused.focus({ preventScroll: true });
    kept.forEach((entry) => entry.u.destroy());
    drawn = drawn.filter((entry) => fresh.contains(entry.figure));
    drawn.forEach(({ u, data }) => {
      const { min, max } = u.scales.x, before = u.data[0];
      const enlarged = min > before[0] || max < before.at(-1);
      u.setData(data, !enlarged);
      if (enlarged) u.setScale("x", { min, max });
    });
    added.forEach((chart) => draw(document.getElementById(chart.id), chart, axis));
    count(axis);
  }

  function follow() {
    const status = document.createElement("p");
    status.className = "status";
    status.setAttribute("role", "status");
    document.body.append(status);
    const source = new EventSource(updates);
    source.onopen = () => { status.textContent = "live"; };
    source.onerror = () => { status.textContent = "no connection to the run"; };
    source.onmessage = ({ data }) => {
      let body;
      ({ body, data: { charts, xs } } = JSON.parse(data));
      update(body, chosen());
    };
    source.addEventListener("end", () => {
      source.close();
      status.textContent = "the run has ended";
    });
  }

  const switches = [...document.querySelectorAll("input[name=axis]")];
  const chosen = () => switches.find((input) => input.checked)?.value ?? Object.keys(axes)[0];
  const named = switches.find((input) => input.value === location.hash.slice(1));
  if (named) named.checked = true;
  switches.forEach((input) => input.addEventListener("change", () => drawAll(input.value)));
  dark.addEventListener("change", () => drawAll(chosen()));
  addEventListener("resize", () => drawn.forEach(({ u, figure }) => u.setSize({ width: figure.clientWidth - 24, height: u.height })));
  drawAll(chosen());
  if (updates) follow();
})();
