// The wizard: one step at a time; every answer is checked by the server, which asks what `dynadp init` asks.
const at = (id) => document.getElementById(id);
const KEPT = "dynadp-start"; // of the tab: answers survive a reload
const steps = [...document.querySelectorAll("#steps button")];
const order = steps.map((button) => button.dataset.step);
const page = { step: "rows", answers: {}, forms: {}, folder: document.body.dataset.folder, asked: [], files: [], kinds: [], number: 0, shown: new Set(), seen: new Set(), deeds: [] };

try {
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
  if (kept) Object.assign(page, { answers: kept.answers, forms: kept.forms, folder: kept.folder, step: kept.step, seen: new Set(kept.seen), touched: new Set(Object.keys(kept.answers)) });
} catch { /* nothing was kept */ }
const keep = () => sessionStorage.setItem(KEPT, JSON.stringify({ answers: page.answers, forms: page.forms, folder: page.folder, step: page.step, seen: [...page.seen] }));

// a text as a shell takes it for one word
const shell = (text) => (/^[\w./=-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);

function made(tag, given = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name in node && typeof value !== "string") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

async function send(where, given = {}) {
  const reply = await fetch(where, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ folder: page.folder, ...given }),
  }).catch(() => null);
  at("link").textContent = reply === null ? "The server does not answer; start the command again." : "";
  return reply === null ? { error: "the server does not answer" } : reply.json().catch(() => ({ error: "the server does not know this page any more: open the address that it printed" }));
}

// ---- questions -----------------------------------------------------------------------------------------------------------
async function ask() {
  const number = ++page.number;
  const found = await send("api/ask", { answers: page.answers });
  if (number !== page.number) return false; // a later question is on its way
  if (found.error) { at("problem").textContent = found.error; return false; }
  const before = page.asked;
  // what follows a wrong answer is not known: keep showing what this step had
  const names = new Set(found.asked.map((one) => one.name));
  const last = found.asked.at(-1);
  const stuck = !found.complete && last && (last.error || last.given === null);
  const kept = stuck ? before.filter((one) => one.step === page.step && last.step === page.step && !names.has(one.name) && page.shown.has(one.name) && last.error) : [];
  page.asked = [...found.asked, ...kept.map((one) => ({ ...one, kept: true }))];
  page.complete = found.complete;
  page.problem = found.problem;
  page.network = found.network;
  page.files = found.files;
  at("folder-error").textContent = found.folder;
  keep();
  return true;
}

const inStep = (step) => page.asked.filter((one) => one.step === step);
const missing = (one) => one.kept || Boolean(one.error) || (one.default === null && !(one.given ?? "").trim());
const columnsMissing = (step) => step === "columns" && inStep(step).length > 0 && inStep(step).every((one) => !(one.given ?? "").trim());
const stepDone = (step) => step === "run" ? page.deeds.length > 0 && page.deeds.every((deed) => deed.state === "done")
  : inStep(step).length > 0 && !inStep(step).some(missing) && !columnsMissing(step);
const empty = (step) => step !== "run" && reachable(step) && inStep(step).length === 0; // nothing to ask
function reachable(step) {
  if (step === "run") return page.complete === true;
  const until = order.indexOf(step);
  return order.slice(0, until).every((before) => stepDone(before) || inStep(before).length === 0 && until > 0 && inStep("rows").length > 0 && stepDone("rows") && known(before));
}
// a step without a question, such as trust with one node, is known once a later one has some
const known = (step) => page.complete || page.asked.some((one) => order.indexOf(one.step) > order.indexOf(step));

const slugs = new Map(), taken = new Set();
function slug(one) { // of a name: no two have the same, and a blank would part it in two
  if (!slugs.has(one.name)) {
    let found = one.name.replace(/\s/g, "-");
    while (taken.has(found)) found += "-";
    slugs.set(one.name, found);
    taken.add(found);
  }
  return slugs.get(one.name);
}
const describe = (one) => `note-${slug(one)} error-${slug(one)}`;

function put(one, text) {
  page.answers[one.name] = text;
  page.touched = (page.touched ?? new Set()).add(one.name);
  keep();
  clearTimeout(page.pause);
  page.pause = setTimeout(async () => { if (await ask()) refresh(); }, 200);
}

