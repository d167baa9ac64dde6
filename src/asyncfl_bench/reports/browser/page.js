// Runs come by column; this file chooses what Vega draws of them and tells about a point. tables.js comes before it.
const SELECTS = ["panel", "axis", "metric", "part", "scale"], CHECKS = ["log", "each"];
let data, view, only, cursor = null, kept = false, drawing = 0;

async function unpacked(id) {
  const bytes = Uint8Array.from(atob(at(id).textContent.trim()), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
const shortly = (x) => x == null ? "–" : Math.abs(x) >= 10000 ? Math.round(x).toLocaleString("en") : String(+x.toPrecision(4));
const label = (kind, key) => (data[kind].find((one) => one[0] === key) || [key, key])[1];
const isShown = (line) => !only.size || only.has(data.series[line.series].name);
const panels = () => at("panel").value === "" ? data.panels.map((_, i) => i) : [Number(at("panel").value)];

// ---- means: as mean_curve of measures.py, which a test compares with this ------------------------------------------
function mean(line, axis, metric, log) {
  const percent = data.percent.includes(metric);
  const curves = line.runs.map((run) => {
    const last = new Map();  // of several evaluations at one place the last
    (run[axis] || []).forEach((x, i) => x != null && !(log && x <= 0) && (run[metric] || [])[i] != null && last.set(x, run[metric][i]));
    return [...last].sort((a, b) => a[0] - b[0]);
  }).filter((points) => points.length);
  if (!curves.length) return null;
  const start = Math.max(...curves.map((points) => points[0][0])), end = Math.min(...curves.map((points) => points.at(-1)[0]));
  const spread = (i) => log ? start * (end / start) ** (i / (data.grid - 1)) : start + (end - start) * i / (data.grid - 1);
  let places = [...new Set(curves.flatMap((points) => points.map(([x]) => x)))].sort((a, b) => a - b).filter((x) => x >= start && x <= end);
  const same = curves.every((points) => points.length >= places.length && places.every((x, i) => points[i][0] === x));
  if (!same && places.length > data.grid)
    places = Array.from({ length: data.grid }, (_, i) => i === data.grid - 1 ? end : spread(i));
  const n = curves.length, found = { x: places, mean: [], std: [], low: [], high: [], seeds: line.published ? 0 : n };
  const next = curves.map(() => 0);
  for (const x of places) {
    const values = curves.map((points, c) => {
      while (next[c] < points.length - 1 && points[next[c]][0] < x) next[c]++;
      const [x1, y1] = points[next[c]], [x0, y0] = points[Math.max(0, next[c] - 1)];
      return x1 === x || x1 === x0 ? y1 : y0 + (y1 - y0) * (x - x0) / (x1 - x0);
    });
    const middle = values.reduce((a, b) => a + b, 0) / n;
    const std = n > 1 ? Math.sqrt(values.reduce((a, b) => a + (b - middle) ** 2, 0) / (n - 1)) : 0;
    found.mean.push(middle);
    found.std.push(std);
    found.low.push(percent ? Math.max(0, middle - std) : middle - std);
    found.high.push(percent ? Math.min(100, middle + std) : middle + std);
  }
  return found;
}
function curve(line) {
  const axis = at("axis").value, metric = at("metric").value, log = at("log").checked, key = `${axis} ${metric} ${log}`;
  line.known ??= {};
  return key in line.known ? line.known[key] : line.known[key] = mean(line, axis, metric, log);
}

// ---- what is drawn -------------------------------------------------------------------------------------------------
function rows() {
  const found = [], axis = at("axis").value, metric = at("metric").value, wanted = panels();
  data.lines.forEach((line, l) => {
    const c = curve(line);
    if (!wanted.includes(line.panel) || !c) return;
    const place = { panel: data.panels[line.panel], series: data.series[line.series].name };
    const from = at("part").value === "late" ? c.x.at(-1) / 2 : c.x[0];
    c.x.forEach((x, i) => x >= from && found.push({ ...place, kind: "mean", line: `${l}`, key: `${l}:${i}`, x,
      y: c.mean[i], low: c.low[i], high: c.high[i], seeds: c.seeds }));
    if (at("each").checked && !line.published) line.runs.forEach((run, r) => (run[axis] || []).forEach((x, i) =>
      x >= from && run[metric] && run[metric][i] != null && found.push({ ...place, kind: "run", line: `${l}:${r}`,
        key: `${l}:${i}:${r}`, x, y: run[metric][i] })));
  });
  return found;
}
function specification(values, width, legend) {
  const names = data.series.map((one) => one.name).filter((name) => values.some((row) => row.series === name));
  const spec = JSON.parse(JSON.stringify(data.chart), (key, value) => key === "legend" && legend
    ? { title: null, orient: "bottom", columns: 5, values: names, labelLimit: 300, labelFontSize: 12,
      symbolType: "stroke", symbolSize: 700, symbolStrokeWidth: 2.2, symbolOpacity: 1, symbolFillColor: "none", columnPadding: 24 }
    : value === "X_TITLE" ? label("axes", at("axis").value) : value === "Y_TITLE" ? label("metrics", at("metric").value) : value);
  const n = panels().length, across = Math.min(n === 4 ? 2 : n, width > 1000 ? 3 : width > 620 ? 2 : 1);
  if (at("log").checked) spec.spec.layer.forEach((layer) => layer.encoding.x.scale = { type: "log", nice: false });
  spec.datasets = { shown: values };
  spec.columns = across;
  spec.facet.sort = data.panels;
  spec.spec.width = Math.max(200, Math.floor((width - 66) / across) - (at("scale").value === "own" ? 46 : 22));
  spec.spec.height = Math.round(Math.min(n > 1 ? 300 : 440, Math.max(200, spec.spec.width * 0.62)));
  spec.resolve = { scale: { x: "independent", y: at("scale").value === "own" ? "independent" : "shared" } };
  return spec;
}
async function draw() {
  const turn = ++drawing;
  drop();
  const spec = specification(rows(), at("chart").clientWidth || 960, false);
  const made = await vegaEmbed(at("chart"), spec, { actions: false, renderer: "svg", logLevel: 1, tooltip: (_, event, item, value) => hovered(value == null ? null : item) });
  if (turn !== drawing) return made.finalize();
  if (view) view.finalize();
  view = made;
  view.view.signal("isolated", [...only]);
  await view.view.runAsync();
  const where = at("panel").value === "" ? "" : `, ${data.panels[panels()[0]]}`;
  at("caption").textContent = `${label("metrics", at("metric").value)} over ${label("axes", at("axis").value)}${where}`;
  at("chart").setAttribute("aria-label", `Chart of ${at("caption").textContent}, ${data.series.length} series`);
  document.body.dataset.drawn = String(turn);
  remember();
}

// ---- series --------------------------------------------------------------------------------------------------------
function legend() {
  const swatch = (one) => element("span", { innerHTML: `<svg width="34" height="10" aria-hidden="true"><line x1="1" y1="5" x2="33" y2="5"
    stroke="${one.colour}" stroke-width="2.6" stroke-dasharray="${one.dash.join(" ")}"/></svg>` });
  const buttons = data.series.map((one) => element("button", { type: "button", value: one.name,
    onclick: () => isolate(only.has(one.name) ? [...only].filter((name) => name !== one.name) : [...only, one.name]) },
    swatch(one), one.name));
  at("legend").append(...buttons, element("button", { type: "button", className: "all", hidden: true, onclick: () => isolate([]) }, "show all"));
}
async function isolate(names) {
  only = new Set(names);
  at("legend").classList.toggle("isolating", only.size > 0);
  at("legend").querySelectorAll("button").forEach((one) =>
    one.className === "all" ? one.hidden = !only.size : one.setAttribute("aria-pressed", only.has(one.value)));
  if (!view) return;
  drop();
  await view.view.signal("isolated", [...only]).runAsync();
  remember();
}

// ---- reading a point -----------------------------------------------------------------------------------------------
function hovered(item) {  // the nearest point is one level down: the mouse is over its cell
  const key = ((item || {}).datum?.datum ?? (item || {}).datum ?? {}).key;
  if (!kept && (key || !at("chart").matches(":focus-visible"))) key ? point(key) : drop();
}
async function point(key) {
  cursor = key;
  await view.view.signal("cursor", key).runAsync();
  if (cursor === key) tell();
}
function drop() {
  cursor = null; kept = false;
  at("tip").hidden = true;
  at("tip").classList.remove("kept");
  if (view) view.view.signal("cursor", "").runAsync();
}
function tell() {
  const [l, i, r] = cursor.split(":").map(Number), line = data.lines[l], one = data.series[line.series], c = curve(line);
  const run = r === undefined ? null : line.runs[r], axis = at("axis").value, metric = at("metric").value;
  const value = run ? run[metric][i] : c.mean[i], rest = [];
  const told = (x) => data.percent.includes(metric) ? x.toFixed(2) : shortly(x);
  if (!run && c.seeds > 1) rest.push(["std over seeds", told(c.std[i])]);
  if (!run && data.t[c.seeds]) {
    const half = data.t[c.seeds] * c.std[i] / Math.sqrt(c.seeds);
    rest.push(["95 % interval", `${told(c.mean[i] - half)} to ${told(c.mean[i] + half)}`]);
  }
  if (!run && c.seeds) rest.push(["seeds", String(c.seeds)]);
  rest.push(...Object.entries(line.settings));
  const split = (each) => Math.max(each.run.lastIndexOf("/"), each.run.lastIndexOf("::") + 1) + 1, all = run ? [run] : line.published ? [] : line.runs;
  const folders = [...new Set(all.map((each) => each.run.slice(0, split(each))))], apart = folders.length !== 1;
  const runs = all.map((each) => element("div", {}, `seed ${each.seed}: ${apart ? each.run : each.run.slice(split(each))}`));
  at("tip").replaceChildren(
    element("h3", {}, at("legend").querySelectorAll("button span")[line.series].cloneNode(true), one.name),
    element("div", {}, data.panels[line.panel]),
    element("div", { className: "value" }, `${label("metrics", metric)}: `, element("b", {}, told(value)),
      ` at ${shortly(run ? run[axis][i] : c.x[i])} ${label("axes", axis)}`),
    element("dl", {}, ...rest.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]),
      ...(runs.length ? [element("dt", {}, "runs"), element("dd", { className: "runs" }, apart ? "" : folders[0], ...runs)] : [])));
  at("tip").hidden = false;
  const mark = at("chart").querySelector("[class*=cursor_marks] path"), size = at("tip").getBoundingClientRect();
  const box = (mark || at("chart")).getBoundingClientRect(), wide = document.documentElement.clientWidth;
  const left = box.right + 14 + size.width > wide ? Math.max(8, box.left - 14 - size.width) : box.right + 14;
  const top = Math.max(8, Math.min(box.top + 12, window.innerHeight - size.height - 8));
  Object.assign(at("tip").style, { left: `${left + window.scrollX}px`, top: `${top + window.scrollY}px` });
}
function keyed(event) {
  if (event.key === "Escape") return drop();
  const wanted = panels(), lines = data.lines.map((line, l) => l).filter((l) => isShown(data.lines[l]) && curve(data.lines[l]) && wanted.includes(data.lines[l].panel));
  if (!lines.length || !["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown"].includes(event.key)) return;
  event.preventDefault();
  let [l, i] = cursor ? cursor.split(":").map(Number) : [lines[0], -1];
  if (!lines.includes(l)) [l, i] = [lines[0], -1];
  const from = curve(data.lines[l]), first = at("part").value === "late" ? from.x.findIndex((x) => x >= from.x.at(-1) / 2) : 0;
  const x = from.x[Math.max(i, first)], last = from.x.length - 1;
  const near = (k) => curve(data.lines[k]).x.reduce((best, other, j, all) => Math.abs(other - x) < Math.abs(all[best] - x) ? j : best, 0);
  if (event.key === "ArrowRight") i = Math.min(Math.max(i + 1, first), last);
  else if (event.key === "ArrowLeft") i = Math.max(i - 1, first);
  else if (event.key === "Home") i = first;
  else if (event.key === "End") i = last;
  else if (event.key.startsWith("Arrow")) {  // the next line above or below at this place
    const here = lines.filter((k) => data.lines[k].panel === data.lines[l].panel);
    here.sort((a, b) => curve(data.lines[a]).mean[near(a)] - curve(data.lines[b]).mean[near(b)] || a - b);
    const next = here[here.indexOf(l) + (event.key === "ArrowUp" ? 1 : -1)];
    if (next !== undefined) [i, l] = [near(next), next];
  } else {
    const step = wanted.indexOf(data.lines[l].panel) + (event.key === "PageDown" ? 1 : -1);
    const next = lines.find((k) => data.lines[k].panel === wanted[step] && data.lines[k].series === data.lines[l].series)
      ?? lines.find((k) => data.lines[k].panel === wanted[step]);
    if (next !== undefined) [i, l] = [near(next), next];
  }
  kept = false;
  point(`${l}:${i}`);
}

