"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const state = { program: 0, stage: 0, kernel: null, node: null, tab: "facts", launch: 0, x: 0, y: 0, k: 1, find: "" };
let program = data.programs[0];

// ---- small helpers ----

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") made.style.cssText = value;
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((c) => c != null));
  return made;
}
function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") made.style.cssText = value;
    else if (value != null) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((c) => c != null));
  return made;
}
const hue = (kernel) => `--hue:${(255 + kernel * 137.508) % 360}`;
const bytes = (n) => {
  for (const unit of ["B", "KiB", "MiB"]) { if (n < 1024) return `${+n.toPrecision(4)} ${unit}`; n /= 1024; }
  return `${+n.toPrecision(4)} GiB`;
};
const seconds = (s) => s == null ? "–" : s < 1e-3 ? `${+(s * 1e6).toPrecision(3)} µs` : s < 1 ? `${+(s * 1e3).toPrecision(3)} ms` : `${+s.toPrecision(3)} s`;
const rate = (n) => n >= 1e12 ? `${(n / 1e12).toPrecision(3)} T` : n >= 1e9 ? `${(n / 1e9).toPrecision(3)} G` : `${(n / 1e6).toPrecision(3)} M`;
const count = (n) => { for (const unit of ["", "k", "M", "G"]) { if (n < 1000) return `${+n.toPrecision(3)}${unit}`; n /= 1000; } return `${+n.toPrecision(3)}T`; };
const percent = (x) => `${Math.round(100 * x)}%`;
const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
const share = (kernel) => kernel.seconds && kernel.least != null ? kernel.least / kernel.seconds : null;
const last = () => program.stages.length - 1;
const nodesByNumber = (stage) => new Map(program.stages[stage].nodes.map((n) => [n.number, n]));

function titleOf(kernel) {
  const names = nodesByNumber(last());
  const titles = kernel.nodes.map((n) => names.get(n)).filter(Boolean).map((n) => n.label.split(" ")[0]);
  return titles.length ? titles.join(" ") : kernel.form;
}

// ---- header ----

function header() {
  $("origin").textContent = program.line ? `${program.line.text}${program.name !== data.title ? "  " + program.name : ""}` : program.name;
  const operations = program.stages[0].nodes.filter((n) => n.role !== "input").length;
  const stats = [["Operations", `${operations}`, ` → ${plural(program.kernels.length, "kernel")}`]];
  if (program.total != null) {
    const least = program.kernels.reduce((sum, k) => sum + (k.least || 0), 0);
    stats.push(["Time of a run", seconds(program.total), least ? ` ${percent(least / program.total)} of the limit` : ""]);
  }
  const m = program.memory;
  stats.push(["Temporaries", bytes(m.arena), m.arena ? ` at least ${bytes(m.bound)}` : ""]);
  if (program.calls) stats.push(["Runs", `${program.calls}`, ` ${seconds(program.seconds)} in all`]);
  else if (program.traces.length) stats.push(["Traces", `${program.traces.length}`, ""]);
  if (data.machine) stats.push(["Machine", data.machine.cpu, ` ${plural(data.machine.threads, "thread")}`]);
  $("stats").replaceChildren(...stats.map(([name, value, more]) => el("div", {}, el("dt", {}, name), el("dd", {}, value, el("small", {}, more)))));
}

// ---- graph ----

const shown = new Map();

function passes() {
  const stages = program.stages;
  const slider = $("stage");
  slider.max = stages.length - 1;
  slider.value = state.stage;
  slider.setAttribute("aria-valuetext", stages[state.stage].name);
  slider.style.setProperty("--done", `${stages.length > 1 ? (100 * state.stage) / (stages.length - 1) : 0}%`);
  $("back").disabled = state.stage === 0;
  $("forth").disabled = state.stage === stages.length - 1;
  $("ticks").replaceChildren(...stages.map((stage, i) => el("li", {}, el("button", {
    type: "button", tabindex: -1, "aria-current": i === state.stage ? "step" : null, onclick: () => show(i),
  }, stage.name))));
  const stage = stages[state.stage];
  const operations = stage.nodes.filter((n) => n.role !== "input").length;
  const parts = [el("b", {}, stage.name), stage.says ? `: ${stage.says}. ` : ": "];
  if (stage.boxes.length) parts.push(`${plural(operations, "operation")} in ${plural(stage.boxes.length, "kernel")}`);
  else parts.push(`${plural(operations, "operation")}`);
  if (state.stage > 0 && !stage.boxes.length) parts.push(stage.changes.length ? `, ${summary(stage.changes)}` : ", no change");
  $("says").replaceChildren(...parts);
}

function summary(changes) {
  const counts = {};
  for (const change of changes) counts[change.what] = (counts[change.what] || 0) + 1;
  return Object.entries(counts).map(([what, n]) => `${n} ${what}`).join(", ");
}