const idOf = (one) => `q-${slug(one)}`;
const lines = (one) => [
  made("p", { class: "note", id: `note-${slug(one)}` }),
  made("p", { class: "error", id: `error-${slug(one)}`, role: "alert" }),
];

const controls = {
  text(one) {
    const input = made("input", { id: idOf(one), autocomplete: "off", spellcheck: "false", "aria-describedby": describe(one) });
    input.value = one.given ?? page.answers[one.name] ?? one.default ?? "";
    input.addEventListener("input", () => put(one, input.value));
    const hints = one.choices.map(([name, words]) => made("li", {}, pick(one, input, name, words)));
    return made("div", { class: "field" }, made("label", { for: idOf(one) }, one.text), input,
      hints.length ? made("ul", { class: "found" }, ...hints) : null, ...lines(one));
  },
  files(one) {
    const field = controls.text({ ...one, choices: [] });
    const input = field.querySelector("input");
    const parts = () => input.value.match(/(?:[^\s'"]|'[^']*'|"[^"]*")+/g) ?? [];
    const bare = (part) => part.replace(/'([^']*)'|"([^"]*)"/g, "$1$2");
    const named = (file) => shell(file.includes("=") ? file : `${file.split("/").at(-1).replace(/\.\w+$/, "")}=${file}`);
    const set = (texts) => { input.value = texts.join(" "); put(one, input.value); mark(); };
    const list = page.offered.map((file) => {
      const both = [named(file), shell(file)]; // as a node's file, and as the file of all
      const button = made("button", { type: "button", "aria-pressed": "false" }, file);
      button.addEventListener("click", () => {
        const there = parts();
        set(there.some((part) => both.includes(part)) ? there.filter((part) => !both.includes(part)) : [...there.map((part) => named(bare(part))), both[0]]);
      });
      return { button, both };
    });
    const box = made("input", { type: "checkbox", id: "for-all" });
    const all = made("label", { class: "choice", for: "for-all" }, box, made("span", {}, "This file has the rows of several nodes, and a column that names the node of each row"));
    box.addEventListener("change", () => set(parts().map((part) => (box.checked ? shell(bare(part).replace(/^[^=]*=/, "")) : named(bare(part))))));
    const mark = () => {
      const there = parts();
      for (const { button, both } of list) button.setAttribute("aria-pressed", String(there.some((part) => both.includes(part))));
      all.hidden = there.length !== 1;
      box.checked = there.length === 1 && !there[0].includes("=");
    };
    input.addEventListener("input", mark);
    mark();
    field.append(all);
    if (list.length) {
      field.append(made("p", { class: "soft", id: "found-words" }, "CSV files here, by name; press to add one as a node:"),
        made("ul", { class: "found", "aria-labelledby": "found-words" }, ...list.map(({ button }) => made("li", {}, button))));
    }
    return field;
  },
  select(one) {
    const select = made("select", { id: idOf(one), "aria-describedby": describe(one) });
    if (one.default === null) select.append(made("option", { value: "" }, "choose"));
    for (const [value, words] of one.choices) select.append(made("option", { value }, words || value));
    select.value = one.given ?? page.answers[one.name] ?? one.default ?? "";
    select.addEventListener("input", () => put(one, select.value));
    return made("div", { class: "field" }, made("label", { for: idOf(one) }, one.text), select, ...lines(one));
  },
  "one of"(one) {
    const now = one.given ?? page.answers[one.name] ?? one.default;
    const choices = one.choices.map(([value, words], i) => {
      const radio = made("input", { type: "radio", name: idOf(one), value, id: `${idOf(one)}-${i}`, "aria-describedby": describe(one) });
      radio.checked = value === now;
      radio.addEventListener("change", () => put(one, value));
      return made("label", { class: "choice", for: `${idOf(one)}-${i}` }, radio, made("span", {}, made("b", {}, value), words));
    });
    return made("fieldset", { class: "field", id: idOf(one) }, made("legend", {}, one.text), ...choices, ...lines(one));
  },
  column(one) {
    const name = one.name.slice("column ".length);
    const now = page.forms[one.name] ?? { form: "", text: "" };
    const select = menu().cloneNode(true); // much cheaper than making it anew for each of thousands
    select.id = idOf(one);
    select.setAttribute("aria-label", `${name}: what is it`);
    select.value = now.form;
    const input = made("input", { autocomplete: "off", spellcheck: "false", "aria-label": `${name}: bounds or values`, "aria-describedby": describe(one) });
    input.value = now.text;
    const set = () => {
      const [, , form, example] = page.kinds.find(([each]) => each === select.value);
      input.hidden = !form.includes("{}");
      input.placeholder = example;
      const text = input.hidden ? form : input.value.trim() ? form.replace("{}", input.value.trim()) : form ? " ? " : "";
      page.forms[one.name] = { form: select.value, text: input.value };
      return text;
    };
    select.addEventListener("input", () => put(one, set()));
    input.addEventListener("input", () => put(one, set()));
    set();
    return made("div", { class: "field column" }, made("span", { class: "name" }, name), select, input, ...lines(one));
  },
};

function menu() {
  page.menu ??= made("select", {}, ...page.kinds.map(([form, words]) =>
    made("option", { value: form }, form && !["range", "values", "days", "hash"].includes(form) ? `${form}: ${words}` : words)));
  return page.menu;
}

function pick(one, input, name, words) {
  const button = made("button", { type: "button", title: words }, name);
  button.addEventListener("click", () => { input.value = name; put(one, name); });
  return button;
}

function render() {
  for (const button of steps) {
    const current = button.dataset.step === page.step;
    if (current) button.setAttribute("aria-current", "step"); else button.removeAttribute("aria-current");
  }
  const doing = page.step === "run";
  at("form").hidden = doing;
  at("do").hidden = !doing;
  at("preview").hidden = false;
  if (doing) { at("folder").value = page.folder; follow(); }
  const button = at(`go-${page.step}`);
  at("h-step").textContent = button.dataset.about;
  const questions = inStep(page.step);
  page.shown = new Set(questions.map((one) => one.name));
  at("fields").replaceChildren(...questions.flatMap((one, i) => [
    ...(one.control === "column" && i > 0 ? [] : one.shown.slice(0, one.control === "column" ? 0 : 2)).map((line) => made("p", { class: "soft" }, line)),
    controls[one.control](one),
  ]));
  if (page.step === "columns") {
    at("fields").prepend(made("p", { class: "soft" }, "Say what is publicly known about each, never what its rows hold; numbers beyond bounds are clipped. At least one column is needed."));
  }
  refresh();
}

function refresh() {
  const names = inStep(page.step).map((one) => one.name);
  if (page.step !== "run" && (names.some((name) => !page.shown.has(name)) || [...page.shown].some((name) => !names.includes(name)))) {
    const focused = document.activeElement?.id;
    const [from, to] = [document.activeElement?.selectionStart, document.activeElement?.selectionEnd];
    page.shown = new Set(names);
    render();
    const again = focused && at(focused);
    if (again) { again.focus(); if (from != null && again.setSelectionRange) again.setSelectionRange(from, to); }
    return;
  }
  for (const one of inStep(page.step)) {
    const note = at(`note-${slug(one)}`), error = at(`error-${slug(one)}`);
    if (!note) continue;
    note.textContent = one.note;
    const empty = one.default === null && !(one.given ?? "").trim();
    const known = page.touched?.has(one.name) || page.tried === page.step;
    const example = page.kinds.find(([form]) => form === page.forms[one.name]?.form)?.[3];
    const short = one.control === "column" ? one.error.replace(/(; give public bounds|is no known kind of quantity;).*/, (_, how) => `${how.startsWith(";") ? "" : "says no bounds"}; expected such as ${example}`) : one.error;
    const words = short || (empty && page.tried === page.step ? "an answer is needed here" : "");
    const text = known ? words : "";
    if (error.textContent !== text) error.textContent = text;
    const input = error.parentElement.querySelector("input:not([type=radio]):not([hidden])");
    if (input) input.setAttribute("aria-invalid", String(Boolean(text)));
  }
  const stuck = page.tried === page.step;
  at("problem").textContent = stuck && columnsMissing(page.step) ? "No column is declared yet; declare at least one, so that there is something to learn."
    : page.problem && page.step === "ledgers" ? page.problem : "";
  at("drawn").hidden = page.step !== "network" || !page.network;
  if (page.network) at("drawn").innerHTML = page.network;
  for (const button of steps) {
    const step = button.dataset.step;
    button.disabled = !reachable(step) || empty(step);
    const done = stepDone(step) && page.seen.has(step), wrong = inStep(step).some((one) => one.error);
    button.classList.toggle("wrong", wrong);
    button.classList.toggle("answered", done && known(step));
    button.querySelector(".mark").textContent = wrong ? "!" : done && known(step) ? "✓" : "";
    button.setAttribute("aria-label", `${button.querySelector(".title").textContent}: ${wrong ? "an answer is wrong" : done && known(step) ? "answered" : button.disabled ? "later" : "to answer"}`);
  }
  at("back").disabled = page.step === "rows";
  const texts = Object.entries(page.files);
  at("h-files").textContent = page.deeds.length && page.complete && !stale() ? "What was written" : "What will be written";
  at("no-files").hidden = texts.length > 0;
  const open = new Set([...at("files").querySelectorAll("details[open]")].map((one) => one.dataset.name));
  at("files").replaceChildren(...texts.map(([name, text]) =>
    made("details", { "data-name": name, open: open.has(name) }, made("summary", {}, name), made("pre", { tabindex: "0", role: "region", "aria-label": name }, text))));
}

function go(step, focus = true, enter = true) {
  if (enter && step !== page.step) history.pushState({ step }, ""); // so that the browser's Back goes a step back
  page.step = step;
  page.seen.add(step);
  page.tried = null;
  keep();
  render();
  if (focus) { at(step === "run" ? "h-do" : "h-step").focus(); scrollTo(0, 0); }
}

async function next() {
  clearTimeout(page.pause);
  while (!(await ask())) if (at("link").textContent || at("problem").textContent) return;
  page.tried = page.step;
  refresh();
  if (!stepDone(page.step)) {
    const wrong = inStep(page.step).find(missing);
    const field = wrong && at(idOf(wrong));
    const own = field?.closest(".field");
    const input = own?.querySelector("[aria-invalid=true]:not([hidden])") ?? own?.querySelector("input:not([hidden]), select");
    (input ?? at("fields").querySelector("input, select"))?.focus();
    return;
  }
  const after = order.slice(order.indexOf(page.step) + 1).find((step) => step === "run" || inStep(step).length > 0);
  if (after === "run" && !page.complete) return;
  go(after);
}

function back() {
  const before = order.slice(0, order.indexOf(page.step)).reverse().find((step) => inStep(step).length > 0);
  if (before) go(before);
}

at("form").addEventListener("submit", (event) => { event.preventDefault(); next(); });
at("back").addEventListener("click", back);
at("back-do").addEventListener("click", back);
for (const button of steps) button.addEventListener("click", () => go(button.dataset.step));
addEventListener("popstate", ({ state }) => {
  const step = state?.step;
  if (order.includes(step) && reachable(step) && !empty(step)) go(step, true, false);
});

// ---- what is done --------------------------------------------------------------------------------------------------------
const WORDS = { waiting: "not yet", running: "running …", done: "done", failed: "failed" };

async function follow() {
  clearTimeout(page.poll);
  const now = await send("api/deeds");
  if (!now.error) draw(now);
  // of a server that is away too: it may come back
  if (page.step === "run" && page.deeds.some((deed) => deed.state === "running")) page.poll = setTimeout(follow, now.error ? 2000 : 400);
}

function draw(now) {
  page.deeds = now.deeds;
  page.now = now;
  const older = stale();
  const list = now.deeds.length ? now.deeds
    : [{ name: "write", title: "Write the files", command: "", reads: "headers", state: "waiting", output: "" }];
  const first = list.find((deed) => deed.state !== "done");
  const drawn = JSON.stringify([now, older, list]);
  if (drawn === page.drawn) return; // so that whoever reads what was printed keeps the place
  page.drawn = drawn;
  tell(list);
  const held = document.activeElement?.dataset?.deed ?? document.activeElement?.dataset?.head;
  at("deeds").replaceChildren(...list.map((deed) => {
    const ready = deed === first && deed.state !== "running" && (now.began || !older);
    const again = deed.name === "write" && older && !now.began && !now.deeds.some((one) => one.state === "running");
    const button = made("button", { type: "button", "data-deed": deed.name, class: ready ? "main" : "" }, deed.state === "failed" ? `Again: ${deed.title}` : again ? "Write them again" : deed.title);
    button.disabled = !(ready || again);
    button.hidden = deed.state === "done" && !again;
    button.addEventListener("click", () => act(deed.name));
    return made("li", {},
      made("div", { class: "head" }, made("h3", { tabindex: "-1", "data-head": deed.name }, deed.title), made("span", { class: `state ${deed.state}` }, WORDS[deed.state]), button),
      deed.command ? made("code", {}, deed.command) : null,
      made("p", { class: "soft" }, `Reads: ${deed.reads}.`),
      deed.output ? made("pre", { tabindex: "0", role: "region", "aria-label": `What ${deed.title} printed` }, deed.output) : null);
  }));
  const ready = at("deeds").querySelector("button.main:not(:disabled)");
  const running = list.find((deed) => deed.state === "running");
  const links = [];
  if (now.began) links.push(made("a", { href: `replay/` }, "Look at the run, round by round"));
  if (now.began) links.push(made("a", { href: "explore/" }, "Follow the run on its page"));
  if (now.report) links.push(made("a", { href: `report?folder=${encodeURIComponent(page.folder)}`, id: "to-report" }, "Open the report"));
  at("stale").textContent = !older ? "" : now.began
    ? "Your answers have changed since this run began: what follows is about the older ones. For the new ones choose another folder. Its ledgers will be new, and will not know what this run released; what people lose adds up."
    : "Your answers have changed since these files were written: write them again.";
  if (now.finished) beside(now.run); else at("beside").hidden = true;
  at("after").hidden = links.length === 0;
  at("after").replaceChildren(...links.flatMap((link) => [link, " "]));
  // whoever pressed a button by key stays where things happen, and comes to the next one by itself
  if (held) (at("deeds").querySelector(running ? `[data-head="${running.name}"]` : `[data-deed="${held}"]:not([hidden]):not(:disabled)`) ?? ready ?? links.at(-1))?.focus();
  refresh();
}

// runs in folders below, to be compared with the one of this page
async function beside(own) {
  const found = await fetch("api/runs").then((reply) => reply.json()).catch(() => ({ runs: [] }));
  const others = found.runs.filter((run) => run !== own), now = JSON.stringify([own, others]);
  at("beside").hidden = others.length === 0;
  if (page.runs === now) return;
  page.runs = now;
  const boxes = others.map((run, i) => made("input", { type: "checkbox", id: `beside-${i}`, value: run }));
  const chosen = () => {
    const runs = [own, ...boxes.filter((box) => box.checked).map((box) => box.value)];
    at("compared").hidden = runs.length < 2;
    at("compare-command").textContent = `dynadp compare ${runs.map(shell).join(" ")}`;
    at("to-compare").href = `compare?${runs.map((run) => `run=${encodeURIComponent(run)}`).join("&")}`;
  };
  for (const box of boxes) box.addEventListener("change", chosen);
  at("runs").replaceChildren(...boxes.map((box) => made("label", { class: "choice", for: box.id }, box, made("span", {}, box.value))));
  chosen();
}

// whether the files that were written say something else than the answers do now
const stale = () => page.deeds.length > 0 && page.complete && JSON.stringify(page.now.files) !== JSON.stringify(page.files);

function tell(list) { // to those who hear the page: what began or ended
  const states = list.map((deed) => `${deed.title}: ${WORDS[deed.state]}`);
  const news = states.filter((words, i) => list[i].state !== "waiting" && !page.told?.includes(words));
  if (page.told && news.length) at("told").textContent = news.join("; ");
  page.told = states;
}

async function act(name) {
  const now = name === "write" ? await send("api/write", { answers: page.answers }) : await send("api/do", { deed: name });
  at("folder-error").textContent = now.error ?? "";
  if (!now.error) draw(now);
  follow();
}

at("folder").addEventListener("input", () => {
  page.folder = at("folder").value;
  clearTimeout(page.pause);
  page.pause = setTimeout(async () => { if (await ask()) { refresh(); follow(); } }, 300);
});

async function begin() {
  const found = await fetch("api/files").then((reply) => reply.json()).catch(() => null);
  if (found === null) { at("link").textContent = "The server does not answer; start the command again, then reload this page."; return; }
  Object.assign(page, { offered: found.files, kinds: found.forms });
  await ask();
  go(reachable(page.step) ? page.step : "rows", false, false);
  history.replaceState({ step: page.step }, "");
  document.body.dataset.ready = "yes";
}

begin();
