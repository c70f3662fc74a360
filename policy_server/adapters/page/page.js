"use strict";
// Reads /statusz every two seconds, and /history whenever there is a gap to fill. Nothing else:
// no library, no other host. Text goes in as text nodes only, because tenants choose their names.
const POLL_MS = 2000;
const LONGEST_PAUSE_MS = 30000;
const ANSWER_WITHIN_MS = 5000;
const SPANS_S = [60, 120, 300, 600];   // the charts show the shortest that holds all there is
const KEPT_S = SPANS_S.at(-1);
const GAP_S = 10;            // a line is broken where nothing was heard for longer
const ROWS = 8;
const SVG = "http://www.w3.org/2000/svg";

const points = new Map();    // pool name → [{at, limit, …}], oldest first; `at` in seconds
let last = null;             // the last status, and when it came
let failures = 0, firstFailure = 0, nextTry = 0, timer = 0;
let busy = false;            // a poll is under way
let complete = false;        // nothing is missing since `points` were filled from /history

const nowS = () => performance.now() / 1000;
const byId = (id) => document.getElementById(id);
const sum = (counts) => Object.values(counts ?? {}).reduce((a, b) => a + b, 0);
const known = (value) => value !== null && value !== undefined;

// -- how values read --------------------------------------------------------------------------

function number(value) {
  if (!known(value)) return "–";
  if (value >= 100) return Math.round(value).toLocaleString("en");
  return String(Number(value.toFixed(value >= 10 ? 1 : 2)));
}
function seconds(value) {
  if (!known(value)) return "–";
  if (value < 0.0005) return "0 s";
  if (value < 1) return `${number(value * 1000)} ms`;
  if (value < 120) return `${number(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} days`;
}
function perSecond(value) {
  if (!known(value)) return "–";
  return `${value >= 10 ? number(Math.round(value)) : Number(value.toFixed(1))}/s`;
}
const words = (name) => name.replaceAll("_", " ");

// -- elements -----------------------------------------------------------------------------------

function el(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) node.setAttribute(name, value);
  node.append(...children.filter(known).map((c) => (c instanceof Node ? c : String(c))));
  return node;
}
function svg(tag, options = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(options)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Changes `old` into `fresh` in place: a selection, the focus and a screen reader keep their spot.
function patch(old, fresh) {
  if (old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return undefined;
  }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  return fill(old, [...fresh.childNodes]);
}
function fill(parent, fresh) {
  const old = [...parent.childNodes];
  fresh.forEach((node, i) => (i < old.length ? patch(old[i], node) : parent.append(node)));
  old.slice(fresh.length).forEach((node) => node.remove());
}

function table(title, heads, rows, cls = "") {
  const head = heads.some(Boolean)
    ? el("thead", {}, el("tr", {}, ...heads.map((h) => (h ? el("th", { scope: "col" }, h) : el("td")))))
    : null;
  const body = rows.map(([name, ...cells]) =>
    el("tr", {}, el("th", { scope: "row" }, name), ...cells.map((cell) => el("td", {}, cell))));
  return el("table", { class: cls, "aria-label": title }, head, el("tbody", {}, ...body));
}
// A titled table; `empty` is what to say when there is nothing in it.
function block(title, heads, rows, empty, cls) {
  return el("section", {}, el("h3", {}, title),
    rows.length ? table(title, heads, rows, cls) : el("p", { class: "soft" }, empty));
}

// -- charts -------------------------------------------------------------------------------------

// lines: [[class, key of the points, name]], one common scale from 0.
function chart(title, past, lines) {
  const to = nowS(), oldest = to - (past[0]?.at ?? to);
  const span = SPANS_S.find((s) => oldest <= s) ?? KEPT_S;
  const recent = past.filter((p) => to - p.at <= span);
  const values = lines.flatMap(([, key]) => recent.map((p) => p[key])).filter(known);
  const box = el("div", { class: "chart" });
  if (recent.length < 2 || !values.length) {
    box.append(el("span", { class: "none" }, "no values yet"));
  } else {
    const top = Math.max(1, ...values);
    const paths = lines.map(([cls, key]) => svg("path", { class: cls, d: path(recent, key, top, to, span) }));
    const now = lines.map(([, key, name]) => `${name} ${number(recent.at(-1)[key])}`).join(", ");
    const most = `most in the last ${span / 60} min ${number(top)}`;
    box.append(svg("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", role: "img",
      "aria-label": `${title}: ${now}; ${most}` }, ...paths));
    box.append(el("span", { class: "top", "aria-hidden": "true" }, number(top)));
  }
  const axis = el("div", { class: "axis", "aria-hidden": "true" },
    el("span", {}, `${span / 60} min ago`), key(lines), el("span", {}, "now"));
  return el("div", {}, box, axis);
}
function path(past, key, top, to, span) {
  let d = "", before = -Infinity;
  for (const point of past) {
    if (!known(point[key])) continue;
    const x = 100 - ((to - point.at) * 100) / span, y = 29 - (28 * point[key]) / top;
    d += `${point.at - before > GAP_S ? "M" : "L"}${x.toFixed(2)} ${y.toFixed(2)}`;
    before = point.at;
  }
  return d;
}
function key(lines) {
  if (lines.length < 2) return el("span");
  return el("span", { class: "key" }, ...lines.map(([cls, , name]) =>
    el("span", {}, svg("svg", { viewBox: "0 0 22 8" }, svg("path", { class: cls, d: "M1 4L21 4" })), name)));
}
function tile(title, value, note, picture) {
  return el("div", {}, el("h3", {}, title), el("div", { class: "big" }, value),
    el("p", { class: "soft" }, note), picture);
}

