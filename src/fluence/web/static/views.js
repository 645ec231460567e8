// What each view shows: the cluster, the queue, the plan, jobs, nodes, devices, promises.

import { explain, read, readAll } from "./api.js";
import { duration, element, facts, figures, jobLink, jobName, moment, nodeLink, plural, quantity, relative, share } from "./format.js";
import { Gantt } from "./gantt.js";
import { NodeGrid } from "./grid.js";
import { Table } from "./table.js";

const NONE = "(none)";
const MAX_JOBS = 50; // of a node, whose pods are shown
const RACKS = ["topology.kubernetes.io/rack", "fluence.flux-framework.org/rack", "rack", "topology.kubernetes.io/zone"];

class View {
  constructor(title, { query, remember }) {
    this.title = title;
    this.query = query;
    this.remember = remember;
    this.body = element("div", { "aria-busy": "true" });
  }

  /** A table whose order is in the address. */
  table(columns, caption, sort, empty) {
    return new Table(columns, {
      caption,
      empty,
      sort: this.query.get("sort") ?? sort,
      onSort: (chosen) => this.remember("sort", chosen),
    });
  }

  choice(label, key, changed) {
    const list = element("select", { onchange: () => { this.remember(key, list.value); changed(); } });
    return { list, label: element("label", {}, `${label} `, list) };
  }
}

function fill(list, options, chosen) {
  if (options.join("\n") === [...list.options].map(({ value }) => value).join("\n")) return;
  list.replaceChildren(...options.map((option) => element("option", { value: option, selected: option === chosen }, option)));
}

// -- the cluster and its nodes ------------------------------------------------------------------------------------

const takesWork = (node) => node.state === "Ready";

function dominant(node) {
  return Math.max(0, ...(node.amounts ?? []).filter(({ resource }) => resource !== "pods").map(share));
}

function use(node, resource) {
  if (!takesWork(node)) return null;
  const amount = (node.amounts ?? []).find((candidate) => candidate.resource === resource);
  return amount ? share(amount) : resource === "most used" ? dominant(node) : 0;
}

function describeNode(node) {
  const amounts = (node.amounts ?? []).map(({ resource, taken, size }) => `${resource} ${taken} of ${size}`);
  return `${node.name}: ${node.state}, ${plural(node.pods ?? 0, "pod")}. ${amounts.join(", ")}.`;
}

class Cluster extends View {
  static label = "Cluster";

  constructor(context) {
    super("Cluster", context);
    this.summary = element("div");
    this.grid = new NodeGrid({
      describe: describeNode,
      open: (node) => { location.hash = `#/nodes/${encodeURIComponent(node.name)}`; },
    });
    this.by = this.choice("Group by", "group", () => this.draw());
    this.of = this.choice("Colour by", "resource", () => this.draw());
    this.nodes = this.table([
      { key: "name", title: "Node", value: ({ name }) => name, cell: ({ name }) => nodeLink(name) },
      { key: "state", title: "State", value: ({ state }) => state },
      { key: "pods", title: "Pods", value: ({ pods = 0 }) => pods, number: true },
      { key: "use", title: "Most used", value: dominant, cell: (node) => `${Math.round(100 * dominant(node))} %`, number: true },
      { key: "by", title: "Used by", value: users, clip: true },
      { key: "next", title: "Next start", value: ({ next }) => next, cell: ({ next }) => moment(next) },
    ], "Nodes", "name", "There are no nodes.");
    this.body.append(
      this.summary,
      element("div", { class: "controls" }, this.by.label, this.of.label),
      element("ul", { class: "legend" },
        legend("free", "nothing used"), legend("full", "all used"), legend("out", "takes no work")),
      this.grid.box, this.grid.tip, element("h2", {}, "Nodes"), this.nodes.box,
    );
  }

  lists() {
    return [["nodes", ({ items }) => {
      this.items = items;
      this.nodes.set(items);
      this.draw();
    }]];
  }

