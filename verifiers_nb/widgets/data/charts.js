const BUTTONS = ["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"];
const KEYS = { "+": [0.5, 0], "-": [2, 0], ArrowLeft: [1, -0.25], ArrowRight: [1, 0.25] };  // width and shift of the steps shown

async function unpacked(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const source = ["const module = {exports: {}};", await new Response(stream).text(), ";export default module.exports;"];
  return (await import(URL.createObjectURL(new Blob(source, { type: "text/javascript" })))).default;
}

function whenLoaded(model, ready) {
  if (globalThis.verifiersPlotly) { globalThis.verifiersPlotly.then(ready); return () => {}; }
  let asked = false;
  const receive = ({ answer }, buffers) => {
    if (answer === "plotly") (globalThis.verifiersPlotly ??= unpacked(buffers[0])).then(ready);
    else if (answer && !asked) { asked = true; model.send({ ask: "plotly" }); }
  };
  model.on("msg:custom", receive);
  return () => model.off("msg:custom", receive);
}

function colour(place, name) {
  const probe = place.appendChild(document.createElement("i"));
  probe.style.color = `var(--${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// A text of at most so many pixels: of a longer one, its beginning and its end.
function fitted(text, most, font) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = font;
  const isShort = (shown) => pen.measureText(shown).width <= most;
  if (isShort(text)) return text;
  for (let kept = text.length - 1; kept > 2; kept -= 1) {
    const shown = `${text.slice(0, kept >> 1)}…${text.slice(text.length - (kept + 1 >> 1))}`;
    if (isShort(shown)) return shown;
  }
  return "…";
}

// How many rows a legend has: where its names don't fit on one, each is as wide as the widest.
function legendRows(names, width, font) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = font;
  const wide = names.map((name) => pen.measureText(name).width + 50), all = wide.reduce((sum, each) => sum + each, 0);
  return all <= width ? Math.min(names.length, 1) : Math.ceil(names.length / Math.max(Math.floor(width / Math.max(...wide)), 1));
}

// A title without what does not fit into the room of its chart: first its note, but for what is outside; then the middle of its name.
function fittedTitle(text, most, font) {
  const [bold, note] = text.replace("<b>", "").split("</b>"), plain = document.createElement("textarea");
  const width = (words, weight) => {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = `${weight} 12px ${font}`;
    return pen.measureText(words).width;
  };
  plain.innerHTML = bold;  // its characters, where HTML has names for some
  const name = fitted(plain.value, most, `bold 12px ${font}`), left = most - width(name, "bold");
  if (name !== plain.value) return `<b>${name.replaceAll("&", "&amp;").replaceAll("<", "&lt;")}</b>`;
  const fits = [note, `  ${note.split(" · ").at(-1)}`].filter((_, i) => i === 0 || note.includes(" · ")).find((each) => width(each, "") <= left);
  return `<b>${bold}</b>${fits ?? ""}`;
}

function laidOut(place, figure, node) {
  const { data, layout } = structuredClone(figure), width = place.clientWidth, count = layout.annotations.length;
  const columns = Math.min(count, Number(getComputedStyle(place).getPropertyValue("--columns"))), rows = Math.ceil(count / columns);
  const [ink, soft, line, paper] = ["ink", "soft", "line", "paper"].map((name) => colour(place, name));
  const hues = [0, 1, 2, 3, 4, 5].map((hue) => colour(place, `hue-${hue}`)), font = getComputedStyle(place).fontFamily;
  for (const trace of data) trace.name = fitted(trace.name, width - 96, `12px ${font}`);
  const named = data.filter((trace) => trace.showlegend).map((trace) => trace.name);
  const top = (width < 300 ? 52 : 38) + (layout.showlegend ? 19 * legendRows(named, width - 58, `12px ${font}`) : 0);
  const room = (width - 58) / columns - 12 + (width < 300 ? 46 : 0);  // of a chart
  for (const trace of data) {
    trace.hoverinfo = "none";  // `cross` writes the values into each chart
    trace.line = { color: hues[trace.meta], width: trace.opacity < 1 ? 1 : 1.75 };
    trace.marker = { color: paper, size: 7, line: { color: hues[trace.meta], width: 2 } };
  }
  for (const shape of layout.shapes)
    Object.assign(shape, { layer: "below", line: { color: hues[shape.hue], width: 1.25, dash: shape.hue > 1 ? "dot" : "solid" } });
  const [from, to] = node?._fullLayout?.xaxis?.range ?? [0, Infinity];  // of a page that is zoomed
  if (to - from <= 8) for (const [name, axis] of Object.entries(layout)) if (/^xaxis/.test(name)) axis.dtick = 1;  // no ticks at half steps
  for (const [name, axis] of Object.entries(layout)) if (/^[xy]axis/.test(name))
    Object.assign(axis, { gridcolor: line, linecolor: line, zeroline: false, exponentformat: "e", tickfont: { color: soft, size: 11 },
      nticks: axis.type === "log" ? 3 : 0 });  // with more, plotly labels all nine digits of a decade, and they overlap
  for (const title of layout.annotations) {
    title.text = fittedTitle(title.text, room, font);
    Object.assign(title, { x: 0, y: 1, xanchor: "left", yanchor: "bottom", yshift: 3, showarrow: false, font: { color: ink, size: 12 }, ...(width < 300 && { xshift: -46 }) });
  }
  if (count > columns && columns > 1 && count % columns === 1) layout[`xaxis${count}`].domain = [0, 1];  // a row of its own
  return [data, { ...layout, width, height: rows * 172 + top, font: { family: font, color: ink },
    grid: { rows, columns, pattern: "independent", xgap: 56 * columns / width, ygap: 0.34 },
    margin: { l: 46, r: 12, t: top, b: 24 }, legend: { orientation: "h", x: 0, yref: "container", y: 1, yanchor: "top" },
    hovermode: "x", dragmode: "zoom",
    uirevision: "kept", paper_bgcolor: "rgba(0, 0, 0, 0)", plot_bgcolor: "rgba(0, 0, 0, 0)",
    modebar: { bgcolor: "rgba(0, 0, 0, 0)", color: soft, activecolor: ink } }];
}

function steer(Plotly, node, key) {
  const axis = node._fullLayout.xaxis, [from, to] = axis.range;
  if (key === "0") Plotly.relayout(node, { "xaxis.autorange": true });
  if (!(key in KEYS)) return key === "0";
  const [scale, shift] = KEYS[key], middle = (from + to) / 2 + shift * (to - from), half = scale * (to - from) / 2;
  Plotly.relayout(node, { "xaxis.range": [middle - half, middle + half] });
  return true;
}

function nearest(xs, step) {
  let low = 0, high = xs.length - 1;
  while (low < high) { const middle = (low + high) >> 1; xs[middle] < step ? low = middle + 1 : high = middle; }
  return low > 0 && step - xs[low - 1] <= xs[low] - step ? low - 1 : low;
}

function figureText(value) {
  const size = Math.abs(value);
  if (size > 0 && size < 1e-4) return value.toExponential(2);
  return size >= 100 && size < 1e7 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
}

// What happened to the run near a step: what is rare within four pixels, and the nearest of the rest.
function marksAt(node, step) {
  const { xaxis } = node._fullLayout, far = (marked) => Math.abs(xaxis.l2p(marked) - xaxis.l2p(step)), nearest = new Map();
  for (const [marked, kind, words] of node.marks) {
    const isTick = kind === words, key = isTick ? kind : `${marked} ${words}`;
    if (far(marked) < 4 && !(far(nearest.get(key)?.[0]) <= far(marked))) nearest.set(key, [marked, words]);
  }
  return [...nearest.values()].map(([marked, words]) => `${words} at ${marked.toLocaleString("en")}`);
}

// What the curves of a chart say at a step, a line for each.
function valuesAt(traces, step) {
  const groups = new Map();
  for (const trace of traces) {
    const at = nearest(trace.x, step);
    if (trace.mode === "markers" ? trace.x[at] !== step : step < trace.x[0] || step > trace.x.at(-1)) continue;
    groups.set(trace.legendgroup, [...(groups.get(trace.legendgroup) ?? []), [trace, figureText(trace.y[at])]]);
  }
  const lines = [];
  for (const found of groups.values()) {
    const [last] = found.at(-1), color = last.line.color;
    if (last.name === "smoothed") lines.push(...found.map(([trace, text]) => [`${trace.name} ${text}`, color]));
    else lines.push([`${last.name} ${found[0][1]}${found.length > 1 ? ` (smoothed ${found[1][1]})` : ""}`, color]);
  }
  return lines;
}

// A line through all charts at a step, with the values there beside it; none for no step.
function cross(place, node, step) {
  node.crossed = step;
  for (const old of place.querySelectorAll(".vf-cross")) old.remove();
  if (step === undefined) return;
  const { _fullLayout: layout, data } = node, subplots = new Map();
  for (const trace of data) subplots.set(trace.xaxis, [...(subplots.get(trace.xaxis) ?? []), trace]);
  for (const [name, traces] of subplots) {
    const xaxis = layout[name.replace("x", "xaxis")], yaxis = layout[name.replace("x", "yaxis")], at = xaxis.l2p(step);
    const line = place.appendChild(document.createElement("i")), told = place.appendChild(document.createElement("span"));
    line.className = told.className = "vf-cross";
    line.style.cssText = `left:${xaxis._offset + at}px;top:${yaxis._offset}px;height:${yaxis._length}px`;
    const lines = valuesAt(traces, step), marks = name === "x" ? marksAt(node, step) : [];
    if (name === "x") lines.unshift([`step ${step.toLocaleString("en")}`]);
    told.hidden = !lines.length;
    for (const [words, color] of lines) told.appendChild(Object.assign(document.createElement("b"), { textContent: words, style: color ? `color:${color}` : "" }));
    for (const words of marks) told.appendChild(Object.assign(document.createElement("em"), { textContent: words }));
    // Where there is more room beside the line, else over it; and where the last curve is not.
    told.style.cssText = `left:0;max-width:${xaxis._length - 2}px`;
    const last = traces.at(-1), y = yaxis.c2p(yaxis.d2l(last.y[nearest(last.x, step)])), width = Math.ceil(told.getBoundingClientRect().width);
    const beside = at > xaxis._length / 2 ? at - width - 3 : at + 3, left = Math.max(0, Math.min(beside, xaxis._length - width));
    Object.assign(told.style, { left: `${xaxis._offset + left}px`, width: `${width}px` });
    if (y < yaxis._length / 2) told.style.bottom = `${place.clientHeight - yaxis._offset - yaxis._length + 2}px`;
    else told.style.top = `${yaxis._offset + 2}px`;
  }
}

function charts(model, root) {
  let Plotly, node, due, drawn = [];
  const zoomed = (change) => {
    if (!Object.keys(change).some((name) => name.startsWith("xaxis"))) return;
    const { autorange, range: [from, to] } = node._fullLayout.xaxis;
    model.send({ act: "zoom", ...(autorange ? {} : { from, to }) });
  };
  const begin = (place) => {
    if (node) Plotly.purge(node);
    place.replaceChildren(node = document.createElement("div"));
    place.plotted = true;
    place.steer = (key) => steer(Plotly, node, key);
    return { displaylogo: false, modeBarButtons: [BUTTONS], toImageButtonOptions: { scale: 2, filename: "curves" } };
  };
  const draw = async () => {
    due = clearTimeout(due);
    const place = root.querySelector("[data-plot]"), figure = model.get("figure");
    if (!Plotly || !place?.clientWidth || !figure?.data?.length) return;
    const shown = [figure, place.clientWidth, place.style.cssText, ...["ink", "paper"].map((name) => colour(place, name))];
    if (place.plotted && shown.every((each, i) => each === drawn[i])) return;  // what has changed is elsewhere in the page
    drawn = shown;
    if (node) node.marks = figure.marks;
    if (place.plotted) { await Plotly.react(node, ...laidOut(place, figure, node)); return cross(place, node, node.crossed); }
    const config = begin(place);
    node.marks = figure.marks;
    await Plotly.newPlot(node, ...laidOut(place, figure, node), config);
    node.on("plotly_relayout", zoomed);
    node.on("plotly_hover", ({ points }) => cross(place, node, points[0].x));
    node.on("plotly_unhover", () => cross(place, node));
  };
  const soon = () => { due ??= setTimeout(draw, 200); };
  const forget = whenLoaded(model, (loaded) => { Plotly = loaded; draw(); });
  const sizes = new ResizeObserver(soon), themes = new MutationObserver(soon);
  sizes.observe(root);
  for (const each of [document.documentElement, document.body]) themes.observe(each, { attributes: true });
  model.on("change:figure", soon);
  root.addEventListener("click", (event) => {
    if (node && event.target.closest("[data-act=png]")) Plotly.downloadImage(node, { format: "png", scale: 2, filename: "curves" });
  });
  return () => {
    clearTimeout(due);
    forget();
    sizes.disconnect();
    themes.disconnect();
    model.off("change:figure", soon);
    if (node) Plotly.purge(node);
  };
}
