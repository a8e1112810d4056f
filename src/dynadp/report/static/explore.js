// The live page: two sliders that follow each other, and a run as it goes on.
import { Charts } from "./charts.js";

const at = (id) => document.getElementById(id);
const MOST = 1200; // rounds that are kept; more are joined in pairs
const page = { points: [], rows: [], asked: 0, choice: null, recommended: null };

// ---- the two sliders -----------------------------------------------------------------------------------------------------
const least = Math.log(Number(at("epsilon").dataset.least)), most = Math.log(Number(at("epsilon").dataset.most));
const digits = (value) => Number(value.toPrecision(4)); // as a total is asked for and shown, everywhere
const toEpsilon = (step) => Number(Math.exp(least + ((most - least) * step) / Number(at("epsilon").max)).toPrecision(3));
const toStep = (epsilon) => Math.round(((Math.log(epsilon) - least) / (most - least)) * Number(at("epsilon").max));

function say(slider, text) {
  at(`${slider}-out`).value = text;
  at(slider).setAttribute("aria-valuetext", text);
}

function setEpsilon(epsilon) {
  at("epsilon").value = toStep(epsilon);
  say("epsilon", `epsilon ${digits(epsilon)}`);
}

function setAccuracy({ median, between }) {
  at("accuracy").value = median;
  say("accuracy", `${median.toFixed(1)} (${between ? "interpolated" : "measured"})`);
}

// The choice is in the address: a copied address, "back" and another load lead to it. A new entry of the history for each
// choice, not for each step of a slider on its way there.
function remember(epsilon, entry) {
  const address = `?epsilon=${digits(epsilon)}`;
  if (location.search !== address) history[entry ? "pushState" : "replaceState"](null, "", address);
}

async function ask(query, entry = false) {
  const number = ++page.asked;
  const answer = await fetch(`api/recommend?${query}`).then((reply) => reply.json()).catch(() => null);
  if (answer === null || number !== page.asked) return; // a later question is on its way
  if (answer.error || !answer.reached) {
    at("numbers").textContent = answer.error ?? answer.words;
    return;
  }
  page.choice = answer;
  setEpsilon(answer.epsilon);
  if (answer.accuracy) setAccuracy(answer.accuracy);
  remember(answer.epsilon, entry);
  at("sentence").textContent = answer.words;
  if (answer.honesty) colluding(answer.honesty);
  at("numbers").textContent =
    `The plan costs epsilon = ${answer.cost}: ${answer.each}. A run file asks for it with ${answer.asks}.`;
  at("odds").textContent = `${answer.odds[0].toUpperCase()}${answer.odds.slice(1)}.`;
  dots(answer.right);
  mark();
  const of = (path) => fetch(`api/${path}?epsilon=${answer.epsilon}`).then((reply) => reply.json()).catch(() => null);
  const [around, totals] = await Promise.all([of("around"), of("totals")]);
  if (number !== page.asked) return;
  if (around !== null && !around.error) {
    at("changes").innerHTML = around.changes;
    at("caps").innerHTML = around.caps;
    at("text").textContent = around.text;
    at("save").href = `run.toml?epsilon=${answer.epsilon}`;
    at("copied").textContent = "";
  }
  if (totals !== null) await Charts.update("totals", "totals", totals);
}

function colluding({ rows, points }) {
  const body = at("collusion")?.querySelector("tbody");
  if (!body) return; // a node that is alone
  const line = ({ colluding: c, honest, mu, epsilon, right, planned }) => {
    const row = document.createElement("tr");
    const cells = [`${c}${planned ? " ✓ planned" : ""}`, honest, mu, epsilon, right];
    row.append(...cells.map((text, i) =>
      Object.assign(document.createElement(i ? "td" : "th"), { textContent: text, className: "number" })));
    row.firstChild.scope = "row";
    row.className = planned ? "used" : "";
    return row;
  };
  body.replaceChildren(...rows.map(line));
  Charts.update("collusion", "collusion", points);
}