  draw() {
    const { items } = this, resources = new Set(), values = new Map();
    for (const { amounts = [], labels = {} } of items) {
      amounts.forEach(({ resource }) => resources.add(resource));
      for (const [key, value] of Object.entries(labels)) values.set(key, (values.get(key) ?? new Set()).add(value));
    }
    const keys = [...values].filter(([, set]) => set.size > 1 && set.size < items.length).map(([key]) => key).sort();
    fill(this.by.list, [NONE, ...keys], this.query.get("group") ?? RACKS.find((key) => keys.includes(key)) ?? NONE);
    fill(this.of.list, ["most used", ...resources], this.query.get("resource") ?? "most used");
    const key = this.by.list.value, groups = new Map();
    for (const node of items) {
      const name = key === NONE ? "" : node.labels?.[key] ?? "other nodes";
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(node);
    }
    this.grid.set([...groups].map(([name, nodes]) => ({ name, nodes })), (node) => use(node, this.of.list.value));
    this.summary.replaceChildren(figures([
      ["nodes", items.length], ["take work", items.filter(takesWork).length], ...totals(items),
    ]));
  }
}

function legend(kind, text) {
  return element("li", {}, element("span", { class: kind }), text);
}

/** Of all nodes together: what is taken of the resources that matter. */
function totals(nodes) {
  const sums = new Map();
  for (const { resource, size, taken } of nodes.flatMap(({ amounts = [] }) => amounts)) {
    if (resource === "pods") continue;
    const sum = sums.get(resource) ?? [0, 0];
    sums.set(resource, [sum[0] + quantity(taken), sum[1] + quantity(size)]);
  }
  return [...sums].map(([resource, [taken, size]]) => [`${resource} used`, `${size ? Math.round((100 * taken) / size) : 0} %`]);
}

function users({ by = [] }) {
  return by.map(({ namespace, name, hidden }) => (hidden ? "others" : `${namespace}/${name}`)).join(", ");
}

class OneNode extends View {
  static menu = "cluster";

  constructor(context) {
    super(context.parts[0] ?? "", context);
    this.name = context.parts[0] ?? "";
    this.pods = element("div");
  }

  lists() {
    return [[`nodes/${encodeURIComponent(this.name)}`, async ({ items }) => {
      this.draw(items[0]);
      await this.findPods((await readAll("jobs", { state: "running" })).items);
    }]];
  }

  /** The pods here, and the devices of their jobs: a list of jobs says on which nodes each of them runs. */
  async findPods(jobs) {
    const here = jobs.filter(({ hidden, state, nodes = [] }) => !hidden && state === "running" && nodes.includes(this.name));
    const details = await Promise.all(here.slice(0, MAX_JOBS).map((job) => read(jobPath(job), {}).catch(() => null))); // null: it has ended
    const lines = details.flatMap((detail) => detail?.items ?? []).flatMap(({ job, members = [] }) => members
      .filter(({ node }) => node === this.name)
      .map(({ name }) => element("tr", {}, ...[name, jobLink(job), (job.devices ?? []).join(", ")].map((content) => element("td", {}, content)))));
    const heads = ["Pod", "Job", "Devices of the job"].map((text) => element("th", { scope: "col" }, text));
    const table = element("table", { class: "short", "aria-label": "Pods" }, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...lines));
    this.pods.replaceChildren(...(lines.length ? [element("h2", {}, "Pods"), table] : []));
  }

  draw(node) {
    const rows = (node.amounts ?? []).map(({ resource, taken, free, size }) =>
      element("tr", {}, element("th", { scope: "row" }, resource), ...[taken, free, size].map((text) => element("td", { class: "number" }, text))));
    const holders = (node.by ?? []).map((holder) => element("li", {}, ...whoUses(holder)));
    const labels = Object.entries(node.labels ?? {}).map(([key, value]) => element("li", {}, element("code", {}, `${key}=${value}`)));
    this.body.replaceChildren(
      facts([["State", node.state], ["Pods", String(node.pods ?? 0)], ["Next planned start", moment(node.next)]]),
      element("h2", {}, "Resources"),
      element("table", { class: "short" }, element("thead", {}, element("tr", {}, ...["Resource", "Used", "Free", "Size"].map((text, index) => element("th", { scope: "col", class: index ? "number" : null }, text)))),
        element("tbody", {}, ...rows)),
      element("h2", {}, "Used by"), holders.length ? element("ul", {}, ...holders) : element("p", { class: "note" }, "Nothing runs here."), this.pods,
      element("h2", {}, "Labels"), element("ul", {}, ...labels),
    );
  }
}

function jobPath({ namespace = "", name = "" }) {
  return ["namespaces", namespace, "jobs", name].map(encodeURIComponent).join("/");
}

function whoUses({ hidden, namespace, name, pods, amount, until }) {
  const count = pods ? plural(pods, "pod") : amount ? `${amount}` : "";
  const what = hidden ? "Work in other namespaces" : jobLink({ namespace, name });
  return [what, count && ` (${count})`, until ? " until " : "", until ? moment(until) : ""];
}