// -- one pool -----------------------------------------------------------------------------------

const admitted = (counts) => sum(Object.fromEntries(
  Object.entries(counts ?? {}).filter(([name]) => name.endsWith("admitted"))));
// Per second over the last ten; null while the server does not know yet.
const rate = (pool, kind, matches) => (pool.rates[kind] === undefined ? null : sum(Object.fromEntries(
  Object.entries(pool.rates[kind]).filter(([name]) => matches(name)))));

function verdict(pool) {
  const waiting = sum(pool.waiting), shed = sum(pool.rates.sheds);
  if (pool.backends?.ready === 0)
    return el("span", { class: "state bad" }, "no backend is ready");
  if (shed) return el("span", { class: "state bad" }, `shedding ${perSecond(shed)}`);
  if (waiting) return el("span", { class: "state warn" }, "queueing, nothing is shed");
  if (!sum(pool.outcomes)) return el("span", { class: "state" }, "no request has come yet");
  return el("span", { class: "state good" }, "calm, nothing waits");
}

function tiles(pool, past) {
  const seats = pool.inflight.seats, moved = pool.changes[0], queue = pool.signals.engine_queue;
  const why = pool.limit_max === null ? "fixed limit"
    : moved ? `limit: ${words(moved.reason)} ${seconds(moved.age_s)} ago` : "limit: not moved yet";
  const peak = Math.max(0, ...past.map((p) => p.waiting));
  const go = rate(pool, "outcomes", (name) => name.endsWith("admitted"));
  const shed = rate(pool, "sheds", () => true);
  return el("div", { class: "tiles" },
    tile("In use / limit", `${number(seats)} / ${number(pool.limit)}`, why, chart("Seats", past,
      [["second", "limit", "limit"], ["main", "inflight", "in use"]])),
    tile("Waiting", number(sum(pool.waiting)), `peak ${number(peak)} in ${KEPT_S / 60} min`,
      chart("Waiting", past, [["main", "waiting", "waiting"]])),
    tile("Queue in the engine", number(queue),
      known(queue) ? `estimate; delay ${seconds(pool.signals.delay_s)}` : "nothing measured yet",
      chart("Engine queue", past, [["main", "engine_queue", "queued"]])),
    tile("Admitted, shed", `${perSecond(go)}, ${perSecond(shed)}`, "over the last 10 s",
      chart("Per second", past,
        [["main", "admitted_per_s", "admitted"], ["alarm", "shed_per_s", "shed"]])));
}