// Moves the mark of the choice in both drawings, wide and narrow, by the numbers that they carry.
function mark() {
  const choice = page.choice;
  if (!choice) return;
  for (const svg of document.querySelectorAll(".decision")) {
    const n = Object.fromEntries(Object.entries(svg.dataset).map(([name, value]) => [name, Number(value)]));
    const share = Math.log(choice.epsilon / n.low) / Math.log(n.high / n.low);
    const x = n.left + Math.min(Math.max(share, 0), 1) * (n.right - n.left);
    const move = (part, y) => svg.querySelector(part).setAttribute("transform", `translate(0 ${y})`);
    svg.querySelector(".choice").setAttribute("transform", `translate(${x} 0)`);
    move(".choice .guess", n.even + ((choice.right - 50) / 50) * (n.sure - n.even));
    svg.querySelector(".choice .accuracy").toggleAttribute("hidden", !choice.accuracy);
    if (choice.accuracy) {
      move(".choice .accuracy", n.bottom + ((choice.accuracy.median - n.least) / (n.most - n.least)) * (n.top - n.bottom));
    }
  }
}

function dots(right) {
  const marks = Array.from({ length: 100 }, (_, i) => {
    const x = 5 + (i % 20) * 10, y = 8 + Math.floor(i / 20) * 15;
    return i >= 50 && i < right
      ? `<rect class="gain" x="${x - 4}" y="${y - 4}" width="8" height="8"/>` // a shape of its own: grey paper knows no orange
      : `<circle class="${i < right ? "chance" : ""}" cx="${x}" cy="${y}" r="4"/>`;
  });
  at("dots").innerHTML = marks.join("");
}

let pause;
function later(work) {
  clearTimeout(pause);
  pause = setTimeout(work, 80);
}

for (const [slider, shown] of [["epsilon", () => `epsilon ${toEpsilon(at("epsilon").value)}`],
  ["accuracy", () => Number(at("accuracy").value).toFixed(1)]]) {
  const query = () => `${slider}=${slider === "epsilon" ? toEpsilon(at("epsilon").value) : at("accuracy").value}`;
  at(slider).addEventListener("input", () => {
    page.asked += 1; // what is on its way belongs to an older place of the slider
    say(slider, shown());
    later(() => ask(query()));
  });
  at(slider).addEventListener("change", () => {
    clearTimeout(pause);
    ask(query(), true);
  });
}
at("take").addEventListener("click", () => ask(`epsilon=${page.recommended.epsilon}`, true));
addEventListener("popstate", () => ask(`epsilon=${chosen()}`));

function chosen() {
  const asked = Number(new URLSearchParams(location.search).get("epsilon"));
  const inside = asked >= Number(at("epsilon").dataset.least) && asked <= Number(at("epsilon").dataset.most);
  return inside ? asked : Number(at("epsilon").dataset.start);
}

at("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(at("text").textContent);
    at("copied").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(at("text"));
    at("copied").textContent = "Selected: copy it with Ctrl+C.";
  }
});

// ---- what the sweep finds ------------------------------------------------------------------------------------------------
async function swept(found) {
  page.points = found.points;
  at("progress").textContent = found.problem || (found.done ? "" : `${found.points.length} of ${found.of} totals are tried.`);
  if (found.source) {
    at("source").textContent = found.tried;
    at("source-2").textContent = found.source.split(":")[0];
  }
  for (const [part, html] of Object.entries(found.parts)) at(part).innerHTML = html;
  page.recommended = found.recommended;
  at("take").hidden = !found.done || !found.recommended.alpha;
  if (found.pictures.length) {
    const medians = found.points.map((point) => point.median);
    const low = Math.ceil(10 * Math.min(...medians)) / 10, high = Math.floor(10 * Math.max(...medians)) / 10; // all can be had
    Object.assign(at("accuracy"), { min: low.toFixed(1), max: Math.max(low, high).toFixed(1), disabled: false });
    at("accuracy-low").textContent = `lower (${low.toFixed(1)}), more private`;
    at("accuracy-high").textContent = `higher (${high.toFixed(1)}), less private`;
    at("decision").innerHTML = found.pictures.map((svg, i) => `<div class="${i ? "slim" : "broad"}">${svg}</div>`).join("");
    mark();
    await ask(`epsilon=${page.choice?.epsilon ?? chosen()}`);
  }
  document.body.dataset.swept = found.done;
}

