// Small figures as SVG, drawn at the width that there is, in colours that the style sheet defines.

const COLUMN_GAP = 0.14;

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.box = figure.querySelector(".chart");
    this.title = figure.querySelector("h3").textContent;
    this.caption = figure.querySelector("figcaption").textContent;
    this.data = JSON.parse(figure.querySelector("script").textContent);
    this.at = null;
    this.width = 0;
    new ResizeObserver(() => this.draw()).observe(this.box);
    this.draw();
  }

  draw() {
    const width = Math.round(this.box.clientWidth);
    if (width === 0 || width === this.width) return;
    this.width = width;
    hideTip();
    const draw = { lines: drawLines, stack: drawStack, bars: drawBars, grid: drawGrid }[this.data.kind];
    const { svg, legend, pick } = draw(this.data, width, this);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${this.title}. ${this.caption}`);
    svg.setAttribute("tabindex", "0");
    this.box.replaceChildren(legend, svg);
    this.listen(svg, pick);
  }

  /** pick(x, y) or pick(index) gives {index, count, mark, tip, x, y}; the tip follows pointer and arrow keys. */
  listen(svg, pick) {
    const marks = makeSvg("g", { class: "marks" });
    svg.append(marks);
    const show = (found) => {
      marks.replaceChildren();
      this.at = found ? found.index : null;
      if (!found) { hideTip(); return; }
      marks.append(...found.mark);
      const frame = svg.getBoundingClientRect();
      showTip(found.tip, frame.left + found.x, frame.top + found.y);
    };
    const point = (event) => {
      const frame = svg.getBoundingClientRect();
      show(pick({ x: event.clientX - frame.left, y: event.clientY - frame.top }));
    };
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", () => show(null));
    svg.addEventListener("blur", () => show(null));
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") show(null);
      if (!step) return;
      event.preventDefault();
      show(pick({ index: this.at === null ? (step > 0 ? 0 : Infinity) : this.at + step }));
    });
  }
}

// ---------------------------------------------------------------- axes

/** A round step; a multiple of `least` where that is given: there is no step 2.5 of a run. */
function niceStep(span, count, least) {
  const raw = span / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 2.5, 5, 10].map((m) => m * power)
    .find((step) => step >= raw * 0.999 && (!least || Number.isInteger(step / least))) ?? least;
}

function ticks(low, high, count, least = 0) {
  if (!(high > low)) return [low];
  const step = Math.max(niceStep(high - low, count, least), least);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(i * step);
  return found;
}

const inPercent = (value) => `${Number((100 * value).toFixed(1))}%`;

function frame(width, { left = 40, right = 10, height = 240 }) {
  const plot = { left, top: 10, right: width - right, bottom: height - 38, width, height };
  const svg = makeSvg("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  return { svg, plot };
}

function text(x, y, words, attributes = {}) {
  return makeSvg("text", { x, y, ...attributes }, words);
}

function yAxis(svg, plot, low, high, say, side = "left") {
  const at = (value) => plot.bottom - ((value - low) / (high - low || 1)) * (plot.bottom - plot.top);
  for (const tick of ticks(low, high, 4)) {
    const y = at(tick);
    if (side === "left") {
      svg.append(makeSvg("line", { class: "grid", x1: plot.left, x2: plot.right, y1: y, y2: y }));
      svg.append(text(plot.left - 7, y + 4, say(tick), { "text-anchor": "end" }));
    } else {
      svg.append(text(plot.right + 7, y + 4, say(tick)));
    }
  }
  return at;
}

function xAxis(svg, plot, low, high, name, least) {
  const at = (value) => high > low
    ? plot.left + ((value - low) / (high - low)) * (plot.right - plot.left)
    : (plot.left + plot.right) / 2;
  for (const tick of ticks(low, high, (plot.right - plot.left) / 70, least)) {
    svg.append(text(at(tick), plot.bottom + 17, short(tick), { "text-anchor": "middle" }));
  }
  svg.append(text((plot.left + plot.right) / 2, plot.bottom + 34, name, { "text-anchor": "middle", class: "axis" }));
  return at;
}

function legendOf(items) {
  return make("ul", { className: "legend" }, ...items.map(({ name, color, mark }) => {
    const swatch = make("span", { className: `swatch ${mark || "block"}` });
    swatch.style.setProperty("--tone", `var(--${color})`);
    return make("li", {}, swatch, name);
  }));
}

function tipRows(title, rows) {
  return [make("strong", {}, title), ...rows.map(({ name, value, color }) => {
    const swatch = make("span", { className: "swatch block" });
    swatch.style.setProperty("--tone", `var(--${color})`);
    return make("div", { className: "row" }, make("span", {}, swatch, name), make("span", {}, value));
  })];
}

const leftOf = (labels) => 14 + 7 * Math.max(...labels.map((label) => label.length), 2);
const known = (values) => values.filter((value) => value !== null && value !== undefined);

function nearest(values, target) {
  let best = 0;
  values.forEach((value, i) => { if (Math.abs(value - target) < Math.abs(values[best] - target)) best = i; });
  return best;
}

const bounded = (index, count) => Math.min(Math.max(index, 0), count - 1);

/** What the pointer or the arrow keys point at, along x. */
function alongX(points, plot, describe) {
  return ({ x, index }) => {
    if (!points.length) return null;
    const i = index === undefined ? nearest(points, x) : bounded(index, points.length);
    const line = makeSvg("line", { class: "cursor", x1: points[i], x2: points[i], y1: plot.top, y2: plot.bottom });
    const { tip, dots = [] } = describe(i);
    return { index: i, mark: [line, ...dots], tip, x: points[i], y: plot.top };
  };
}

// ---------------------------------------------------------------- kinds

/** Runs of indices at which every one of the given values is there. */
function runs(...columns) {
  const found = [];
  let open = null;
  columns[0].forEach((_, i) => {
    const there = columns.every((column) => column[i] !== null && column[i] !== undefined);
    if (there && !open) found.push(open = []);
    if (there) open.push(i); else open = null;
  });
  return found;
}

function drawLines(data, width) {
  const left = data.series.filter((one) => !one.right);
  const values = known(left.flatMap((one) => [...one.y, ...(one.low || []), ...(one.high || [])]));
  let low = Math.min(...values), high = Math.max(...values);
  if (!values.length) { low = 0; high = 1; }
  if (data.zero) low = Math.min(low, 0);
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  high += room;
  if (!data.zero) low -= room;
  if (data.percent) { low = Math.max(low, 0); high = Math.min(high, 1); }
  if (!(high > low)) high = low + 1;
  const say = data.percent ? inPercent : short;
  const second = data.series.some((one) => one.right);
  const { svg, plot } = frame(width, {
    left: leftOf(ticks(low, high, 4).map(say)), right: second ? 48 : 12,
  });
  const y = yAxis(svg, plot, low, high, say);
  const y2 = second ? yAxis(svg, plot, 0, 1, inPercent, "right") : null;
  const steps = known(data.x);
  const x = xAxis(svg, plot, Math.min(...steps), Math.max(...steps), "step", 1);
  const path = (run, column, scale) => run.map((i) => `${x(data.x[i]).toFixed(1)},${scale(column[i]).toFixed(1)}`);
  for (const one of data.series) {
    const scale = one.right ? y2 : y, tone = `var(--${one.color})`;
    if (one.low && !one.bars) {
      for (const run of runs(data.x, one.low, one.high)) {
        if (run.length > 1) {
          const points = [...path(run, one.low, scale), ...path(run, one.high, scale).reverse()];
          svg.append(makeSvg("polygon", { class: "band", points: points.join(" "), fill: tone }));
        }
      }
    }
    if (one.low && (one.bars || data.x.length === 1)) {
      for (const i of runs(data.x, one.low, one.high).flat()) {
        const at = x(data.x[i]).toFixed(1), a = scale(one.low[i]).toFixed(1), b = scale(one.high[i]).toFixed(1);
        const d = `M${at},${a}V${b}M${at - 4},${a}h8M${at - 4},${b}h8`;
        svg.append(makeSvg("path", { class: "whisker", d, stroke: tone }));
      }
    }
    for (const run of runs(data.x, one.y)) {
      const points = path(run, one.y, scale);
      if (one.fill && run.length > 1) {
        const foot = [`${x(data.x[run.at(-1)]).toFixed(1)},${plot.bottom}`, `${x(data.x[run[0]]).toFixed(1)},${plot.bottom}`];
        svg.append(makeSvg("polygon", { class: "band", points: [...points, ...foot].join(" "), fill: tone }));
      }
      svg.append(makeSvg("polyline", {
        class: one.dash ? "line dash" : one.fill ? "line thin" : "line", points: points.join(" "), stroke: tone,
      }));
      if ((data.x.length <= 40 && !one.fill) || run.length === 1) {
        run.forEach((i) => svg.append(makeSvg("circle", {
          class: "point", cx: x(data.x[i]).toFixed(1), cy: scale(one.y[i]).toFixed(1), r: 2.6, fill: tone,
        })));
      }
    }
  }
  const points = data.x.map((value) => x(value));
  const value = (one, i) => (one.right || data.percent ? (one.y[i] === null ? "–" : inPercent(one.y[i])) : short(one.y[i]));
  const range = (one, i) => (one.low && one.low[i] !== null
    ? ` (${data.percent ? inPercent(one.low[i]) : short(one.low[i])} to ${data.percent ? inPercent(one.high[i]) : short(one.high[i])})` : "");
  const pick = alongX(points, plot, (i) => ({
    tip: tipRows(`step ${short(data.x[i])}`, data.series.map((one) => ({
      name: one.name.replace(" (right axis)", ""), color: one.color, value: value(one, i) + range(one, i),
    }))),
    dots: data.series.filter((one) => one.y[i] !== null).map((one) => makeSvg("circle", {
      class: "point", cx: points[i], cy: (one.right ? y2 : y)(one.y[i]), r: 4, fill: `var(--${one.color})`,
    })),
  }));
  const legend = data.series.flatMap((one) => [
    { name: one.name, color: one.color, mark: one.fill ? "soft" : one.dash ? "dash" : "stroke" },
    ...(one.range_name ? [{ name: one.range_name, color: one.color, mark: "soft" }] : []),
  ]);
  return { svg, legend: legendOf(legend), pick };
}

function drawStack(data, width) {
  const count = data.x.length;
  const sums = data.x.map((_, i) => data.series.reduce((sum, one) => sum + (one.y[i] || 0), 0));
  const high = data.top || Math.max(...sums, 0) * 1.04 || 1;
  const say = data.percent ? inPercent : (value) => short(value) + (data.unit ? ` ${data.unit}` : "");
  const { svg, plot } = frame(width, { left: leftOf(ticks(0, high, 4).map(say)) });
  const y = yAxis(svg, plot, 0, high, say);
  const steps = known(data.x);
  const first = Math.min(...steps), last = Math.max(...steps);
  // Each step is a column of its own width: its share is read off exactly, and one step alone still has an area.
  const half = count > 1 ? (last - first) / (count - 1) / 2 : 0.5;
  const x = xAxis(svg, plot, first - half, last + half, "step", 1);
  const under = new Array(count).fill(0);
  const wide = (plot.right - plot.left) / count;
  const gap = wide > 6 ? COLUMN_GAP * half * 2 : 0;
  for (const one of data.series) {
    let d = "";
    data.x.forEach((step, i) => {
      const size = one.y[i] || 0;
      if (step === null || size <= 0) return;
      const a = x(step - half + gap / 2), b = x(step + half - gap / 2);
      d += `M${a.toFixed(1)},${y(under[i]).toFixed(1)}H${b.toFixed(1)}V${y(under[i] + size).toFixed(1)}H${a.toFixed(1)}Z`;
      under[i] += size;
    });
    svg.append(makeSvg("path", { class: "area", d, fill: `var(--${one.color})` }));
  }
  const points = data.x.map((value) => x(value));
  const pick = alongX(points, plot, (i) => ({
    tip: tipRows(`step ${short(data.x[i])}`, [...data.series].reverse().map((one) => ({
      name: one.name, color: one.color, value: one.y[i] === null ? "–" : say(one.y[i]),
    }))),
  }));
  return { svg, legend: legendOf(data.series), pick };
}

function drawBars(data, width) {
  const bins = data.edges.length - 1;
  const sums = data.series[0].y.map((_, i) => data.series.reduce((sum, one) => sum + one.y[i], 0));
  const high = Math.max(...sums, 1) * 1.05;
  const { svg, plot } = frame(width, { left: leftOf(ticks(0, high, 4).map(short)) });
  const y = yAxis(svg, plot, 0, high, short);
  const x = xAxis(svg, plot, data.edges[0], data.edges[bins], "advantage", 0);
  const zero = x(0);
  svg.append(makeSvg("line", { class: "zero", x1: zero, x2: zero, y1: plot.top, y2: plot.bottom }));
  const under = new Array(bins).fill(0);
  for (const one of data.series) {
    let d = "";
    one.y.forEach((size, i) => {
      if (!size) return;
      const a = x(data.edges[i]) + 0.5, b = x(data.edges[i + 1]) - 0.5;
      d += `M${a.toFixed(1)},${y(under[i]).toFixed(1)}H${b.toFixed(1)}V${y(under[i] + size).toFixed(1)}H${a.toFixed(1)}Z`;
      under[i] += size;
    });
    svg.append(makeSvg("path", { class: "area", d, fill: `var(--${one.color})` }));
  }
  const points = data.series[0].y.map((_, i) => (x(data.edges[i]) + x(data.edges[i + 1])) / 2);
  const pick = alongX(points, plot, (i) => ({
    tip: tipRows(`${short(data.edges[i])} to ${short(data.edges[i + 1])}`, data.series.map((one) => ({
      name: one.name, color: one.color, value: whole(one.y[i]),
    }))),
  }));
  return { svg, legend: legendOf(data.series), pick };
}

const rateClass = (rate) => (rate <= 0 ? 0 : rate >= 1 ? 5 : Math.min(Math.max(Math.ceil(4 * rate), 1), 4));

function drawGrid(data, width, chart) {
  const columns = data.x.length, rows = data.rows.length;
  const named = data.scale === "share";
  const labels = named ? data.rows : width > 620 ? data.labels : null;
  const rowHeight = named ? 30 : Math.max(labels ? 13 : 9, Math.min(20, 420 / rows));
  const left = labels ? leftOf(labels) : 12;
  const height = 10 + 38 + rows * rowHeight;
  const { svg, plot } = frame(width, { left, height });
  const cellWidth = (plot.right - plot.left) / columns;
  const gap = cellWidth > 5 && rowHeight > 7 ? 1 : 0;
  const cells = makeSvg("g");
  const most = Math.max(...known(data.cells.flat()), 1e-9);
  const place = (row, column) => ({
    x: (plot.left + column * cellWidth).toFixed(2),
    y: ((named ? plot.bottom - (row + 1) * rowHeight : plot.top + row * rowHeight)).toFixed(2),
    width: Math.max(cellWidth - gap, 0.5).toFixed(2), height: (rowHeight - gap).toFixed(2),
  });
  data.cells.forEach((row, r) => row.forEach((value, c) => {
    if (value === null) return;
    const tone = named ? { fill: "var(--blue)", "fill-opacity": (value === 0 ? 0.05 : 0.15 + (0.85 * value) / most).toFixed(3) }
      : { fill: `var(--rate-${rateClass(value)})` };
    cells.append(makeSvg("rect", { ...place(r, c), ...tone }));
  }));
  svg.append(cells);
  if (labels) {
    labels.forEach((name, r) => svg.append(
      text(plot.left - 7, Number(place(r, 0).y) + (rowHeight - gap) / 2 + 4, name, { "text-anchor": "end" })));
  }
  const every = Math.max(1, Math.ceil(columns / Math.max((plot.right - plot.left) / (8 * Math.max(...data.x.map((l) => l.length)) + 18), 1)));
  data.x.forEach((label, c) => {
    if (c % every === 0) svg.append(text(plot.left + (c + 0.5) * cellWidth, plot.bottom + 17, label, { "text-anchor": "middle" }));
  });
  svg.append(text((plot.left + plot.right) / 2, plot.bottom + 34, "step", { "text-anchor": "middle", class: "axis" }));
  const pick = ({ x, y, index }) => {
    let r, c;
    if (index === undefined) {
      c = Math.floor((x - plot.left) / cellWidth);
      r = Math.floor((named ? plot.bottom - y : y - plot.top) / rowHeight);
      if (c < 0 || c >= columns || r < 0 || r >= rows) return null;
    } else {
      const i = bounded(index, rows * columns);
      r = Math.floor(i / columns); c = i % columns;
    }
    const at = place(r, c), value = data.cells[r][c];
    const title = make("span", {});
    title.append(inert(named ? `pass rate ${data.rows[r]}` : data.rows[r]));
    return {
      index: r * columns + c, row: r, column: c, x: Number(at.x) + cellWidth / 2, y: Number(at.y),
      mark: [makeSvg("rect", { class: "chosen", ...at })],
      tip: [make("strong", {}, `step ${data.x[c]}`), title,
        make("div", {}, value === null ? "not drawn" : `${inPercent(value)} ${data.what}`)],
    };
  };
  if (!named && data.keys) {
    svg.classList.add("choosable");
    const choose = (found) => {
      if (found && data.cells[found.row][found.column] !== null) {
        chart.figure.dispatchEvent(new CustomEvent("choose", { bubbles: true, detail: {
          key: data.keys[found.row], name: data.rows[found.row], steps: data.steps[found.column], label: data.x[found.column],
        } }));
      }
    };
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect();
      choose(pick({ x: event.clientX - box.left, y: event.clientY - box.top }));
    });
    svg.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && chart.at !== null) choose(pick({ index: chart.at }));
    });
  }
  const legend = named ? make("ul", { className: "legend" }, make("li", {}, "share of the step's groups"))
    : legendOf([["none right", 0], ["up to ¼", 1], ["up to ½", 2], ["up to ¾", 3], ["below all", 4], ["all right", 5]]
      .map(([name, i]) => ({ name, color: `rate-${i}` })));
  return { svg, legend, pick };
}

// ---------------------------------------------------------------- the tip

function showTip(children, x, y) {
  const tip = document.querySelector("[data-tip]");
  tip.replaceChildren(...children);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 14 + box.width > document.documentElement.clientWidth ? x - 14 - box.width : x + 14;
  tip.style.left = `${Math.max(left, 6)}px`;
  tip.style.top = `${Math.min(Math.max(y, 6), window.innerHeight - box.height - 6)}px`;
}

function hideTip() {
  document.querySelector("[data-tip]").hidden = true;
}

function drawFigures(root) {
  return [...root.querySelectorAll("figure[data-figure]")].map((figure) => new Chart(figure));
}