function graph(animate = true) {
  const stage = program.stages[state.stage];
  const view = $("view");
  view.classList.toggle("still", !animate);
  const marks = new Map(stage.changes.map((c) => [c.to ?? c.number, c.what]));
  view.classList.toggle("many", stage.nodes.length > 150);
  const fresh = stage.nodes.filter((node) => !shown.has(node.number)).map((node) => {
    const made = svg("g", { class: "node k enter", "data-number": node.number });
    made.style.transform = `translate(${node.x}px, ${node.y + 14}px)`;
    made.addEventListener("click", (event) => { event.stopPropagation(); if (!moved) selectNode(node.number); });
    shown.set(node.number, made);
    return made;
  });
  $("nodes").append(...fresh);
  // Once for all: where they move from. Hundreds simply appear.
  if (animate && fresh.length && fresh.length < 100) void fresh[0].getBoundingClientRect();
  const outputs = new Set(stage.outputs);
  const present = new Set();
  for (const node of stage.nodes) {
    present.add(node.number);
    const made = shown.get(node.number);
    const constant = node.label.slice(node.label.split(" ")[0].length);
    const role = node.role === "input" ? " input" : outputs.has(node.number) ? " output" : node.role === "view" ? " view" : "";
    const mark = marks.get(node.number);
    made.setAttribute("class", `node k${role}${mark === "added" ? " fresh" : mark ? " changed" : ""}`);
    made.style.transform = `translate(${node.x}px, ${node.y}px)`;
    if (node.kernel != null) made.style.setProperty("--hue", (255 + node.kernel * 137.508) % 360);
    const room = Math.floor((node.w - 24) / 7.3);
    const first = node.label.split(" ")[0];
    const name = first.length > room ? first.slice(0, room - 1) + "…" : first;
    const kindRoom = Math.floor((node.w - 20) / 6.95);
    made.replaceChildren(
      svg("rect", { class: "body", width: node.w, height: node.h, rx: 9 }),
      svg("path", { class: "strip", d: `M5 ${node.h}Q0 ${node.h} 0 ${node.h - 5}V5Q0 0 5 0Z` }),
      svg("text", { x: 14, y: 19 }, name, constant && name === first ? svg("tspan", { class: "const", dx: 0, style: "fill:var(--number);font-weight:500" }, constant.slice(0, Math.max(0, room - first.length + 1))) : null),
      svg("text", { class: "kind", x: 14, y: 35 }, node.kind.length > kindRoom ? node.kind.slice(0, kindRoom - 1) + "…" : node.kind),
    );
    made.setAttribute("aria-label", `${node.label}, ${node.kind}`);
  }
  for (const [number, made] of shown) {
    if (present.has(number)) continue;
    shown.delete(number);
    made.classList.add("leave");
    if (animate) setTimeout(() => made.remove(), 380); else made.remove();
  }
  $("edges").replaceChildren(...stage.edges.map((edge) => svg("path", {
    class: edge.points.length === 2 && edge.points[1][1] - edge.points[0][1] > 900 ? "edge long" : "edge", d: curve(edge.points), "data-from": `${edge.from_kernel ? "k" : "n"}${edge.from}`, "data-to": `${edge.to_kernel ? "k" : "n"}${edge.to}`,
    "stroke-width": Math.min(4.5, 1 + 0.28 * Math.log2(1 + edge.bytes / 1024)).toFixed(2),
  })));
  $("boxes").replaceChildren(...stage.boxes.map(box));
  highlight();
}

function box(place) {
  const kernel = program.kernels[place.kernel];
  const made = svg("g", { class: "box k", style: hue(kernel.number), "data-kernel": kernel.number, onclick: (event) => { event.stopPropagation(); if (!moved) selectKernel(kernel.number); } },
    svg("rect", { x: place.x, y: place.y, width: place.w, height: place.h }),
    svg("text", { x: place.x + 16, y: place.y + 27 }, `${kernel.number}  ${kernel.form}`),
    svg("text", { class: "more", x: place.x + place.w - 16, y: place.y + 27, "text-anchor": "end" }, kernel.seconds != null ? seconds(kernel.seconds) : bytes(kernel.bytes)),
  );
  const part = share(kernel);
  if (part != null) {
    made.append(svg("rect", { class: "gauge", x: place.x + 16, y: place.y + 36, width: place.w - 32, height: 3 }),
      svg("rect", { class: "meter", x: place.x + 16, y: place.y + 36, width: Math.max(2, (place.w - 32) * Math.min(1, part)), height: 3 }));
  }
  return made;
}

function curve(points) {
  let path = `M${points[0][0]} ${points[0][1]}`;
  for (let i = 1; i < points.length; i++) {
    const [x0, y0] = points[i - 1], [x1, y1] = points[i];
    const half = (y1 - y0) / 2;
    path += Math.abs(x1 - x0) < 0.5 ? `L${x1} ${y1}` : `C${x0} ${y0 + half} ${x1} ${y1 - half} ${x1} ${y1}`;
  }
  return path;
}

function highlight() {
  const node = state.node, kernel = state.kernel;
  const near = new Set();
  for (const edge of document.querySelectorAll(".edge")) {
    const { from, to } = edge.dataset;
    const on = (node != null && (from === `n${node}` || to === `n${node}`)) || (kernel != null && (from === `k${kernel}` || to === `k${kernel}`));
    edge.classList.toggle("on", on);
    if (on) { near.add(from); near.add(to); }
  }
  const members = kernel != null ? new Set(program.kernels[kernel].nodes) : new Set();
  const wanted = state.find.trim().toLowerCase();
  const stage = nodesByNumber(state.stage);
  for (const [number, made] of shown) {
    const info = stage.get(number);
    const text = info ? `%${number} ${info.label} ${info.text} ${info.kind} ${info.line ? info.line.text : ""}`.toLowerCase() : "";
    made.classList.toggle("on", number === node || (kernel != null && node == null && members.has(number)));
    made.classList.toggle("near", number !== node && near.has(`n${number}`) && !members.has(number));
    made.classList.toggle("dim", wanted !== "" && !text.includes(wanted));
  }
  for (const made of document.querySelectorAll(".box, .kernel-bar, .dot, #table tbody tr")) made.classList.toggle("on", kernel != null && made.dataset.kernel === String(kernel));
  for (const made of document.querySelectorAll(".buffer")) made.classList.toggle("on", node != null && made.dataset.number === String(node));
}