// -- the queue and its jobs ---------------------------------------------------------------------------------------

const TASKS = [["running", "run"], ["waiting", "wait"], ["done", "done"], ["failed", "failed"]];

/** How far an array is, in the words of the commands. */
function tasks({ array }) {
  return array ? TASKS.filter(([key]) => array[key]).map(([key, word]) => `${array[key]} ${word}`).join(", ") : "";
}

function firstReason({ reasons = [] }) {
  return reasons.map(({ message }) => message).join(" ");
}

class Queue extends View {
  static label = "Queue";

  constructor(context) {
    super("Queue", context);
    this.summary = element("div");
    this.search = element("input", {
      type: "search", value: this.query.get("search") ?? "", placeholder: "name, user, state, reason …",
      oninput: () => { this.remember("search", this.search.value); this.draw(); },
    });
    this.shown = this.choice("Show", "show", () => window.dispatchEvent(new HashChangeEvent("hashchange")));
    fill(this.shown.list, ["waiting", "all"], this.query.get("show") ?? "waiting");
    this.jobs = this.table([
      { key: "position", title: "Position", value: ({ position }) => position, number: true },
      { key: "name", title: "Job", value: jobName, cell: jobLink },
      { key: "state", title: "State", value: ({ state }) => state },
      { key: "user", title: "User", value: ({ user }) => user, minor: true },
      { key: "queue", title: "Queue", value: ({ queue }) => queue, optional: ({ queue }) => queue, minor: true },
      { key: "priority", title: "Priority", value: ({ priority }) => priority, number: true, optional: ({ priority }) => priority, minor: true },
      { key: "pods", title: "Pods", value: ({ pods }) => pods, number: true, minor: true },
      { key: "tasks", title: "Tasks", value: tasks, optional: tasks },
      { key: "limit", title: "Limit", value: ({ limit }) => limit, cell: ({ limit }) => duration(limit), number: true, minor: true },
      { key: "submitted", title: "Submitted", value: ({ submitted }) => submitted, cell: ({ submitted }) => moment(submitted), minor: true },
      { key: "latest", title: "Starts by", value: ({ noLaterThan }) => noLaterThan, cell: ({ noLaterThan }) => moment(noLaterThan) },
      { key: "expected", title: "Expected", value: ({ expected, started }) => started ?? expected, cell: ({ expected, started }) => moment(started ?? expected) },
      { key: "reason", title: "Reason", value: firstReason, clip: true },
    ], "Jobs", "", "No job waits, or none is found.");
    this.body.append(this.summary, element("div", { class: "controls" }, element("label", {}, "Search ", this.search), this.shown.label), this.jobs.box);
  }

  lists() {
    return [[this.shown.list.value === "all" ? "jobs" : "queue", ({ items }) => {
      this.items = items;
      this.draw();
    }]];
  }

  draw() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (job) => [jobName(job), job.user, job.state, job.queue, firstReason(job)].join(" ").toLowerCase();
    const found = words.length ? this.items.filter((job) => words.every((word) => text(job).includes(word))) : this.items;
    this.jobs.set(found, this.items);
    const promised = this.items.filter(({ noLaterThan }) => noLaterThan).length, hidden = this.items.filter((job) => job.hidden).length;
    this.summary.replaceChildren(figures([
      [words.length ? "found" : "jobs", found.length], ["with a promised start", promised],
      ...(hidden ? [["of other namespaces", hidden]] : []),
    ]));
  }
}

class OneJob extends View {
  static menu = "queue";

  constructor(context) {
    super(context.parts.slice(0, 2).join("/"), context);
    [this.namespace, this.name] = context.parts;
  }

  lists() {
    return [[jobPath({ namespace: this.namespace, name: this.name }), ({ items, metadata }) => this.draw(items[0], metadata)]];
  }

