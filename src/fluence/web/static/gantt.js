// The plan as a Gantt chart: a line per node, time to the right, a bar for each job that runs or has a reserved start.

import { colours, Picture } from "./canvas.js";
import { element, jobName, natural } from "./format.js";

const LABELS = 130, AXIS = 28, HEIGHT = 520;
const STEPS = [10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 7 * 86400, 30 * 86400];

export class Gantt extends Picture {
  constructor({ describe, open }) {
    super("Plan");
    this.describe = describe;
    this.open = open;
    this.rows = [];
    this.bars = [];
    this.hours = 0;
    this.space = element("div");
    this.box = element("div", { class: "scroll", tabindex: "-1" }, this.canvas, this.space);
    this.canvas.classList.add("fixed");
    this.box.addEventListener("scroll", () => this.schedule());
    this.canvas.addEventListener("pointermove", (event) => this.look(this.at(...this.point(event))));
    this.canvas.addEventListener("click", (event) => {
      const bar = this.at(...this.point(event));
      if (bar) this.open(bar.entry);
    });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.observer.observe(this.box);
  }

  /** entries of the plan; promised: by job, the latest start that was promised; now: milliseconds. */
  set(entries, promised, now) {
    this.now = now;
    const names = new Set(entries.flatMap((entry) => [...(entry.nodes ?? []), ...(entry.devices ?? [])]));
    this.rows = [...names].sort(natural);
    const place = new Map(this.rows.map((name, index) => [name, index]));
    this.bars = [];
    for (const entry of entries) {
      const from = Date.parse(entry.from), until = entry.until ? Date.parse(entry.until) : Infinity;
      const latest = promised.get(jobName(entry)) ?? null;
      for (const name of [...(entry.nodes ?? []), ...(entry.devices ?? [])]) {
        this.bars.push({ entry, row: place.get(name), from, until, latest });
      }
    }
    this.bars.sort((one, other) => one.row - other.row || one.from - other.from);
    this.lanes = share(this.bars, this.rows.length);
    this.canvas.setAttribute("aria-label", `Plan: ${entries.length} jobs on ${this.rows.length} nodes and devices. The table below has the same.`);
    this.schedule();
  }

  zoom(hours) {
    this.hours = hours;
    this.schedule();
  }

  /** The time that is shown: the given hours from now on, or all of the plan. */
  window() {
    if (this.hours) return [this.now - this.hours * 360_000, this.now + this.hours * 3_600_000];
    const times = this.bars.flatMap(({ from, until }) => [from, until]).filter(Number.isFinite);
    const first = Math.min(this.now, ...extent(times, Math.min));
    const last = Math.max(this.now + 600_000, ...extent(times, Math.max));
    return [first, last + (last - first) * 0.03];
  }

  draw() {
    const height = Math.min(HEIGHT, AXIS + Math.max(3, this.rows.length) * 24);
    const width = this.box.clientWidth;
    const row = this.rows.length > 400 ? 10 : this.rows.length > 60 ? 16 : 24;
    this.row = row;
    this.box.style.height = `${height + 2}px`;
    this.space.style.height = `${Math.max(0, AXIS + this.rows.length * row - height)}px`;
    const context = this.begin(width, height), colour = colours(), top = this.box.scrollTop;
    const labels = width < 500 ? 70 : LABELS;
    const [first, last] = this.window();
    this.x = (time) => labels + ((time - first) / (last - first)) * (width - labels);
    const place = { top, width, height, labels };
    this.drawRows(context, colour, place);
    this.drawAxis(context, colour, { first, last, ...place });
    const names = this.drawBars(context, colour, place);
    context.fillStyle = colour.ink;
    context.fillRect(this.x(this.now), 4, 1, height);
    this.drawNames(context, names, place);
  }

  drawRows(context, colour, { top, width, height, labels }) {
    const from = Math.floor(top / this.row), until = Math.min(this.rows.length, from + Math.ceil(height / this.row) + 1);
    context.save();
    context.beginPath();
    context.rect(0, AXIS, labels - 6, height);
    context.clip();
    context.fillStyle = colour.ink;
    const every = this.row < 14 ? 2 : 1;
    if (every > 1) context.font = "10px system-ui, sans-serif";
    for (let index = from; index < until; index++) {
      if (index % every === 0) context.fillText(this.rows[index], 6, AXIS + index * this.row - top + this.row / 2);
    }
    context.restore();
    context.strokeStyle = colour.line;
    for (let index = from; index <= until; index++) line(context, every > 1 ? labels : 0, AXIS + index * this.row - top, width, AXIS + index * this.row - top);
  }