// ---- pan and zoom ----

let moved = false;

function place() {
  $("view").setAttribute("transform", `translate(${state.x.toFixed(2)} ${state.y.toFixed(2)}) scale(${state.k.toFixed(4)})`);
  $("view").classList.toggle("far", state.k < 0.3);
  $("dots").setAttribute("patternTransform", `translate(${state.x} ${state.y}) scale(${Math.max(state.k, 0.45)})`);
}
function fit() {
  const stage = program.stages[state.stage], room = $("graph").getBoundingClientRect();
  const [w, h] = stage.size, margin = 36;
  state.k = Math.max(0.04, Math.min(1.15, (room.width - 2 * margin) / Math.max(w, 1), (room.height - 2 * margin) / Math.max(h, 1)));
  state.x = (room.width - w * state.k) / 2;
  state.y = (room.height - h * state.k) / 2;
  if (state.k < 0.62) {  // too large to be read as a whole: open it at its top, around what stands there
    state.k = 0.7;
    const top = stage.nodes.filter((n) => n.y * state.k < room.height - margin).map((n) => n.x + n.w / 2).sort((a, b) => a - b);
    const middle = top.length ? top[top.length >> 1] : w / 2;
    state.x = w * state.k <= room.width - 2 * margin ? (room.width - w * state.k) / 2 : room.width / 2 - middle * state.k;
    state.y = margin;
  }
  place();
}
function fitAll() {
  const [w, h] = program.stages[state.stage].size, room = $("graph").getBoundingClientRect();
  state.k = Math.max(0.02, Math.min(1.15, (room.width - 48) / Math.max(w, 1), (room.height - 48) / Math.max(h, 1)));
  state.x = (room.width - w * state.k) / 2;
  state.y = (room.height - h * state.k) / 2;
  place();
}
function zoom(factor, x, y) {
  const room = $("graph").getBoundingClientRect();
  x ??= room.width / 2; y ??= room.height / 2;
  const k = Math.max(0.02, Math.min(4, state.k * factor));
  state.x = x - ((x - state.x) * k) / state.k;
  state.y = y - ((y - state.y) * k) / state.k;
  state.k = k;
  place();
}
function pan(dx, dy) { state.x += dx; state.y += dy; place(); }
function reveal(x, y, w, h) {
  const room = $("graph").getBoundingClientRect();
  const left = x * state.k + state.x, top = y * state.k + state.y;
  if (left < 0 || top < 0 || left + w * state.k > room.width || top + h * state.k > room.height) {
    if (state.k < 0.5) state.k = 0.7;
    state.x = room.width / 2 - (x + w / 2) * state.k;
    state.y = room.height / 2 - (y + h / 2) * state.k;
    place();
  }
}
function navigation() {
  const canvas = $("graph");
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const room = canvas.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : event.ctrlKey ? 0.01 : 0.0015)), event.clientX - room.left, event.clientY - room.top);
  }, { passive: false });
  const pointers = new Map();
  canvas.addEventListener("pointerdown", (event) => { pointers.set(event.pointerId, event); moved = false; });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const others = [...pointers.values()].filter((p) => p.pointerId !== event.pointerId);
    if (!moved && Math.hypot(event.clientX - before.clientX, event.clientY - before.clientY) < 3) return;
    if (!moved) canvas.setPointerCapture(event.pointerId);
    moved = true;
    if (others.length) {
      const o = others[0], room = canvas.getBoundingClientRect();
      const far = (p) => Math.hypot(p.clientX - o.clientX, p.clientY - o.clientY);
      zoom(far(event) / Math.max(1, far(before)), (event.clientX + o.clientX) / 2 - room.left, (event.clientY + o.clientY) / 2 - room.top);
    } else pan(event.clientX - before.clientX, event.clientY - before.clientY);
    pointers.set(event.pointerId, event);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("click", () => { if (!moved) clear(); });
  canvas.addEventListener("dblclick", (event) => { const room = canvas.getBoundingClientRect(); zoom(1.6, event.clientX - room.left, event.clientY - room.top); });
  $("in").onclick = () => zoom(1.3);
  $("out").onclick = () => zoom(1 / 1.3);
  $("fit").onclick = fitAll;
}

// ---- selection and details ----

function selectNode(number) {
  state.node = number;
  const info = findNode(number);
  state.kernel = info && info.kernel != null ? info.kernel : null;
  state.launch = 0;
  details(); highlight();
}
function selectKernel(number, look = true) {
  state.kernel = number; state.node = null; state.launch = 0;
  details(); highlight();
  if (!look) return;
  const stage = program.stages[state.stage];
  const at = stage.boxes.find((b) => b.kernel === number) || stage.nodes.find((n) => n.kernel === number);
  if (at) reveal(at.x, at.y, at.w, at.h);
}
function clear() { state.node = state.kernel = null; details(); highlight(); }
function findNode(number) {
  for (const i of [state.stage, ...program.stages.keys()]) {
    const found = program.stages[i].nodes.find((n) => n.number === number);
    if (found) return found;
  }
  return null;
}
function ref(number) {
  const info = findNode(number);
  return el("button", { class: "ref", type: "button", onclick: () => goTo(number) }, info && info.role === "input" ? info.label : `%${number}`);
}
function goTo(number) {
  let stage = state.stage;
  if (!program.stages[stage].nodes.some((n) => n.number === number)) stage = program.stages.findIndex((s) => s.nodes.some((n) => n.number === number));
  if (stage >= 0 && stage !== state.stage) show(stage);
  selectNode(number);
  const info = program.stages[state.stage].nodes.find((n) => n.number === number);
  if (info) reveal(info.x, info.y, info.w, info.h);
}
const facts = (rows) => el("dl", { class: "facts" }, rows.filter(([, v]) => v != null && v !== "").flatMap(([name, ...value]) => [el("dt", {}, name), el("dd", {}, ...value)]));
const between = (items, mark = ", ") => items.flatMap((x, i) => (i ? [mark, x] : [x]));
const source = (line) => line ? el("code", { class: "source" }, el("i", {}, `${line.text}${line.function && line.function !== "<module>" ? "  in " + line.function : ""}`), line.source || "") : null;

