// A policy slider: everything is drawn from the data beside it, so that it needs no kernel.

const SVG = "http://www.w3.org/2000/svg", DASHES = ["", "6 4", "2 3", "10 3 2 3", "1 5"];

function made(tag, words, attributes = {}) {
  const node = document.createElement(tag);
  if (words !== undefined) node.textContent = words;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// With two digits; near 1 with a third, so that it is 100 only where nothing else was likely.
const percent = (p) => p >= 0.9995 ? "100 %" : `${Number((100 * p).toPrecision(p < 0.01 ? 1 : p < 0.99 ? 2 : 3))} %`;

// A chance is a number and whether it is only a bound: "-1" has that of all tokens that are not listed.
const chanceOf = (chances, id) => chances && id in chances ? { p: chances[id] } : { p: chances?.["-1"], bound: true };
const chance = ({ p, bound }) => p === undefined ? "unknown" : bound ? `below ${percent(p)}` : percent(p);

// Of two small chances the factor between them says more; a bound may say which is larger, or nothing.
function factor(before, now) {
  const times = now.p / before.p;
  if (!(Math.max(before.p, now.p) < 0.01) || before.bound && (now.bound || times <= 1) || now.bound && times >= 1) return "";
  return ` ${before.bound ? "more than " : now.bound ? "less than " : ""}×${Number(times.toPrecision(2))}`;
}

// Return where two answers part, as a number of tokens; -1 where they are the same.
function parting(one, other, tokens) {
  const length = Math.max(one.t.length, other.t.length);
  for (let i = 0; i < length; i += 1) if (tokens[one.t[i]]?.[0] !== tokens[other.t[i]]?.[0]) return i;
  return -1;
}

function means(data, at) {
  const found = {};
  for (const { answers } of data.prompts)
    for (const [name, score] of Object.entries(answers[at]?.scores ?? {})) (found[name] ??= []).push(score);
  return Object.fromEntries(Object.entries(found).map(([name, all]) => [name, all.reduce((sum, each) => sum + each, 0) / all.length]));
}

function drawLines(place, data, at, other) {
  const every = data.steps.map((_, i) => means(data, i)), names = Object.keys(Object.assign({}, ...every));
  const values = every.flatMap((each) => Object.values(each)), low = Math.min(0, ...values), high = Math.max(1e-9, ...values);
  const svg = document.createElementNS(SVG, "svg"), last = Math.max(data.steps.length - 1, 1);
  const put = (tag, attributes) => {
    const node = svg.appendChild(document.createElementNS(SVG, tag));
    for (const [name, value] of Object.entries({ "vector-effect": "non-scaling-stroke", ...attributes })) node.setAttribute(name, value);
  };
  const x = (i) => (1000 * i / last).toFixed(1), y = (value) => (96 - 92 * (value - low) / (high - low)).toFixed(1);
  svg.setAttribute("viewBox", "0 0 1000 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Mean reward and its parts by step, from ${low.toFixed(2)} to ${high.toFixed(2)}`);
  for (const [i, kind] of [[other, "vf-other"], [at, "vf-here"]]) put("line", { x1: x(i), x2: x(i), y1: 0, y2: 100, class: kind });
  const key = made("div", undefined, { class: "vf-lines-key" });
  names.forEach((name, k) => {
    const points = every.map((each, i) => name in each && `${x(i)},${y(each[name])}`).filter(Boolean).join(" ");
    const look = `stroke:var(--hue-${k % 6})`;
    put("polyline", { points, style: look, "stroke-dasharray": DASHES[k % DASHES.length], class: k ? "vf-part-line" : "vf-reward-line" });
    const sample = key.appendChild(made("span"));
    sample.innerHTML = `<svg width="26" height="8"><line x1="0" x2="26" y1="4" y2="4" stroke-width="2" stroke-dasharray="${DASHES[k % DASHES.length]}" style="${look}"/></svg>`;
    sample.append(` ${name} `, made("b", name in every[at] ? every[at][name].toFixed(2) : "–"));
  });
  place.replaceChildren(...(names.length ? [svg, key] : []));
}

function drawAnswer(answer, other, data, words) {
  const box = made("pre", undefined, { class: "vf-text", tabindex: "0", role: "region", "aria-label": `Answer ${words.here}` });
  const text = box.appendChild(made("bdi"));
  if (!answer?.t) return [box, made("p", answer?.error ? `It failed: ${answer.error}` : "This answer is still to come.", { class: "vf-soft" })];
  const at = other?.t ? parting(answer, other, data.tokens) : -1, shown = (k) => k === undefined ? "nothing: the answer ends" : data.tokens[k][1] || "part of a letter";
  answer.t.forEach((k, i) => {
    if (i === at) text.append(made("mark", shown(k), { class: "vf-parts" }));
    else text.append(data.tokens[k][1]);
  });
  if (at === answer.t.length) text.append(made("mark", "‸", { class: "vf-parts" }));
  if (!other?.t) return [box];
  if (at < 0) return [box, made("p", `The same answer ${words.there}.`, { class: "vf-soft" })];
  const table = made("table"), head = table.createTHead().insertRow(), body = table.createTBody();
  head.append(made("th", `Token ${at + 1}`));
  for (const each of [words.there, words.here]) head.append(made("th", `chance ${each}`, { class: "vf-number" }));
  let isBounded = false;
  for (const [k, said] of [[other.t[at], words.there], [answer.t[at], words.here]]) {
    const row = body.insertRow(), id = k === undefined ? undefined : data.tokens[k][0];
    row.insertCell().append(made("code", shown(k)), made("span", ` sampled ${said}`, { class: "vf-soft" }));
    const [before, now] = [other, answer].map((from) => chanceOf(from.p?.[at], id));
    isBounded ||= k !== undefined && Boolean(before.bound || now.bound);
    for (const each of [chance(before), chance(now) + factor(before, now)]) row.append(made("td", k === undefined ? "–" : each, { class: "vf-number" }));
  }
  if (isBounded) return [box, table, made("p", "Below: only the chances of the likeliest tokens are known.", { class: "vf-soft" })];
  return [box, table];
}

// Return the places of the steps at which an answer differs from the one before.
function changes(data) {
  const differs = ({ answers }, i) => answers[i]?.t && answers[i - 1]?.t && parting(answers[i], answers[i - 1], data.tokens) >= 0;
  return data.steps.map((_, i) => i).filter((i) => data.prompts.some((prompt) => differs(prompt, i)));
}

function drawTicks(place, data) {
  const last = Math.max(data.steps.length - 1, 1);
  place.replaceChildren(...changes(data).map((i) => made("i", undefined, { style: `left:${(100 * i / last).toFixed(2)}%` })));
}

function drawStep(ui, data, state) {
  const at = data.steps.indexOf(state.step), chosen = data.steps.indexOf(state.other);
  const before = state.other === "before" ? Math.max(at - 1, 0) : chosen;
  const words = { here: `at step ${data.steps[at]}`, there: `at step ${data.steps[before]}` };
  ui.range.value = at;
  ui.range.setAttribute("aria-valuetext", words.here);
  ui.said.textContent = `Step ${data.steps[at].toLocaleString("en")} of ${data.steps.at(-1).toLocaleString("en")}`;
  drawLines(ui.lines, data, at, before);
  ui.answers.replaceChildren(...data.prompts.map(({ text, answers }) => {
    const section = made("section"), scores = Object.entries(answers[at]?.scores ?? {});
    section.append(made("h3", text), ...drawAnswer(answers[at], before === at ? undefined : answers[before], data, words));
    if (scores.length) section.append(made("p", scores.map(([name, score]) => `${name} ${score.toFixed(2)}`).join(" · "), { class: "vf-soft vf-number" }));
    return section;
  }));
}

function buildSlider(place, state) {
  const ui = { data: null }, bar = made("div", undefined, { class: "vf-slide-bar" });
  const go = (by) => {
    const { steps } = ui.data, next = (steps.indexOf(state.step) + by + steps.length) % steps.length;
    state.step = steps[next];
    drawStep(ui, ui.data, state);
  };
  const jump = (way) => {
    const at = ui.data.steps.indexOf(state.step), found = changes(ui.data).filter((i) => way * (i - at) > 0);
    if (found.length) go((way > 0 ? found[0] : found.at(-1)) - at);
  };
  const stop = () => { clearInterval(state.timer); state.timer = null; ui.play.textContent = "Play"; ui.play.setAttribute("aria-pressed", "false"); };
  ui.play = made("button", "Play", { type: "button", "aria-keyshortcuts": "p", title: "key: p", "aria-pressed": "false" });
  ui.play.onclick = () => {
    if (state.timer) return stop();
    state.timer = setInterval(() => {
      if (!place.isConnected) return stop();
      go(1);
      if (state.step === ui.data.steps.at(-1)) stop();
    }, 350);
    ui.play.textContent = "Pause";
    ui.play.setAttribute("aria-pressed", "true");
    go(1);
  };
  const jumps = [["Change before", "[", -1], ["Next change", "]", 1]].map(([words, key, way]) => {
    const button = made("button", words, { type: "button", "aria-keyshortcuts": key, title: `key: ${key}` });
    button.onclick = () => jump(way);
    return button;
  });
  ui.ticks = made("div", undefined, { class: "vf-slide-ticks", "aria-hidden": "true" });
  ui.range = made("input", undefined, { type: "range", min: 0, step: 1, "aria-label": "Step" });
  ui.range.oninput = () => { state.step = ui.data.steps[Number(ui.range.value)]; drawStep(ui, ui.data, state); };
  ui.said = made("b", "", { class: "vf-number", role: "status" });
  const label = made("label", "Compare with ");
  ui.select = label.appendChild(made("select"));
  ui.select.onchange = () => { state.other = ui.select.value === "before" ? "before" : Number(ui.select.value); drawStep(ui, ui.data, state); };
  ui.lines = made("div", undefined, { class: "vf-slide-lines" });
  ui.answers = made("div", undefined, { class: "vf-slide-answers" });
  bar.append(ui.play, ...jumps, ui.said, label);
  place.append(bar, ui.range, ui.ticks, ui.lines, ui.answers);
  const keys = (event) => {
    if (!place.isConnected) return window.removeEventListener("keydown", keys, true);
    if (!place.contains(event.target) || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;  // a live view comes first
    const pressed = { p: ui.play, "[": jumps[0], "]": jumps[1] }[event.key];
    if (pressed && event.target !== ui.select) pressed.click();
    if (!["Tab", "Escape"].includes(event.key)) event.stopPropagation();
  };
  window.addEventListener("keydown", keys, true);  // JupyterLab listens on the document, one step later
  return ui;
}

function slide(root) {
  for (const place of root.querySelectorAll("[data-policy]")) {
    const told = place.querySelector("script").textContent, into = place.querySelector(".vf-slide");
    if (into.told === told) continue;
    const data = JSON.parse(told), state = (into.state ??= { other: "before" });
    Object.assign(into, { told, filled: true });
    if (!data.steps.length) continue;
    const ui = (into.ui ??= buildSlider(into, state));
    if (state.step === undefined || !data.steps.includes(state.step)) state.step = data.steps.at(-1);
    if (!ui.data || String(ui.data.steps) !== String(data.steps)) {
      ui.range.max = data.steps.length - 1;
      ui.select.replaceChildren(made("option", "the step before", { value: "before" }), ...data.steps.map((step) => made("option", `step ${step}`, { value: step })));
      ui.select.value = state.other;
    }
    ui.data = data;
    drawTicks(ui.ticks, data);
    drawStep(ui, data, state);
  }
}