function classes(pool) {
  const jobs = pool.jobs_waiting ?? {}, any = sum(jobs) > 0;
  const rows = Object.keys(pool.waiting).map((name) => [
    name, number(pool.waiting[name]), ...(any ? [number(jobs[name])] : []), seconds(pool.predicted_wait_s[name]),
    perSecond(rate(pool, "outcomes", (o) => o.startsWith(`${name} `) && o.endsWith("admitted"))),
    perSecond(rate(pool, "sheds", (s) => s.startsWith(`${name} `))),
  ]);
  return block("By class", ["", "waiting", ...(any ? ["jobs"] : []), "would wait", "admitted", "shed"], rows, "");
}
function sheds(pool) {
  const rows = Object.entries(pool.sheds).sort((a, b) => b[1] - a[1]).slice(0, ROWS)
    .map(([name, n]) => [words(name), perSecond(rate(pool, "sheds", (s) => s === name)), number(n)]);
  return block("Shed, by reason", ["", "now", "since start"], rows, "nothing was shed");
}
function returns(pool) {
  const { yes = 0, no = 0, capped = 0 } = pool.returns;
  const rows = [["let in as promised", number(yes)], ["shed again", number(no)],
    ["shed again, all slots promised", number(capped)]];
  const share = yes + no ? ` ${Math.round((100 * yes) / (yes + no))} %` : "";
  return block(`Retry-After kept${share}`, ["", "came back"], yes + no + capped ? rows : [],
    "nobody has come back yet");
}
function signals(pool) {
  const s = pool.signals, ready = pool.backends?.ready;
  return block("Signals", [], [
    ...(known(ready) ? [["backends ready", number(ready)]] : []),
    ["drain", perSecond(s.drain_rate)],
    ["time per token", seconds(s.tpot_s)],
    ["… of an idle engine", seconds(s.tpot_unloaded_s)],
    ["streams observed", `${number(s.observed_streams)} of ${number(pool.leases.open)}`],
    ["oldest lease", seconds(pool.leases.oldest_age_s)],
  ], "");
}
function changes(pool) {
  const rows = pool.changes.slice(0, 6).map((c) =>
    [words(c.reason), `${number(c.previous)} → ${number(c.limit)}`, `${seconds(c.age_s)} ago`]);
  return block("Last moves of the limit", [], rows,
    pool.limit_max === null ? "it is fixed" : "it has not moved yet");
}
function tenants(pool) {
  const names = Object.keys(pool.waiting), all = (t) => sum(t.waiting) + t.inflight;
  // Sorted here: an object puts names that are numbers first, the smallest in front.
  const rows = Object.entries(pool.tenants).sort(([, a], [, b]) => all(b) - all(a))
    .map(([name, t]) => [name, ...names.map((p) => number(t.waiting[p])),
      number(t.inflight)]).slice(0, ROWS);
  return block("Tenants, waiting by class", ["", ...names, "in use"], rows,
    "nobody waits or is served", "names");
}
function reports(pool) {
  if (!pool.load_reports.length) return null;
  const rows = pool.load_reports.map((r) => [r.source, words(r.outcome),
    known(r.age_s) ? `${seconds(r.age_s)} ago` : ""]);
  return block("Load reports", [], rows, "", "names");
}

function card(pool) {
  const past = points.get(pool.name) ?? [];
  return el("article", { class: "card", "aria-label": `Pool ${pool.name}` },
    el("div", { class: "head" }, el("h2", {}, pool.name), verdict(pool)),
    tiles(pool, past),
    el("div", { class: "columns" }, classes(pool), sheds(pool), returns(pool), tenants(pool),
      changes(pool), signals(pool), reports(pool)));
}

// -- the server -----------------------------------------------------------------------------------

function serverBlocks(status) {
  const nodes = status.nodes.map((n) => [n.node || "(unnamed)", number(n.leases),
    known(n.log_age_s) ? `${seconds(n.log_age_s)} ago` : "never"]);
  const said = { number, boolean: (yes) => (yes ? "yes" : "no") };
  const facts = (of) => Object.entries(of ?? {}).filter(([, value]) => known(value))
    .map(([name, value]) => [words(name), (said[typeof value] ?? String)(value)]);
  return [
    block("Envoys", ["", "leases", "last log"], nodes, "none seen yet", "names"),
    block("Jobs", [], facts(status.jobs), "not accepted here"),
    block("Journal", [], facts(status.journal), "none"),
  ].filter(known);
}