function details() {
  const panel = $("detail");
  if (state.kernel == null && state.node == null) return panel.replaceChildren(...overview());
  const kernel = state.kernel != null ? program.kernels[state.kernel] : null;
  const info = state.node != null ? findNode(state.node) : null;
  const head = el("div", { class: "cap k", style: kernel ? hue(kernel.number) : "" },
    el("span", { class: "chip" }),
    el("h2", {}, info ? info.label : `Kernel ${kernel.number}`),
    kernel && info ? el("button", { type: "button", onclick: () => selectKernel(kernel.number) }, `Kernel ${kernel.number}`) : null,
    el("button", { type: "button", title: "Wide or narrow (w)", onclick: widen, style: kernel && info ? "margin-left:0" : "" }, document.querySelector("main").classList.contains("wide") ? "Narrow" : "Wide"));
  if (!kernel) return panel.replaceChildren(head, el("div", { class: "scroll" }, nodeFacts(info)));
  const tabs = [["facts", "Facts"], ["kernel", "Kernel"], ["llvm", "LLVM"], ["asm", "Assembly"]];
  const bar = el("div", { class: "detail-tabs", role: "tablist", "aria-label": "Details" }, tabs.map(([id, name]) => el("button", {
    type: "button", role: "tab", "data-tab": id, "aria-selected": String(state.tab === id), onclick: () => { state.tab = id; details(); },
  }, name)));
  if (state.tab === "facts") return panel.replaceChildren(head, bar, el("div", { class: "scroll", style: "padding-top:14px" }, info ? nodeFacts(info) : kernelFacts(kernel)));
  panel.replaceChildren(head, bar, ...code(kernel));
  const start = panel.querySelector(".row.start"), pane = panel.querySelector(".codepane");
  if (start) pane.scrollTop = start.offsetTop - 12;
}

function nodeFacts(info) {
  if (!info) return [el("p", { class: "empty" }, "It is not there in this program.")];
  const users = program.stages[state.stage].nodes.filter((n) => n.operands.includes(info.number)).map((n) => n.number);
  const stored = program.stored.find((s) => s.number === info.number);
  const where = stored && (stored.where === "arena" ? `temporary, byte ${stored.at}` : stored.where === "output" ? `result ${stored.at}` : `input ${stored.at}`);
  return [
    source(info.line),
    facts([
      ["Operation", el("code", {}, info.role === "input" ? "input" : info.text)],
      ["Number", `%${info.number}`],
      ["Result", el("code", {}, info.kind), info.bytes ? `  ${bytes(info.bytes)}` : ""],
      ["Reads", ...(info.operands.length ? between(info.operands.map((o) => typeof o === "number" ? ref(o) : el("code", {}, o))) : ["nothing"])],
      ["Read by", ...(users.length ? between(users.map(ref)) : [program.stages[state.stage].outputs.includes(info.number) ? "the caller" : "nothing here"])],
      ["Kernel", info.kernel != null ? `${info.kernel}` : info.role === "input" ? null : info.role === "view" ? "none: a way to read its operand" : null],
      ["Memory", where || (info.kernel != null ? "never leaves its kernel" : null)],
      ["In place", stored && stored.first >= 0 ? (stored.over != null ? el("span", {}, "takes the place of ", ref(stored.over)) : `no: ${stored.note}`) : null],
    ]),
    ...(info.bodies || []).flatMap(([name, text]) => [el("h3", {}, `Body: ${name}`), el("pre", { class: "source" }, text)]),
  ];
}

function kernelFacts(kernel) {
  const names = nodesByNumber(last());
  const part = share(kernel);
  const lines = new Map();
  for (const n of kernel.nodes) { const line = names.get(n) && names.get(n).line; if (line) lines.set(line.text, line); }
  return [
    facts([
      ["Form", `${kernel.form}, ${kernel.loops}`],
      ["Time", kernel.seconds != null ? `${seconds(kernel.seconds)}${program.total ? `, ${percent(kernel.seconds / Math.max(program.total, program.kernels.reduce((s, k) => s + (k.seconds || 0), 0)))} of the program` : ""}` : null],
      ["Moves", `${bytes(kernel.bytes)}${kernel.seconds ? `, ${rate(kernel.bytes / kernel.seconds)}B/s` : ""}`],
      ["Computes", `${count(kernel.flops)} flop${kernel.seconds ? `, ${rate(kernel.flops / kernel.seconds)}FLOP/s` : ""}`],
      ["Limit", part != null ? el("div", {}, `${percent(part)} of the ${kernel.limit} limit (${seconds(kernel.least)})`, el("div", { class: "meterbar k", style: hue(kernel.number) }, el("i", { style: `width:${Math.min(100, 100 * part)}%` }))) : null],
      ["Reads", ...(kernel.reads.length ? between(kernel.reads.map(ref)) : ["nothing"])],
      ["Writes", ...between(kernel.writes.map(ref))],
      ["Threads", kernel.launches.map((l) => l.shared).join("; ")],
    ]),
    el("h3", {}, `Its ${plural(kernel.nodes.length, "operation")}`),
    el("ul", { class: "list" }, kernel.nodes.map((n) => el("li", {}, ref(n), " ", el("code", {}, names.get(n) ? `${names.get(n).text} : ${names.get(n).kind}` : "")))),
    lines.size ? el("h3", {}, "Lines that made it") : null,
    ...[...lines.values()].map(source),
    kernel.notes.length ? el("h3", {}, "Why it stands alone") : null,
    kernel.notes.length ? el("ul", { class: "list" }, kernel.notes.map((note) => el("li", {}, note))) : null,
  ];
}

