// Times, lengths of time and amounts as people read them, and elements of the page.

const MINUTE = 60, HOUR = 3600, DAY = 86400;

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const units = [[DAY, "d"], [HOUR, "h"], [MINUTE, "m"], [1, "s"]];
  const parts = [];
  let left = Math.round(seconds);
  for (const [size, unit] of units) {
    const count = Math.floor(left / size);
    left -= count * size;
    if (count) parts.push(`${count}${unit}`);
    if (parts.length === 2) break;
  }
  return parts.join(" ") || "0s";
}

let stopped = null;

/** The time that is now. In a saved view it stands still. */
export function now() {
  return stopped ?? Date.now();
}

export function stopClock(at) {
  stopped = at;
}

// Making a formatter costs more than a hundred uses of it.
const TIME = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const timeOfDay = new Intl.DateTimeFormat(undefined, TIME);
const dayAndTime = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", ...TIME });
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "medium" });

/** A moment as an element: the time of day, with the date unless it is today, and the full time as its title. */
export function moment(iso) {
  if (!iso) return "";
  const at = new Date(iso);
  const sameDay = at.toDateString() === new Date(now()).toDateString();
  return element("time", { datetime: iso, title: whole.format(at) }, (sameDay ? timeOfDay : dayAndTime).format(at));
}

export function relative(iso) {
  const seconds = (Date.parse(iso) - now()) / 1000;
  return seconds < 0 ? `${duration(-seconds)} ago` : `in ${duration(seconds)}`;
}

const SUFFIXES = {
  n: 1e-9, u: 1e-6, m: 1e-3, "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18,
  Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60,
};

/** The value of a Kubernetes quantity, such as 1500m or 64Gi. */
export function quantity(text) {
  const match = /^([+-]?[0-9.]+(?:e[+-]?[0-9]+)?)([a-zA-Z]*)$/.exec(String(text));
  return match && match[2] in SUFFIXES ? Number(match[1]) * SUFFIXES[match[2]] : 0;
}

/** How much of an amount is taken, from 0 to 1. */
export function share(amount) {
  const size = quantity(amount.size);
  return size > 0 ? Math.min(1, quantity(amount.taken) / size) : 0;
}

export function plural(count, noun) {
  return `${count.toLocaleString()} ${noun}${count === 1 ? "" : "s"}`;
}

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return element("dl", { class: "facts" }, ...shown.flatMap(([name, value]) => [
    element("dt", {}, name), element("dd", {}, value),
  ]));
}

export function figures(pairs) {
  return element("dl", { class: "figures" }, ...pairs.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
}

export function jobName(row) {
  return row.hidden ? "(other namespace)" : `${row.namespace}/${row.name}`;
}

export function jobLink(row) {
  if (row.hidden || !row.name) return jobName(row);
  const path = [row.namespace, row.name].map(encodeURIComponent).join("/");
  return element("a", { class: "job", href: `#/jobs/${path}`, title: jobName(row) }, jobName(row));
}

export function nodeLink(name) {
  return element("a", { href: `#/nodes/${encodeURIComponent(name)}` }, name);
}

/** Names with numbers in a natural order: node2 before node10. */
export const natural = new Intl.Collator(undefined, { numeric: true }).compare;