function render() {
  const { status } = last;
  byId("version").textContent = status.version;
  byId("ready").textContent = status.ready ? "ready" : `not ready: ${status.not_ready}`;
  byId("ready").className = `state ${status.ready ? "good" : "bad"}`;
  byId("facts").textContent = `up ${seconds(status.uptime_s)} · loop lag ${status.loop.lag_ms} ms` +
    ` · passed ungoverned ${number(status.passed)} · config ${status.config_digest.slice(0, 12)}`;
  fill(byId("notices"), status.warnings.map((w) => el("div", { class: "notice" }, w)));
  fill(byId("pools"), status.pools.map(card));
  fill(byId("server"), serverBlocks(status));
  byId("server").hidden = false;
}

function title(status) {
  const waiting = sum(status.pools.map((p) => sum(p.waiting)));
  const shed = sum(status.pools.map((p) => sum(p.rates.sheds)));
  const state = status.ready ? "" : `${status.not_ready} · `;
  return `${state}${shed ? `shedding ${perSecond(shed)} · ` : ""}${waiting ? `${waiting} wait · ` : ""}policy-server`;
}

// -- where the numbers come from ------------------------------------------------------------------

async function get(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
  if (answer.status === 401) throw new Error("it wants the admin token: reload this page");
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  return answer.json();
}

async function takeHistory() {
  const history = await get("history"), now = nowS();
  points.clear();
  for (const [name, columns] of Object.entries(history.pools)) {
    const { age_s: ages, ...values } = columns;
    points.set(name, ages.map((age, i) => ({ at: now - age,
      ...Object.fromEntries(Object.entries(values).map(([k, column]) => [k, column[i]])) })));
  }
  complete = true;
}

function addPoints(status, now) {
  const elapsed = last ? now - last.at : 0;
  for (const pool of status.pools) {
    const past = points.get(pool.name) ?? [];
    const before = last?.status.pools.find((p) => p.name === pool.name);
    const since = (count) =>
      (before && elapsed < GAP_S ? Math.max(0, (count(pool) - count(before)) / elapsed) : null);
    past.push({ at: now, limit: pool.limit, inflight: pool.inflight.seats,
      waiting: sum(pool.waiting), engine_queue: pool.signals.engine_queue,
      admitted_per_s: since((p) => admitted(p.outcomes)), shed_per_s: since((p) => sum(p.sheds)) });
    points.set(pool.name, past.filter((p) => now - p.at <= KEPT_S));
  }
}

async function poll() {
  if (busy) return;
  busy = true;
  clearTimeout(timer);
  try {
    const status = await get("statusz");
    const restarted = last && status.uptime_s < last.status.uptime_s;
    if (!complete || restarted) await takeHistory();
    const now = nowS();
    addPoints(status, now);
    last = { status, at: now };
    failures = 0;
    render();
  } catch (error) {
    failed(error);
  }
  busy = false;
  const pause = Math.min(LONGEST_PAUSE_MS, POLL_MS * 2 ** Math.max(0, failures - 1));
  nextTry = performance.now() + (failures ? pause * (0.9 + 0.2 * Math.random()) : pause);
  showLink();
  if (!document.hidden) timer = setTimeout(poll, nextTry - performance.now());
}

function failed(error) {
  if (!failures) firstFailure = nowS();
  failures += 1;
  complete = false;
  const why = error.name === "TimeoutError" ? `nothing came within ${ANSWER_WITHIN_MS / 1000} s`
    : error.name === "TypeError" ? "no connection" : error.message;
  const problem = `The policy server does not answer (${why}).`;
  if (byId("problem").textContent !== problem) byId("problem").textContent = problem;
}

function showLink() {
  const gone = failures > 0;
  byId("gone").hidden = !gone;
  document.body.classList.toggle("old", gone && last !== null);
  byId("fresh").textContent = gone ? "not live" : "live";
  byId("fresh").className = gone ? "state bad" : "soft";
  document.title = gone ? "no answer · policy-server" : title(last.status);
  if (!gone) return;
  byId("ready").textContent = "";
  const wait = Math.max(0, Math.ceil((nextTry - performance.now()) / 1000));
  const old = last ? `What you see is ${seconds(Math.round(nowS() - last.at))} old. ` : "";
  const since = seconds(Math.round(nowS() - firstFailure));
  byId("again").textContent = `Since ${since}. ${old}${wait ? `Next try in ${wait} s.` : "Trying …"}`;
}

byId("now").addEventListener("click", poll);
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (document.hidden) return;
  if (last && nowS() - last.at > GAP_S) complete = false;
  poll();
});
setInterval(() => { if (failures) showLink(); }, 1000);
poll();