function code(kernel) {
  const launch = kernel.launches[Math.min(state.launch, kernel.launches.length - 1)];
  const text = data.code[launch.name][state.tab];
  const pick = el("select", { "aria-label": "Function", onchange: (event) => { state.launch = event.target.selectedIndex; details(); } }, kernel.launches.map((l, i) => el("option", { selected: i === state.launch }, l.name)));
  const copy = el("button", { type: "button", onclick: () => { navigator.clipboard?.writeText(text).then(() => { copy.textContent = "Copied"; }, () => {}); } }, "Copy");
  return [
    el("div", { class: "codebar" }, pick, el("span", {}, `${text.split("\n").length} lines`), copy),
    el("div", { class: "scroll codepane", tabindex: 0, "aria-label": "Code" }, coloured(text, state.tab, launch.name)),
  ];
}

const GRAMMARS = {
  llvm: /(;.*)|("(?:[^"\\]|\\.)*")|(@[\w.$-]+|%[\w.$-]+)|\b(define|declare|ret|br|switch|phi|select|call|load|store|getelementptr|icmp|fcmp|fadd|fsub|fmul|fdiv|frem|fneg|add|sub|mul|sdiv|udiv|srem|urem|shl|lshr|ashr|and|or|xor|trunc|zext|sext|fptrunc|fpext|fptoui|fptosi|uitofp|sitofp|bitcast|inttoptr|ptrtoint|insertelement|extractelement|shufflevector|alloca|label|private|internal|unnamed_addr|constant|global|attributes|nsw|nuw|align|inbounds|fence|atomicrmw|cmpxchg|unreachable|true|false|undef|poison|zeroinitializer|splat)\b|\b(i\d+|float|double|half|bfloat|void|ptr|x)\b|(?<![\w.])(-?\d[\w.+-]*)/g,
  asm: /([#;].*|\/\/.*)|("(?:[^"\\]|\\.)*")|(%[a-z]\w*|\b[xwvqds]\d+\b|^[.\w$]+:)|^\s*([a-z][\w.]*)|(^\s*\.[\w.]+|\b(?:byte|word|dword|qword|xmmword|ymmword|zmmword|ptr)\b)|(?<![\w.])(\$?-?\d[\w]*)/gm,
  kernel: /(#.*)|("[^"]*")|(\b(?:full|reduced|memory|scalar|iota)\b)|\b(load|store|map|row|column|tile|partial|final|outer|blocked|stream)\b|\b(float\d*|bfloat16|u?int\d+|bool|complex\d+|unit|repeat|reverse|stride)\b|(?<![\w.])(-?\d[\w.]*)/g,
};
const CLASSES = ["t-c", "t-s", "t-v", "t-k", "t-t", "t-n"];

function coloured(text, language, name) {
  const grammar = GRAMMARS[language];
  const pre = el("pre", { class: `code ${language}` });
  for (const line of text.split("\n")) {
    // Assembly begins with constants; what one wants to see is the function.
    const row = el("span", { class: language === "asm" && line.startsWith(`${name}:`) ? "row start" : "row" });
    let at = 0;
    for (const match of line.matchAll(grammar)) {
      if (match[0] === "") continue;
      if (match.index > at) row.append(line.slice(at, match.index));
      row.append(el("span", { class: CLASSES[match.slice(1).findIndex((g) => g !== undefined)] || "" }, match[0]));
      at = match.index + match[0].length;
    }
    row.append(line.slice(at) || (at ? "" : " "));
    pre.append(row);
  }
  return pre;
}

function overview() {
  const stage = program.stages[state.stage];
  const items = [];
  if (state.stage === 0) {
    const rows = [];
    let before = "";
    for (const node of stage.nodes) {
      if (node.line && node.line.text !== before) { rows.push(source(node.line)); before = node.line.text; }
      if (node.role === "input") continue;
      rows.push(el("div", { style: "padding:1px 0 1px 10px;font-size:12.5px" }, ref(node.number), " ", el("code", {}, `${node.text} : ${node.kind}`)));
    }
    items.push(el("h3", {}, "Inputs"), el("ul", { class: "list" }, stage.nodes.filter((n) => n.role === "input").map((n) => el("li", {}, ref(n.number), " ", el("code", {}, n.kind)))), el("h3", {}, "Operations by line"), ...rows);
  } else if (stage.boxes.length) {
    items.push(el("ul", { class: "list" }, program.kernels.map((k) => el("li", {}, el("span", { class: "chip k", style: hue(k.number) + ";margin-right:8px" }), el("button", { class: "ref", type: "button", onclick: () => selectKernel(k.number) }, `${k.number} ${k.form}`), " ", el("code", {}, titleOf(k)), el("span", { style: "float:right;color:var(--soft)" }, seconds(k.seconds))))));
  } else {
    items.push(stage.changes.length ? el("ul", { class: "list" }, stage.changes.map((c) => el("li", {}, el("span", { class: `what ${c.what}` }, c.what), ref(c.number), " ", el("code", {}, c.text), c.to != null && c.to !== c.number ? el("span", {}, " → ", ref(c.to)) : null))) : el("p", { class: "empty" }, "This pass found nothing to do."));
  }
  if (program.traces.length > 1) items.push(el("h3", {}, "Traces"), el("ul", { class: "list" }, program.traces.map((t, i) => el("li", {}, el("span", { class: "what" }, `${i + 1}`), t))));
  return [el("div", { class: "cap" }, el("h2", {}, stage.boxes.length ? "Kernels in order" : state.stage ? `What ${stage.name} changed` : "What was traced"), el("button", { type: "button", onclick: widen }, document.querySelector("main").classList.contains("wide") ? "Narrow" : "Wide")), el("div", { class: "scroll" }, items)];
}
function widen() { document.querySelector("main").classList.toggle("wide"); details(); }

// ---- charts ----

function timeline() {
  const panel = $("timeline"), kernels = program.kernels;
  if (!kernels.length) return panel.replaceChildren(el("p", { class: "empty" }, "Nothing is computed: the results are the inputs."));
  const W = Math.max(panel.clientWidth - 40, 320), left = 136, width = W - left - 8;
  const timed = kernels.every((k) => k.seconds != null);
  const weights = kernels.map((k) => timed ? k.seconds : 1);
  const sum = weights.reduce((a, b) => a + b, 0) || 1;
  const least = Math.min(5, width / kernels.length);
  const raw = weights.map((w) => Math.max(least, (w / sum) * width));
  const squeeze = width / raw.reduce((a, b) => a + b, 0);
  const xs = [left];
  for (const w of raw) xs.push(xs.at(-1) + w * squeeze);
  const H = 190, top = 18, high = 24, memTop = 74, memHigh = H - memTop - 20;
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Kernels in time, and the memory that is in use" });
  chart.append(svg("text", { class: "strong", x: 0, y: top + 17 }, timed ? "Kernel time" : "Kernels"), svg("text", { class: "strong", x: 0, y: memTop + 12 }, "Temporaries"));
  kernels.forEach((k, i) => {
    const w = Math.max(1.5, xs[i + 1] - xs[i] - 1.5);
    chart.append(tipped(svg("rect", { class: "kernel-bar k", style: hue(k.number), x: xs[i], y: top, width: w, height: high, "data-kernel": k.number, tabindex: 0, role: "button",
      "aria-label": `Kernel ${k.number}, ${k.form}, ${seconds(k.seconds)}`,
      onclick: () => selectKernel(k.number), onkeydown: (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); selectKernel(k.number); } } }),
      () => [el("b", {}, `Kernel ${k.number}, ${k.form}`), ` ${seconds(k.seconds)}`, el("span", { class: "mono" }, titleOf(k)), share(k) != null ? `${percent(share(k))} of the ${k.limit} limit` : ""]));
    const label = `${k.number}`;
    if (w > 9 + 7 * label.length) chart.append(svg("text", { x: xs[i] + w / 2, y: top + high + 14, "text-anchor": "middle" }, w > 74 && timed ? `${label}  ${seconds(k.seconds)}` : label));
  });
  const arena = program.memory.arena;
  const inArena = program.stored.filter((s) => s.where === "arena");
  chart.append(svg("line", { class: "axis", x1: left, x2: left + width, y1: memTop + memHigh, y2: memTop + memHigh }));
  if (!arena) chart.append(svg("text", { x: left, y: memTop + 30 }, "No temporaries: everything stays in registers and caches, or is a result."));
  for (const s of inArena) {
    const x = xs[Math.max(0, s.first)], end = xs[Math.min(s.last, kernels.length - 1) + 1];
    const h = Math.max(2, (s.bytes / arena) * memHigh), y = memTop + memHigh - (s.at / arena) * memHigh - h;
    chart.append(tipped(svg("rect", { class: "buffer k", style: hue(s.first), x, y, width: Math.max(2, end - x - 1.5), height: Math.max(1.5, h - 1), "data-number": s.number ?? "", onclick: () => s.number != null && goTo(s.number) }),
      () => [el("b", {}, s.number != null ? `%${s.number} ${s.name}` : s.name), ` ${bytes(s.bytes)}`, el("span", { class: "mono" }, s.kind), `byte ${s.at}, from kernel ${s.first} to ${s.last}`, el("br"), s.over != null ? `takes the place of %${s.over}` : s.note]));
    if (end - x > 60 && h > 13) chart.append(svg("text", { x: x + 6, y: y + Math.min(h / 2 + 4, h - 3), style: "pointer-events:none" }, s.number != null ? `%${s.number} ${s.name}` : s.name));
  }
  if (arena) {
    const y = memTop + memHigh - (program.memory.bound / arena) * memHigh;
    chart.append(svg("line", { class: "bound", x1: left, x2: left + width, y1: y, y2: y }), svg("text", { class: "warn", x: left + width, y: y - 5, "text-anchor": "end" }, `largest live set ${bytes(program.memory.bound)}`));
    chart.append(svg("text", { x: 0, y: memTop + 28 }, bytes(arena)), svg("text", { x: 0, y: memTop + 43 }, arena <= program.memory.bound * 1.001 ? "no more than needed" : `${(arena / program.memory.bound).toFixed(2)}× the bound`));
  }
  if (timed) chart.append(svg("text", { x: left + width, y: 12, "text-anchor": "end" }, `${seconds(sum)} in kernels`));
  panel.replaceChildren(chart);
}