  /** Gives the names that have room in a bar, and where. */
  drawBars(context, colour, { top, width, height, labels }) {
    const from = top / this.row - 1, until = (top + height) / this.row, names = [];
    context.save();
    context.beginPath();
    context.rect(labels, AXIS, width, height);
    context.clip();
    for (const bar of this.bars) {
      if (bar.row < from || bar.row > until) continue;
      const [x, y, wide, high] = this.place(bar, width, top);
      if (x + wide < labels || x > width) continue;
      const runs = bar.from <= this.now && bar.entry.state !== "reserved";
      context.fillStyle = bar.entry.hidden ? colour.soft : runs ? colour.running : colour.planned;
      context.fillRect(x, y, wide, high);
      if (bar.entry === this.chosen) {
        context.strokeStyle = colour.focus;
        context.lineWidth = 2;
        context.strokeRect(x + 1, y + 1, wide - 2, high - 2);
        context.lineWidth = 1;
      }
      if (wide > 30 && high > 9 && !bar.entry.hidden) {
        const left = Math.max(x, labels) + 4, right = Math.min(x + wide, width) - 2;
        names.push({ name: bar.entry.name ?? "", left, right, y: y + high / 2 + 0.5, size: high < 12 ? 10 : 12, ink: runs ? colour.paper : colour.ink });
      }
      if (!runs && bar.latest !== null) {
        context.fillStyle = colour.late;
        context.fillRect(this.x(bar.latest) - 1, y - 1, 2, high + 2);
      }
    }
    context.restore();
    return names;
  }

  /** Right of the line of now where there is room, else over it. A name that is cut says so: ensemble-3… is not ensemble-3. */
  drawNames(context, names, { width, height, labels }) {
    const now = this.x(this.now) + 5, measure = (text) => context.measureText(text).width;
    context.save();
    context.beginPath();
    context.rect(labels, AXIS, width, height);
    context.clip();
    for (const { name, left, right, y, size, ink } of names) {
      context.font = `${size}px system-ui, sans-serif`;
      const crosses = left < now && left + measure(name) > now - 8;
      const from = crosses && now + measure(name) <= right ? now : left;
      let text = name;
      for (let count = name.length - 1; count > 3 && measure(text) > right - from; count--) text = `${name.slice(0, count)}…`;
      if (measure(text) > right - from) continue;
      context.fillStyle = ink;
      context.fillText(text, from, y);
    }
    context.restore();
  }

  drawAxis(context, colour, { first, last, width, height, labels }) {
    context.fillStyle = colour.raised;
    context.fillRect(0, 0, width, AXIS);
    const room = Math.max(2, Math.floor((width - labels) / 90));
    const step = (STEPS.find((seconds) => (last - first) / 1000 / seconds <= room) ?? STEPS.at(-1)) * 1000;
    const zone = new Date(this.now).getTimezoneOffset() * 60_000;
    context.strokeStyle = colour.line;
    context.fillStyle = colour.soft;
    for (let time = Math.ceil((first - zone) / step) * step + zone; time < last; time += step) {
      line(context, this.x(time), AXIS, this.x(time), height);
      context.fillText(tick(time, step), this.x(time) + 3, AXIS / 2);
    }
  }

  place(bar, width, top) {
    const from = this.x(bar.from), until = Number.isFinite(bar.until) ? this.x(bar.until) : width + 1;
    const high = (this.row - 2) / this.lanes[bar.row];
    const gap = high > 3 && bar.lane ? 1 : 0; // between jobs that share a node
    return [from, AXIS + bar.row * this.row - top + 1 + bar.lane * high + gap, Math.max(2, until - from), Math.max(1, high - gap)];
  }

  at(x, y) {
    const { clientWidth } = this.box, top = this.box.scrollTop;
    return this.bars.find((bar) => {
      const [left, above, wide, high] = this.place(bar, clientWidth, top);
      return x >= left && x < left + wide && y >= above && y < above + high && y > AXIS;
    });
  }

  look(bar) {
    if (!bar || bar.entry === this.chosen) return;
    this.chosen = bar.entry;
    this.tip.textContent = this.describe(bar.entry);
    this.schedule();
  }

  /** Left and right go from job to job by their start. */
  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Enter" && this.chosen) this.open(this.chosen);
    if (!step || !this.bars.length) return;
    event.preventDefault();
    const entries = [...new Set([...this.bars].sort((one, other) => one.from - other.from).map(({ entry }) => entry))];
    const index = Math.max(0, Math.min(entries.length - 1, entries.indexOf(this.chosen) + step));
    this.look(this.bars.find(({ entry }) => entry === entries[index]));
  }
}

/** Jobs that use a node at the same time lie one below the other: sets the lane of each bar, gives the lanes of each row. */
function share(bars, rows) {
  const ends = Array.from({ length: rows }, () => []);
  for (const bar of bars) {
    const lanes = ends[bar.row], free = lanes.findIndex((end) => end <= bar.from);
    bar.lane = free < 0 ? lanes.length : free;
    lanes[bar.lane] = bar.until;
  }
  return ends.map((lanes) => lanes.length);
}

function extent(values, pick) {
  return values.length ? [values.reduce((one, other) => pick(one, other))] : [];
}

function line(context, x, y, toX, toY) {
  context.beginPath();
  context.moveTo(Math.round(x) + 0.5, Math.round(y) + 0.5);
  context.lineTo(Math.round(toX) + 0.5, Math.round(toY) + 0.5);
  context.stroke();
}

function tick(time, step) {
  const at = new Date(time);
  if (step >= 86_400_000) return at.toLocaleDateString(undefined, { month: "short", day: "numeric" });
  const seconds = step < 60_000 ? { second: "2-digit" } : {};
  return at.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...seconds });
}