// ---- the page's own address keeps the choices, so a reload or a link shows the same -------------------------------------
function remember() {
  const state = new URLSearchParams(SELECTS.map((id) => [id, at(id).value]));
  CHECKS.forEach((id) => at(id).checked && state.set(id, "1"));
  only.forEach((name) => state.append("only", name));
  history.replaceState(null, "", `#${state}`);
}
function recall() {
  const state = new URLSearchParams(location.hash.slice(1));
  for (const id of SELECTS) if ([...at(id).options].some((one) => one.value === state.get(id))) at(id).value = state.get(id);
  CHECKS.forEach((id) => at(id).checked = state.has(id));
  const names = data.series.map((one) => one.name);
  return isolate(state.has("axis") ? state.getAll("only").filter((name) => names.includes(name)) : data.first);
}

// ---- files ---------------------------------------------------------------------------------------------------------
const visible = () => rows().filter((row) => !only.size || only.has(row.series));
const fileName = (text) => `${text.toLowerCase().replace(/[^a-z0-9]+/g, "_").replace(/^_|_$/g, "")}`;
function curvesCsv() {
  const axis = at("axis").value, metric = at("metric").value, of = (row) => data.lines[Number(row.line.split(":")[0])].runs[Number(row.line.split(":")[1])];
  const lines = visible().map((row) => [row.panel, row.series, row.kind, row.kind === "run" ? of(row).run : "", row.x, row.y, row.low, row.high, row.seeds]);
  save(`${fileName(`${metric} ${axis}`)}.csv`, "text/csv", csv([["panel", "series", "kind", "run", axis, metric, "mean - std", "mean + std", "seeds"], ...lines]));
}
async function curvesSvg() {
  const picture = await vegaEmbed(document.createElement("div"), specification(visible(), 1000, true), { actions: false, logLevel: 1 });
  save(`${fileName(`${at("metric").value} ${at("axis").value}`)}.svg`, "image/svg+xml", await picture.view.toSVG());
}