function roofline() {
  const panel = $("roofline"), machine = data.machine;
  const dots = program.kernels.filter((k) => k.seconds != null && k.flops > 0 && k.bytes > 0);
  if (!machine || !dots.length) return panel.replaceChildren(el("p", { class: "empty" }, machine ? "No kernel computes with floating-point numbers." : "Nothing was measured."));
  const W = Math.max(panel.clientWidth - 40, 420), H = 190, left = 96, bottom = 30, right = 190;
  const peak = machine.flops.float32, rates = machine.bandwidth.map(([, r]) => r);
  const ais = dots.map((k) => k.flops / k.bytes), fs = dots.map((k) => k.flops / k.seconds);
  const x0 = Math.log10(Math.min(...ais, peak / Math.max(...rates) / 4) / 2), x1 = Math.log10(Math.max(...ais, (peak / Math.min(...rates)) * 4) * 2);
  const y0 = Math.log10(Math.min(...fs, peak / 200) / 2), y1 = Math.log10(Math.max(peak, ...fs) * 2);
  const X = (v) => left + ((Math.log10(v) - x0) / (x1 - x0)) * (W - left - right), Y = (v) => 10 + (1 - (Math.log10(v) - y0) / (y1 - y0)) * (H - bottom - 10);
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Kernels against the limits of the machine" });
  for (let e = Math.ceil(x0); e <= x1; e++) chart.append(svg("line", { class: "axis", x1: X(10 ** e), x2: X(10 ** e), y1: 10, y2: H - bottom }), svg("text", { x: X(10 ** e), y: H - bottom + 14, "text-anchor": "middle" }, `${+(10 ** e).toPrecision(2)}`));
  for (let e = Math.ceil(y0); e <= y1; e++) chart.append(svg("line", { class: "axis", x1: left, x2: W - right, y1: Y(10 ** e), y2: Y(10 ** e) }), svg("text", { x: left - 8, y: Y(10 ** e) + 4, "text-anchor": "end" }, `${rate(10 ** e)}FLOP/s`));
  chart.append(svg("text", { class: "strong", x: (left + W - right) / 2, y: H - 3, "text-anchor": "middle" }, "flop per byte moved"));
  machine.bandwidth.forEach(([size, r], i) => {
    const knee = peak / r, start = 10 ** x0, main = i === machine.bandwidth.length - 1;
    const from = Math.max(start, (10 ** y0) / r);
    chart.append(svg("path", { class: `roof${main ? "" : " minor"}`, d: `M${X(from)} ${Y(from * r)}L${X(knee)} ${Y(peak)}H${W - right}` }));
    chart.append(svg("text", { x: W - right + 10, y: 46 + 15 * i }, `${main ? "memory" : "up to " + bytes(size)}: ${rate(r)}B/s`));
  });
  chart.append(svg("text", { class: "strong", x: W - right + 10, y: 26 }, `product: ${rate(peak)}FLOP/s`));
  const most = Math.max(...dots.map((k) => k.seconds));
  for (const k of dots) chart.append(tipped(svg("circle", { class: "dot k", style: hue(k.number), cx: X(k.flops / k.bytes), cy: Y(k.flops / k.seconds), r: 4.5 + 6 * Math.sqrt(k.seconds / most), "data-kernel": k.number, onclick: () => selectKernel(k.number) }),
    () => [el("b", {}, `Kernel ${k.number}, ${k.form}`), ` ${seconds(k.seconds)}`, el("span", { class: "mono" }, titleOf(k)), `${rate(k.flops / k.seconds)}FLOP/s, ${rate(k.bytes / k.seconds)}B/s, ${percent(share(k))} of the ${k.limit} limit`]));
  panel.replaceChildren(chart);
}

