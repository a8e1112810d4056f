// The live page: two sliders that follow each other, and a run as it goes on.
import { Charts } from "./charts.js";

const at = (id) => document.getElementById(id);
const MOST = 1200; // rounds that are kept; more are joined in pairs
const page = { points: [], rows: [], asked: 0, choice: null, recommended: null };

// ---- the two sliders -----------------------------------------------------------------------------------------------------
const least = Math.log(Number(at("epsilon").dataset.least)), most = Math.log(Number(at("epsilon").dataset.most));
const toEpsilon = (step) => Math.exp(least + ((most - least) * step) / Number(at("epsilon").max));
const toStep = (epsilon) => Math.round(((Math.log(epsilon) - least) / (most - least)) * Number(at("epsilon").max));
const digits = (value) => Number(value.toPrecision(3)).toString();

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

async function ask(query) {
  const number = ++page.asked;
  const answer = await fetch(`api/recommend?${query}`).then((reply) => reply.json()).catch(() => null);
  if (answer === null || number !== page.asked) return; // a later question is on its way
  if (answer.error || !answer.reached) {
    at("numbers").textContent = answer.error ?? answer.words;
    return;
  }
  page.choice = answer;
  if (query.startsWith("accuracy")) setEpsilon(answer.epsilon);
  else if (answer.accuracy) setAccuracy(answer.accuracy);
  at("sentence").textContent = answer.words;
  const first = answer.centring ? `, and ${digits(answer.centring)} for the centring round` : "";
  const spare = answer.honesty?.spares ? ` and ${answer.honesty.spares}` : "";
  if (answer.honesty) colluding(answer.honesty);
  at("numbers").textContent =
    `That is ${answer.unit} = ${digits(answer.alpha)} for each of ${answer.rounds} rounds${spare}${first}; ` +
    `a run file asks for it with ${answer.asks}.`;
  at("odds").textContent = `${answer.odds[0].toUpperCase()}${answer.odds.slice(1)}.`;
  dots(answer.right);
  mark();
  const totals = await fetch(`api/totals?epsilon=${answer.epsilon}`).then((reply) => reply.json()).catch(() => null);
  if (totals !== null && number === page.asked) await Charts.update("totals", "totals", totals);
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

function mark() {
  const choice = page.choice;
  if (choice?.accuracy) Charts.update("accuracy", "chosen", [{ alpha: choice.alpha, median: choice.accuracy.median }]);
}

function dots(right) {
  const circles = Array.from({ length: 100 }, (_, i) => {
    const kind = i < Math.min(50, right) ? "chance" : i < right ? "gain" : "";
    return `<circle class="${kind}" cx="${5 + (i % 20) * 10}" cy="${8 + Math.floor(i / 20) * 15}" r="4"/>`;
  });
  at("dots").innerHTML = circles.join("");
}

let pause;
function later(work) {
  clearTimeout(pause);
  pause = setTimeout(work, 80);
}

at("epsilon").addEventListener("input", () => {
  const epsilon = toEpsilon(Number(at("epsilon").value));
  say("epsilon", `epsilon ${digits(epsilon)}`);
  later(() => ask(`epsilon=${epsilon}`));
});
at("accuracy").addEventListener("input", () => {
  const value = Number(at("accuracy").value);
  say("accuracy", value.toFixed(1));
  later(() => ask(`accuracy=${value}`));
});
at("take").addEventListener("click", () => {
  setEpsilon(page.recommended.epsilon);
  ask(`epsilon=${page.recommended.epsilon}`);
});

// ---- what the sweep finds ------------------------------------------------------------------------------------------------
async function swept(found) {
  page.points = found.points;
  at("progress").textContent = found.problem || (found.done ? "" : `${found.points.length} of ${found.of} totals are tried.`);
  if (found.source) at("source").textContent = at("source-2").textContent = found.source;
  if (found.chart) {
    const medians = found.points.map((point) => point.median);
    const low = Math.ceil(10 * Math.min(...medians)) / 10, high = Math.floor(10 * Math.max(...medians)) / 10; // all can be had
    Object.assign(at("accuracy"), { min: low.toFixed(1), max: high.toFixed(1), disabled: false });
    at("accuracy-low").textContent = `fewer right (${low.toFixed(1)}), more private`;
    at("accuracy-high").textContent = `more right (${high.toFixed(1)}), less private`;
    table(found.points, found.unit);
    await Charts.show("accuracy", found.chart);
    ask(`epsilon=${page.choice?.epsilon ?? at("epsilon").dataset.start}`);
  }
  page.recommended = found.recommended;
  const { alpha, total, reasons } = found.recommended;
  if (!found.done) return;
  at("recommended").textContent = alpha
    ? `${found.unit} = ${digits(alpha)} a round, epsilon = ${digits(total)} in total: of the ${found.points.length} totals that were ` +
      "measured, this one has the most utility of privacy, by the paper's measure, less wrong answers."
    : "Nothing can be recommended.";
  at("take").hidden = !alpha;
  at("why").hidden = false;
  at("why").open = !alpha;
  at("reasons").replaceChildren(...reasons.map((reason) => Object.assign(document.createElement("li"), { textContent: reason })));
}

function table(points, unit) {
  const row = (cells, tag) => `<tr>${cells.map((cell) => `<${tag}>${cell}</${tag}>`).join("")}</tr>`;
  const head = row([unit, "total epsilon", "median", "from", "to"], "th");
  const body = points.map((p) =>
    row([digits(p.alpha), digits(p.epsilon), ...[p.median, p.low, p.high].map((v) => v.toFixed(1))], "td"));
  at("points").innerHTML = `<thead>${head}</thead><tbody>${body.join("")}</tbody>`;
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
  at("told-accuracy").textContent = now.accuracy === null
    ? `Accuracy of this run: ${now.accuracy_note}.`
    : `${(100 * now.accuracy).toFixed(1)} of 100 answers of this run's model are right (${now.accuracy_range}), on ` +
      `${now.accuracy_note}.`;
  at("network").innerHTML = now.network;
  for (const name of ["honest", "nodes", "budgets"]) {
    const open = at(name).querySelector("details")?.open;
    at(name).innerHTML = now[name];
    const details = at(name).querySelector("details");
    if (details && open !== undefined) details.open = open;
  }
}

function joined(rows) {
  const pair = (a, b) => (b ? { round: b.round, ...both(a, b, "disagreement"), ...both(a, b, "change") } : a);
  const both = (a, b, name) => ({
    [name]: [(a[name][0] + b[name][0]) / 2, Math.min(a[name][1], b[name][1]), Math.max(a[name][2], b[name][2])],
  });
  return rows.filter((_, i) => i % 2 === 0).map((row, i) => pair(row, rows[2 * i + 1]));
}

function rounds(rows) {
  page.rows.push(...rows);
  while (page.rows.length > MOST) page.rows = joined(page.rows);
  document.body.dataset.round = page.rows.at(-1)?.round ?? 0;
  for (const name of ["disagreement", "change"]) {
    const values = page.rows.map((row) => ({ round: row.round, median: row[name][0], low: row[name][1], high: row[name][2] }));
    const shown = values.filter((value) => value.low > 0);
    Charts.update(name, "rounds", shown);
    // with algorithm sum all nodes stand at one point, and nothing is to be seen of their distance
    at(`chart-${name}`).closest("figure").hidden = name === "disagreement" && values.length > 0 && !shown.length;
  }
  const common = at("chart-disagreement").closest("figure").hidden;
  at("h-change").textContent = common ? "How far the common point moved" : "Change of what nodes hear";
  at("band").textContent = common ? "All nodes move alike." : "Line: median over nodes; band: all nodes.";
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
  setEpsilon(Number(at("epsilon").dataset.start));
  dots(50);
  const { charts, epsilon } = await fetch("api/start").then((reply) => reply.json());
  for (const [name, spec] of Object.entries(charts)) Charts.plan(name, spec);
  listen();
  await ask(`epsilon=${epsilon}`);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => Charts.redraw());
}

start();