  draw({ job, story = [], members = [], broken = [], ahead, promised }, { saved }) {
    const waits = !job.started, together = job.minimum === undefined || job.minimum === job.pods;
    const reasons = (job.reasons ?? []).map(({ message, code }) => element("li", {}, message, " ", element("code", {}, code)));
    const steps = story.map(({ at, state, message }) => element("li", {}, moment(at), ` ${state}: ${message}`));
    const places = members.map(({ name, node }) => element("tr", {}, element("td", {}, name), element("td", {}, node ? nodeLink(node) : "")));
    this.body.replaceChildren(...[
      facts([
        ["State", job.state], ["Position", ahead === undefined ? "" : `${job.position}, ${ahead ? `${plural(ahead, "job")} ahead of it` : "the first"}`],
        ["Starts by", job.noLaterThan && element("span", {}, moment(job.noLaterThan), `, ${relative(job.noLaterThan)}${job.firm ? "" : ", if running jobs keep their limits"}`)],
        ["First promise", waits && promised && promised !== job.noLaterThan ? moment(promised) : ""],
        ["Expected start", job.expected && element("span", {}, moment(job.expected), `, ${relative(job.expected)}`)],
        ["Started", moment(job.started)], ["Planned from", waits ? moment(job.planned?.from) : ""], ["Planned until", moment(job.planned?.until)],
        ["User", job.user], ["Queue", job.queue], ["Priority", job.priority === undefined ? "" : String(job.priority)],
        ["Pods", job.pods === undefined ? "" : together ? String(job.pods) : `${job.pods}, at least ${job.minimum} together`],
        ["Tasks", job.array && `${tasks(job)} of ${job.array.size}`],
        ["Requests", Object.entries(job.requests ?? {}).map(([resource, amount]) => `${resource} ${amount}`).join(", ")],
        ["Limit", duration(job.limit)], ["Devices", (job.devices ?? []).join(", ")],
      ]),
      ...section("Why it waits", reasons, "ul"),
      ...(waits && !saved ? this.advice(job) : []),
      ...section("History", steps, "ol", "story"),
      ...section("Promises that were broken", broken.map(({ at, promised, cause }) => element("li", { class: "late" }, "Promised for ", moment(promised), ", withdrawn ", moment(at), `: ${cause.message}`)), "ul"),
      ...(places.length ? [element("h2", {}, "Pods"), element("table", { class: "short" }, element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Pod"), element("th", { scope: "col" }, "Node"))), element("tbody", {}, ...places))] : []),
    ]);
  }

  /** What would help: asked for with a button, since the answer takes a look at the whole cluster. It stays while the job changes. */
  advice(job) {
    this.found ??= element("div", { role: "status" });
    this.ask ??= element("button", { type: "button", onclick: () => this.findAdvice() }, "Ask");
    this.job = job;
    return [element("h2", {}, "What would help"), this.ask, this.found];
  }

  async findAdvice() {
    this.ask.disabled = true;
    this.found.replaceChildren(element("p", { class: "note" }, "The job is tried in a copy of the cluster …"));
    try {
      const { blocks = [], sooner = [], warnings = [], notes = [] } = await explain(this.job);
      const line = (text) => element("li", {}, text);
      this.found.replaceChildren(
        element("p", {}, `In its way now: ${blocks.join(" ") || "nothing that is known"}`),
        ...(sooner.length ? [element("ul", {}, ...sooner.map(line))] : [element("p", {}, "Nothing that you could change makes it sooner.")]),
        ...[...warnings, ...notes].map((text) => element("p", { class: "note" }, text)),
      );
    } catch (error) {
      this.found.replaceChildren(element("p", { class: "late" }, `No answer: ${error.message}`));
    }
    this.ask.disabled = false;
  }
}

function section(title, items, list, kind = null) {
  return items.length ? [element("h2", {}, title), element(list, { class: kind }, ...items)] : [];
}

// -- the plan -----------------------------------------------------------------------------------------------------

const SPANS = { all: 0, "1 hour": 1, "6 hours": 6, "1 day": 24, "1 week": 168 };

class Plan extends View {
  static label = "Plan";

  constructor(context) {
    super("Plan", context);
    this.gantt = new Gantt({
      describe: (entry) => `${jobName(entry)}: ${entry.state}, ${new Date(entry.from).toLocaleString()} to ${entry.until ? new Date(entry.until).toLocaleString() : "an unknown end"}, on ${(entry.nodes ?? []).join(", ")}`,
      open: (entry) => { if (!entry.hidden) location.hash = jobLink(entry).getAttribute("href"); },
    });
    this.span = this.choice("Time", "span", () => this.gantt.zoom(SPANS[this.span.list.value]));
    fill(this.span.list, Object.keys(SPANS), this.query.get("span") ?? "all");
    this.gantt.zoom(SPANS[this.span.list.value]);
    this.entries = this.table([
      { key: "name", title: "Job", value: jobName, cell: jobLink },
      { key: "state", title: "State", value: ({ state }) => state },
      { key: "from", title: "From", value: ({ from }) => from, cell: ({ from }) => moment(from) },
      { key: "until", title: "Until", value: ({ until }) => until, cell: ({ until }) => moment(until) },
      { key: "pods", title: "Pods", value: ({ pods }) => pods, number: true },
      { key: "nodes", title: "Nodes", value: ({ nodes = [], devices = [] }) => [...nodes, ...devices].join(", "), clip: true },
    ], "Plan as a table", "from", "Nothing runs, and nothing is planned.");
    this.body.append(
      element("div", { class: "controls" }, this.span.label),
      element("ul", { class: "legend" }, legend("full", "runs"), legend("planned", "reserved"), legend("other", "other namespaces"), legend("mark", "promised start"), legend("now", "now")),
      this.gantt.box, this.gantt.tip, element("h2", {}, "As a table"), this.entries.box,
    );
  }

  lists() {
    return [["plan", async (plan) => {
      this.plan = plan;
      this.entries.set(plan.items);
      this.draw();
      const promised = (await readAll("queue")).items.filter(({ noLaterThan }) => noLaterThan);
      this.promised = new Map(promised.map((job) => [jobName(job), Date.parse(job.noLaterThan)]));
      this.draw();
    }, { expand: "true" }]]; // a bar for each task of an array: they run at different times
  }

  draw() {
    if (this.plan) this.gantt.set(this.plan.items, this.promised ?? new Map(), Date.parse(this.plan.metadata.taken));
  }
}

// -- devices and promises -----------------------------------------------------------------------------------------

class Devices extends View {
  static label = "Devices";

  constructor(context) {
    super("Devices", context);
    this.devices = this.table([
      { key: "name", title: "Device", value: ({ name }) => name },
      { key: "type", title: "Type", value: ({ type }) => type },
      { key: "online", title: "State", value: ({ online = true }) => (online ? "online" : "offline") },
      { key: "taken", title: "Used", value: ({ taken = 0 }) => taken, number: true },
      { key: "size", title: "Size", value: ({ size }) => size, number: true },
      { key: "by", title: "Used by", value: users, cell: ({ by = [] }) => by.flatMap((holder, index) => [index ? ", " : "", ...whoUses(holder)]) },
    ], "Devices", "name", "There are no such resources.");
    this.note = element("p", { class: "note" }, "Resources that belong to no node: quantum computers, licences, bandwidth.");
    this.body.append(this.note, this.devices.box);
  }

  lists() {
    return [["devices", ({ items }) => this.devices.set(items)]];
  }
}

class Promises extends View {
  static label = "Promises";

  constructor(context) {
    super("Promises", context);
    this.summary = element("div");
    this.causes = element("div");
    this.promises = this.table([
      { key: "name", title: "Job", value: jobName, cell: jobLink },
      { key: "state", title: "State", value: ({ state }) => state },
      { key: "latest", title: "Starts by", value: ({ noLaterThan }) => noLaterThan, cell: ({ noLaterThan }) => moment(noLaterThan) },
      { key: "expected", title: "Expected", value: ({ expected }) => expected, cell: ({ expected }) => moment(expected) },
      { key: "first", title: "First promise", value: ({ first }) => first, cell: ({ first }) => moment(first) },
      { key: "broken", title: "Broken", value: ({ broken = [] }) => broken.length, number: true },
    ], "Promises", "latest", "No job has a promised start.");
    this.body.append(this.summary, this.causes, element("h2", {}, "Jobs with a promise"), this.promises.box);
  }

  lists() {
    return [["promises", (list) => this.draw(list)]];
  }

  draw({ items, totals = {} }) {
    const broken = Object.entries(totals.broken ?? {}), count = broken.reduce((sum, [, number]) => sum + number, 0);
    const all = (totals.kept ?? 0) + count;
    this.summary.replaceChildren(figures([
      ["kept since the scheduler started", totals.kept ?? 0], ["broken", count], ["kept of all", all ? `${((100 * (totals.kept ?? 0)) / all).toFixed(1)} %` : "–"],
    ]));
    const causes = broken.map(([cause, number]) => element("li", {}, `${cause}: ${number}`));
    this.causes.replaceChildren(...section("Broken promises by cause", causes, "ul"));
    this.promises.set(items);
  }
}

export const views = { cluster: Cluster, queue: Queue, plan: Plan, devices: Devices, promises: Promises, jobs: OneJob, nodes: OneNode };