function reasons() {
  const apart = program.kernels.filter((k) => k.notes.length);
  const reused = program.stored.filter((s) => s.over != null), fresh = program.stored.filter((s) => s.first >= 0 && s.number != null && s.over == null);
  const column = (title, items) => items.length ? el("div", {}, el("h3", {}, title), el("ul", { class: "list" }, items)) : null;
  $("reasons").replaceChildren(el("div", { class: "columns" },
    column("Not in one kernel", apart.flatMap((k) => k.notes.map((note) => el("li", {}, el("button", { class: "ref", type: "button", onclick: () => selectKernel(k.number) }, `kernel ${k.number}`), ` ${note}`)))),
    column("Written in place", reused.map((s) => el("li", {}, ref(s.number), ` ${s.name} takes the place of `, ref(s.over)))),
    column("Not written in place", fresh.map((s) => el("li", {}, ref(s.number), ` ${s.name}: ${s.note}`))),
    column("State", program.updates.map((u) => el("li", {}, u))),
    column("Traces", program.traces.map((t, i) => el("li", {}, el("span", { class: "what" }, `${i + 1}`), t)))));
  if (!$("reasons").textContent) $("reasons").replaceChildren(el("p", { class: "empty" }, "Nothing was left apart."));
}

function table() {
  const head = ["", "form", "operations", "time", "moves", "rate", "computes", "rate", "of the limit"];
  $("table").replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, head.map((h) => el("th", {}, h)))), el("tbody", {}, program.kernels.map((k) => el("tr", { "data-kernel": k.number, onclick: () => selectKernel(k.number) },
    el("td", {}, el("span", { class: "chip k", style: hue(k.number) }), ` ${k.number}`), el("td", {}, k.form), el("td", {}, titleOf(k)), el("td", {}, seconds(k.seconds)), el("td", {}, bytes(k.bytes)),
    el("td", {}, k.seconds ? `${rate(k.bytes / k.seconds)}B/s` : "–"), el("td", {}, count(k.flops)), el("td", {}, k.seconds ? `${rate(k.flops / k.seconds)}FLOP/s` : "–"), el("td", {}, share(k) != null ? `${percent(share(k))} ${k.limit}` : "–"))))));
}