// ---- the run -------------------------------------------------------------------------------------------------------------
function state(now) {
  at("simulation").hidden = !now.simulation;
  at("run").hidden = !now.key;
  if (!now.key) {
    if (now.problem) at("run-state").textContent = now.problem;
    return;
  }
  const of = now.rounds ? ` of ${now.rounds}` : "";
  at("run-state").textContent =
    now.problem || (now.finished ? `${now.name} is finished after ${now.round} rounds.` : `${now.name}: round ${now.round}${of}.`);
  at("done").value = now.finished ? 1 : now.rounds ? now.round / now.rounds : 0;
  at("guarantee").textContent = now.guarantee;
  at("meaning").textContent = now.meaning;
  at("told-accuracy").textContent = now.accuracy;
  at("network").innerHTML = now.network;
  for (const name of ["honest", "nodes", "budgets"]) {
    const open = at(name).querySelector("details")?.open;
    at(name).innerHTML = now[name];
    const details = at(name).querySelector("details");
    if (details && open !== undefined) details.open = open;
  }
}

function joined(rows) {
  const names = ["disagreement", "change", "apart", "noise"];
  const pair = (a, b) => (b ? Object.assign({ round: b.round }, ...names.map((name) => both(a, b, name))) : a);
  const both = (a, b, name) => {
    if (!a[name] || !b[name]) return a[name] ?? b[name] ? { [name]: a[name] ?? b[name] } : {};
    return { [name]: [(a[name][0] + b[name][0]) / 2, Math.min(a[name][1], b[name][1]), Math.max(a[name][2], b[name][2])] };
  };
  return rows.filter((_, i) => i % 2 === 0).map((row, i) => pair(row, rows[2 * i + 1]));
}

function rounds(rows) {
  page.rows.push(...rows);
  while (page.rows.length > MOST) page.rows = joined(page.rows);
  document.body.dataset.round = page.rows.at(-1)?.round ?? 0;
  const shown = {};
  for (const name of ["disagreement", "change", "apart"]) {
    shown[name] = page.rows.filter((row) => row[name]?.[1] > 0).map((row) => ({
      round: row.round, median: row[name][0], low: row[name][1], high: row[name][2],
      ...(name === "change" && row.noise ? { noise: row.noise[0] } : {}),
    }));
    Charts.update(name, "rounds", shown[name]);
    // with algorithm sum all nodes stand at one point, and nothing is to be seen of their distance; ADMM has no such point
    at(`chart-${name}`).closest("figure").hidden = page.rows.length > 0 && !shown[name].length && name !== "change";
  }
  const common = at("chart-disagreement").closest("figure").hidden;
  at("h-moved").textContent = common ? "How far the common point moved" : "Change of what nodes hear";
  at("band").textContent = common ? at("band").dataset.common : at("band").dataset.each;
}

function listen() {
  const events = new EventSource("events"); // comes back by itself, and says which event was the last
  const on = (name, work) => events.addEventListener(name, (event) => work(JSON.parse(event.data)));
  on("anew", () => { page.rows = []; rounds([]); });
  on("state", state);
  on("rounds", rounds);
  on("sweep", swept);
  events.onopen = () => { at("link").textContent = ""; };
  events.onerror = () => {
    at("link").textContent = events.readyState === EventSource.CLOSED
      ? "The server does not know this page any more: open the address that it printed."
      : "The server does not answer; trying again.";
  };
}

async function start() {
  document.documentElement.classList.add("js");
  setEpsilon(chosen());
  const { charts } = await fetch("api/start").then((reply) => reply.json());
  for (const [name, spec] of Object.entries(charts)) Charts.plan(name, spec);
  listen();
  await ask(`epsilon=${chosen()}`);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => Charts.redraw());
}

start();
