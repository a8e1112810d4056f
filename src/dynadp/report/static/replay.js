// Plays a run: frames come put together from the server; a picture is one canvas, drawn once a frame.
const at = (id) => document.getElementById(id);
const still = matchMedia("(prefers-reduced-motion: reduce)");
const page = { run: null, frame: 0, part: 0, playing: false, last: 0, drawn: -1 };
const digits = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(3)).toString());
const up = (value) => { // to four digits, never less than it is
  if (!(value > 0)) return digits(value);
  const places = 3 - Math.floor(Math.log10(value)), step = 10 ** Math.abs(places);
  const raised = places > 0 ? Math.ceil(value * step - 1e-9) / step : Math.ceil(value / step - 1e-9) * step;
  return Number(raised.toPrecision(4)).toString();
};

function colours() {
  const style = getComputedStyle(document.documentElement);
  page.colour = Object.fromEntries(["ink", "soft", "line", "blue", "orange", "green", "grey", "card", "paper"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

// ---- canvases ------------------------------------------------------------------------------------------------------------
function fitted(canvas, wide, tall) {
  const box = canvas.getBoundingClientRect(), ratio = Math.min(devicePixelRatio || 1, 2);
  const [w, h] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const pen = canvas.getContext("2d");
  pen.setTransform(w / (wide ?? box.width), 0, 0, h / (tall ?? box.height), 0, 0);
  pen.clearRect(0, 0, wide ?? box.width, tall ?? box.height);
  return [pen, box.width, box.height];
}

// of a round whose own total was not computed that of a later one: nothing is understated
const spentAt = (group, round) => (group.curve.find(([n]) => n >= round) ?? group.curve.at(-1))[1];

function budgetOf() { // each node's group, for its ring
  const found = new Map();
  for (const group of page.run.budgets) for (const node of group.nodes) found.set(node, group);
  page.groups = page.run.nodes.map((node) => found.get(node.name) ?? page.run.budgets[0] ?? null);
}

function network() {
  const { run, colour } = page, [pen] = fitted(at("network"), 420, 340), many = run.nodes.length > 24;
  const size = many ? 5 : 12, round = run.frames[page.frame]?.round ?? 0;
  pen.strokeStyle = colour.line; pen.lineWidth = run.edges.length > 200 ? 0.25 : many ? 0.7 : 1.2;
  pen.beginPath();
  for (const [u, v] of run.edges) { pen.moveTo(run.nodes[u].x, run.nodes[u].y); pen.lineTo(run.nodes[v].x, run.nodes[v].y); }
  pen.stroke();
  const share = run.noise?.[page.frame];
  if (round) messages(pen, many ? 2 : 5, share);
  for (const [i, node] of run.nodes.entries()) {
    const group = page.groups[i], used = group ? Math.min(1, spentAt(group, round) / group.total) : 0;
    pen.beginPath(); pen.fillStyle = colour.card; pen.strokeStyle = colour.grey; pen.lineWidth = many ? 1.5 : 3;
    pen.arc(node.x, node.y, size, 0, 2 * Math.PI); pen.fill(); pen.stroke();
    if (used > 0) {
      pen.beginPath(); pen.strokeStyle = colour.green; pen.lineWidth = many ? 2.5 : 5;
      pen.arc(node.x, node.y, size, -Math.PI / 2, -Math.PI / 2 + 2 * Math.PI * used); pen.stroke();
    }
    if (!many) {
      pen.fillStyle = colour.ink; pen.font = "600 12px system-ui, sans-serif"; pen.textAlign = "center";
      pen.fillText(node.name.length > 22 ? `${node.name.slice(0, 21)}…` : node.name, node.x, node.y + (node.y <= 170 ? -20 : 30));
    }
  }
}

function messages(pen, size, share) { // both ways on each edge: noise as a square's part, signal as the rest
  const { run, colour } = page, t = still.matches ? 0.5 : page.part;
  const noisy = share ?? null, cut = noisy === null ? 0 : noisy * 2 * size;
  const noise = new Path2D(), signal = new Path2D();
  for (const [u, v] of run.edges) {
    const a = run.nodes[u], b = run.nodes[v];
    for (const [from, to] of [[a, b], [b, a]]) {
      const x = from.x + (to.x - from.x) * t - size, y = from.y + (to.y - from.y) * t - size;
      if (cut) noise.rect(x, y + 2 * size - cut, 2 * size, cut);
      if (cut < 2 * size) signal.rect(x, y, 2 * size, 2 * size - cut);
    }
  }
  pen.fillStyle = colour.orange; pen.fill(noise);
  pen.fillStyle = noisy === null ? colour.grey : colour.blue; pen.fill(signal);
}

function chart(id, points, log = false, spoken = digits) {
  const canvas = at(id), { colour, run } = page, [pen, w, h] = fitted(canvas);
  const usable = points.filter((point) => point.y !== null && (!log || point.y > 0));
  if (!usable.length) return;
  const scale = (y) => (log ? Math.log10(y) : y);
  const ends = usable.flatMap((p) => [p.low ?? p.y, p.high ?? p.y]).filter((y) => !log || y > 0).map(scale);
  let low = Math.min(...ends), high = Math.max(...ends);
  if (high - low < 1e-9) { low -= 0.5; high += 0.5; }
  const last = Math.max(run.rounds ?? 1, run.frames.at(-1)?.round ?? 1), left = 52, bottom = h - 4, top = 8;
  const X = (n) => left + ((w - left - 6) * n) / last, Y = (y) => bottom - ((bottom - top) * (scale(y) - low)) / (high - low);
  pen.font = "11px system-ui, sans-serif"; pen.fillStyle = colour.soft; pen.textAlign = "right"; pen.textBaseline = "middle";
  const label = (y) => (y !== 0 && Math.abs(y) < 0.01 ? y.toExponential(1) : spoken(y)); // a long one would be cut
  for (const y of [low, high]) pen.fillText(label(log ? 10 ** y : y), left - 6, bottom - ((bottom - top) * (y - low)) / (high - low));
  pen.strokeStyle = colour.line; pen.lineWidth = 1; pen.strokeRect(left, top, w - left - 6, bottom - top);
  if (usable[0].low !== undefined) {
    pen.beginPath(); usable.forEach((p, i) => pen[i ? "lineTo" : "moveTo"](X(p.x), Y(p.high)));
    [...usable].reverse().forEach((p) => pen.lineTo(X(p.x), Y(p.low)));
    pen.globalAlpha = 0.2; pen.fillStyle = colour.blue; pen.fill(); pen.globalAlpha = 1;
  }
  pen.beginPath(); usable.forEach((p, i) => pen[i ? "lineTo" : "moveTo"](X(p.x), Y(p.y)));
  pen.strokeStyle = colour.blue; pen.lineWidth = 2; pen.stroke();
  if (usable.length === 1) { // no line
    const [{ x, y, low: from = y, high: to = y }] = usable;
    pen.beginPath(); pen.arc(X(x), Y(y), 4, 0, 2 * Math.PI); pen.fillStyle = colour.blue; pen.fill();
    pen.beginPath(); pen.moveTo(X(x), Y(from)); pen.lineTo(X(x), Y(to)); pen.stroke();
  }
  const round = run.frames[page.frame]?.round ?? 0;
  pen.beginPath(); pen.moveTo(X(round), top); pen.lineTo(X(round), bottom); pen.strokeStyle = colour.orange; pen.lineWidth = 2; pen.stroke();
}

function charts() {
  const { run } = page, worst = run.budgets[0];
  chart("c-budget", worst ? [{ x: 0, y: 0 }, ...worst.curve.map(([x, y]) => ({ x, y }))] : [], false, up);
  at("f-measure").hidden = !run.measures.length;
  if (run.measures.length) chart("c-measure", run.measures.map((one) => ({ x: one.round, y: one.value, low: one.low, high: one.high })));
  chart("c-change", run.frames.map((frame) => ({ x: frame.round, y: frame.change[0] })), true);
}

function words() {
  const { run } = page, frame = run.frames[page.frame];
  if (!frame) { at("words").textContent = "No round is recorded yet."; return; }
  const share = run.noise?.[page.frame], spent = run.budgets[0] ? spentAt(run.budgets[0], frame.round) : null;
  const known = run.measures.filter((one) => one.round <= frame.round).at(-1);
  const parts = [`Round ${frame.round} of ${run.rounds ?? run.done}`];
  if (share !== null && share !== undefined) parts.push(`${(100 * share).toFixed(0)}% of a message is noise`);
  if (spent !== null) parts.push(`epsilon so far ${up(spent)} of ${up(run.budgets[0].total)} at the costliest node`);
  if (known && run.measure === "right answers") parts.push(`${(100 * known.value).toFixed(1)} of 100 public answers are right (${(100 * known.low).toFixed(1)} to ${(100 * known.high).toFixed(1)})`);
  else if (known) parts.push(`${run.measure} on public rows: ${digits(known.value)} (${digits(known.low)} to ${digits(known.high)})`);
  at("words").textContent = `${parts.join("; ")}.`;
}

function draw(all = true) {
  if (!page.run) return;
  network();
  if (!all) return;
  charts();
  const frame = page.run.frames[page.frame];
  at("now").textContent = frame ? `round ${frame.round} of ${page.run.rounds ?? page.run.done}` : "";
  at("scrub").value = page.frame;
  at("scrub").setAttribute("aria-valuetext", at("now").textContent);
  document.body.dataset.frame = page.frame;
  if (!page.playing) words();
}

// ---- playing -------------------------------------------------------------------------------------------------------------
function tick(time) {
  if (!page.playing) return;
  const passed = Math.min(0.1, (time - page.last) / 1000);
  page.last = time;
  page.part += passed * Number(at("speed").value);
  const whole = Math.floor(page.part);
  page.part -= whole;
  if (whole) page.frame = Math.min(page.run.frames.length - 1, page.frame + whole);
  if (page.frame >= page.run.frames.length - 1 && page.run.finished) { page.part = 0.5; set(false); return; }
  if (whole || !still.matches) draw(whole > 0);
  requestAnimationFrame(tick);
}

function set(playing) {
  page.playing = playing && page.run.frames.length > 0;
  at("play").textContent = page.playing ? "Pause" : "Play";
  if (page.playing) {
    if (page.frame >= page.run.frames.length - 1 && page.run.finished) page.frame = 0;
    page.last = performance.now();
    requestAnimationFrame(tick);
  }
  draw();
}

function move(frame) {
  page.playing = false;
  at("play").textContent = "Play";
  page.part = 0.5;
  page.frame = Math.max(0, Math.min(page.run.frames.length - 1, frame));
  draw();
}

at("play").addEventListener("click", () => set(!page.playing));
at("before").addEventListener("click", () => move(page.frame - 1));
at("after").addEventListener("click", () => move(page.frame + 1));
at("scrub").addEventListener("input", () => move(Number(at("scrub").value)));
addEventListener("keydown", (event) => {
  if (event.target.closest?.("input, select, button, a, summary, [tabindex]") || event.ctrlKey || event.metaKey || event.altKey) return;
  const ways = { " ": () => set(!page.playing), ArrowLeft: () => move(page.frame - 1), ArrowRight: () => move(page.frame + 1), Home: () => move(0), End: () => move(Infinity) };
  if (ways[event.key]) { event.preventDefault(); ways[event.key](); }
});

async function load() {
  const found = await fetch("api/history").then((reply) => reply.json()).catch(() => null);
  at("link").textContent = found === null ? "The server does not answer; trying again." : found.error ?? "";
  if (found && !found.error) {
    const behind = page.run && page.frame >= page.run.frames.length - 1; // who looks at the last round follows
    page.run = found;
    budgetOf();
    for (const [id, shown] of [["l-parts", Boolean(found.noise)], ["l-whole", !found.noise]]) at(id).hidden = !shown;
    at("scrub").max = Math.max(0, found.frames.length - 1);
    at("play-section").hidden = false;
    if (!page.ready) { page.frame = found.finished ? 0 : Math.max(0, found.frames.length - 1); page.part = 0.5; }
    else if (behind && !page.playing) page.frame = Math.max(0, found.frames.length - 1);
    page.ready = true;
    draw();
    document.body.dataset.ready = "yes";
    document.body.dataset.done = found.done;
  }
  if (!found?.finished) setTimeout(load, 1500);
}

// ---- what a neighbour sees -----------------------------------------------------------------------------------------------
function made(tag, text = "", kind = "") {
  const node = document.createElement(tag);
  node.textContent = text;
  if (kind) node.className = kind;
  return node;
}

function shown({ plain, noisy, certain, asked, epsilon }) {
  const table = made("table"), head = table.createTHead().insertRow(), body = table.createTBody(), foot = table.createTFoot();
  for (const text of ["attribute", "the row", "without noise", `with epsilon = ${up(epsilon)}`, "plain guessing"]) head.append(Object.assign(made("th", text), { scope: "col" }));
  for (const [name, [truth, read, guess]] of Object.entries(plain.example)) {
    const row = body.insertRow(), hidden = noisy.example[name][1];
    row.append(Object.assign(made("th", name), { scope: "row" }), made("td", truth),
      made("td", read, read === truth ? "read" : "wrong"),
      made("td", hidden, hidden !== truth ? "wrong" : guess === truth ? "lucky" : "read"),
      made("td", guess, guess === truth ? "lucky" : "wrong"));
  }
  const cell = (value, low, high, unit) => {
    const td = made("td", value);
    td.append(made("small", low === null ? unit : `${low} to ${high}${unit}`));
    return td;
  };
  const count = (one, value, ends) => cell(`${value.toFixed(1)} of ${one.attributes}`, ends.lower.toFixed(1), ends.upper.toFixed(1), "");
  const first = foot.insertRow(), second = foot.insertRow();
  first.append(Object.assign(made("th", `right, mean of ${plain.rows} rows`), { scope: "row" }), made("td"),
    count(plain, plain.recovered, plain.interval), count(noisy, noisy.recovered, noisy.interval), count(plain, plain.guessing, plain.guessing_interval));
  const hundred = (value) => (100 * value).toFixed(1);
  second.append(Object.assign(made("th", `${at("neighbour").dataset.asked} Right of 100`), { scope: "row" }), made("td"),
    cell(hundred(certain.right), null, null, certain.right === 1 ? "in every run" : "of as many runs"),
    cell(hundred(asked.right), hundred(asked.interval.lower), hundred(asked.interval.upper), `, proved: at most ${hundred(asked.right_bound)}`),
    cell("50", null, null, "a coin toss"));
  const scroll = made("div", "", "scroll");
  Object.assign(scroll, { tabIndex: 0 });
  scroll.setAttribute("role", "group");
  scroll.setAttribute("aria-label", "What a neighbour reads of a synthetic row");
  scroll.append(table);
  at("neighbour").replaceChildren(scroll, made("p", `Orange: read off messages. ✓ alone: right, as a guess is that hears nothing. 95% intervals (Wilson), of ${plain.rows} rows and ${2 * asked.runs} answers; ${plain.rounds} rounds among 3 nodes, SIMULATION on synthetic rows. An attack that fails proves nothing about better ones.`, "soft"));
  at("neighbour").hidden = false;
}

async function attack(method) {
  const found = await fetch("api/neighbour", { method }).then((reply) => reply.json()).catch(() => ({ state: "failed", error: "the server does not answer" }));
  const button = at("attack");
  button.hidden = found.state === "done";
  button.disabled = found.state === "running";
  at("attacking").textContent = found.state === "running" ? `At work: ${found.part}. It takes a minute or so.` : found.state === "failed" ? `It failed: ${found.error}` : "";
  if (found.state === "running") setTimeout(() => attack("GET"), 1000);
  if (found.state === "done") shown(found.found);
}

colours();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours(); draw(); });
still.addEventListener("change", () => draw());
addEventListener("resize", () => draw());
load();
if (at("attack")) { at("attack").addEventListener("click", () => attack("POST")); attack("GET"); }