function tipped(element, content) {
  const tip = $("tip");
  element.addEventListener("pointermove", (event) => {
    tip.replaceChildren(...content().flat());
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
    tip.style.top = `${event.clientY - height - 12 < 4 ? event.clientY + 16 : event.clientY - height - 12}px`;
  });
  element.addEventListener("pointerleave", () => { tip.hidden = true; });
  return element;
}

// ---- all together ----

function show(stage) {
  const before = program.stages[state.stage], now = Math.max(0, Math.min(last(), stage));
  if (now === state.stage) return;
  state.stage = now;
  if (state.node != null && !program.stages[now].nodes.some((n) => n.number === state.node)) state.node = null;
  passes(); graph(); details();
  const after = program.stages[now];
  if (before.boxes.length !== after.boxes.length || Math.abs(before.size[0] - after.size[0]) > 200) fit();
}
function charts() { timeline(); roofline(); reasons(); table(); highlight(); }
function open(index) {
  program = data.programs[index];
  Object.assign(state, { program: index, stage: 0, kernel: null, node: null, launch: 0 });
  for (const made of shown.values()) made.remove();
  shown.clear();
  header(); passes(); graph(false); details(); charts(); fit();
}
function step(by) {
  if (!program.kernels.length) return;
  const n = program.kernels.length;
  selectKernel(state.kernel == null ? (by > 0 ? 0 : n - 1) : (state.kernel + by + n) % n);
}
function stepNode(by) {
  const nodes = program.stages[state.stage].nodes;
  if (!nodes.length) return;
  const at = nodes.findIndex((n) => n.number === state.node);
  goTo(nodes[at < 0 ? (by > 0 ? 0 : nodes.length - 1) : (at + by + nodes.length) % nodes.length].number);
}
function theme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
}
function fold() { $("dock").classList.toggle("folded"); }
function chooseTab(tab) {
  for (const other of document.querySelectorAll(".tabs [role=tab]")) {
    const on = other === tab;
    other.setAttribute("aria-selected", String(on));
    other.tabIndex = on ? 0 : -1;
    $(other.getAttribute("aria-controls")).hidden = !on;
  }
  $("dock").classList.remove("folded");
  charts();
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input[type=search], select, textarea");
  if (event.key === "Escape") { if (typing) event.target.blur(); $("find").value = state.find = ""; clear(); return; }
  if (typing || $("keys").open) return;
  if (event.target === $("graph") && event.key.startsWith("Arrow")) {
    pan({ ArrowLeft: 60, ArrowRight: -60 }[event.key] || 0, { ArrowUp: 60, ArrowDown: -60 }[event.key] || 0);
    event.preventDefault();
    return;
  }
  const tabs = ["facts", "kernel", "llvm", "asm"];
  const action = {
    "[": () => show(state.stage - 1), "]": () => show(state.stage + 1), j: () => step(1), k: () => step(-1), n: () => stepNode(1), p: () => stepNode(-1),
    "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), "0": fitAll, t: theme, d: fold, w: widen, "?": () => $("keys").showModal(), "/": () => $("find").focus(),
    1: () => { state.tab = tabs[0]; details(); }, 2: () => { state.tab = tabs[1]; details(); }, 3: () => { state.tab = tabs[2]; details(); }, 4: () => { state.tab = tabs[3]; details(); },
  }[event.key];
  if (action) { event.preventDefault(); action(); }
}

$("stage").addEventListener("input", (event) => show(+event.target.value));
$("back").onclick = () => show(state.stage - 1);
$("forth").onclick = () => show(state.stage + 1);
$("find").addEventListener("input", (event) => { state.find = event.target.value; highlight(); });
$("find").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  const found = program.stages[state.stage].nodes.find((n) => `%${n.number} ${n.label} ${n.text} ${n.kind} ${n.line ? n.line.text : ""}`.toLowerCase().includes(state.find.trim().toLowerCase()));
  if (found) goTo(found.number);
});
$("theme").onclick = theme;
$("help").onclick = () => $("keys").showModal();
$("fold").onclick = fold;
for (const tab of document.querySelectorAll(".tabs [role=tab]")) {
  tab.onclick = () => chooseTab(tab);
  tab.addEventListener("keydown", (event) => {
    const all = [...document.querySelectorAll(".tabs [role=tab]")], by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by) { const next = all[(all.indexOf(tab) + by + all.length) % all.length]; chooseTab(next); next.focus(); }
  });
}
if (data.programs.length > 1) {
  $("choice").hidden = false;
  $("program").append(...data.programs.map((p, i) => el("option", { value: i }, `${i}: ${p.name} (${plural(p.kernels.length, "kernel")}${p.calls ? ", " + seconds(p.seconds) : ""})`)));
  $("program").addEventListener("change", (event) => open(+event.target.value));
}
document.addEventListener("keydown", keys);
let room = $("graph").getBoundingClientRect();
new ResizeObserver(() => {  // what stands in the middle stays there
  const now = $("graph").getBoundingClientRect();
  pan((now.width - room.width) / 2, (now.height - room.height) / 2);
  room = now;
}).observe($("graph"));
addEventListener("resize", charts);
navigation();
open(0);
})();