// ---- start ---------------------------------------------------------------------------------------------------------
async function start() {
  data = JSON.parse(await unpacked("data"));
  if (data.refresh) reload(1000 * data.refresh);
  if (!data.lines.length) return;
  new Function(await unpacked("library"))();  // it sets vegaEmbed
  const option = (value, text) => new Option(text, value);
  if (data.panels.length > 1) at("panel").append(option("", "all panels"));
  if (data.left_out.length) at("left-out").textContent = `Left out to keep this file small: ${data.left_out.join(", ")}.`;
  at("panel").append(...data.panels.map((name, i) => option(String(i), name || "all runs")));
  if (data.panels.length > 12) at("panel").value = "0";
  at("axis").append(...data.axes.map(([key, text]) => option(key, text)));
  at("axis").value = data.axis;
  at("metric").append(...data.metrics.map(([key, text]) => option(key, text)));
  at("curves").hidden = false;
  only = new Set();
  legend();
  await recall();
  for (const id of [...SELECTS, ...CHECKS]) at(id).addEventListener("change", draw);
  at("csv").onclick = curvesCsv;
  at("svg").onclick = curvesSvg;
  at("chart").addEventListener("keydown", keyed);
  at("chart").addEventListener("blur", () => kept || drop());
  at("chart").addEventListener("click", () => { if (cursor) { kept = true; at("tip").classList.add("kept"); } });
  addEventListener("keydown", (event) => event.key === "Escape" && drop());
  addEventListener("hashchange", () => location.hash.includes("axis=") && recall().then(draw));
  let wide = innerWidth, waiting;
  addEventListener("resize", () => { if (innerWidth !== wide) { wide = innerWidth; clearTimeout(waiting); waiting = setTimeout(draw, 200); } });
  await draw();
  if ("scroll" in sessionStorage) scrollTo(0, sessionStorage.scroll);
  delete sessionStorage.scroll;
}
function reload(every) {  // of a page that follows its runs; never under a reader's hands
  let touched = 0;
  for (const kind of ["pointermove", "pointerdown", "keydown", "change"]) addEventListener(kind, () => { touched = Date.now(); });
  setInterval(() => {
    if (kept || document.hidden || Date.now() - touched < every) return;
    sessionStorage.scroll = scrollY;
    location.reload();
  }, every);
}
start().catch((error) => {
  at("trouble").hidden = false;
  at("trouble").textContent = typeof DecompressionStream === "undefined"
    ? "This browser is too old for the chart (it lacks DecompressionStream); the tables below are complete." : `The chart could not be drawn: ${error}`;
});
