// A table of any length: it can be sorted, and only the rows in view are in the document.

import { element, natural } from "./format.js";

const ROW = 30; // pixels, as in style.css
const MARGIN = 10; // rows beyond the edge

export class Table {
  /**
   * columns: {key, title, value(row), cell(row), number, clip, optional, minor}. A column is hidden while optional(row) holds
   * for no row, and a minor one on a phone. sort: a key, with "-" in front of it if descending. empty: what is said if there are no rows.
   */
  constructor(columns, { caption, empty, sort = "", onSort = () => {} }) {
    this.columns = columns;
    this.rows = [];
    this.sort = sort;
    this.onSort = onSort;
    this.body = element("tbody");
    this.heads = columns.map((column) => element(
      "th", { scope: "col", class: kinds(column) },
      element("button", { type: "button", onclick: () => this.sortBy(column.key) }, column.title),
    ));
    this.table = element("table", { "aria-label": caption }, element("thead", {}, element("tr", {}, ...this.heads)), this.body);
    this.above = space();
    this.below = space();
    this.nothing = element("p", { class: "note nothing", hidden: true }, empty);
    this.box = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, this.table, this.nothing);
    this.box.addEventListener("scroll", () => this.schedule());
    const scrolled = () => (this.box.isConnected ? this.schedule() : window.removeEventListener("scroll", scrolled));
    window.addEventListener("scroll", scrolled, { passive: true }); // on a phone the box is as long as its table, and the page scrolls
    this.resized = new ResizeObserver(() => this.schedule());
    this.resized.observe(this.box);
  }

  /** whole: all rows there are, if these were searched for. */
  set(rows, whole = rows) {
    this.all = rows;
    this.nothing.hidden = rows.length > 0;
    this.columns.forEach((column, index) => {
      column.absent = Boolean(column.optional) && !whole.some(column.optional);
      this.heads[index].hidden = column.absent;
    });
    this.drawn = null; // what a cell shows may follow from other lists
    this.order();
  }

  sortBy(key) {
    this.sort = this.sort === key ? `-${key}` : key;
    this.onSort(this.sort);
    this.order();
  }

  order() {
    const descending = this.sort.startsWith("-");
    const column = this.columns.find(({ key }) => key === this.sort.replace(/^-/, ""));
    this.heads.forEach((head, index) => {
      if (this.columns[index] === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    this.rows = this.all ?? [];
    if (column) {
      const factor = descending ? -1 : 1;
      this.rows = [...this.rows].sort((one, other) => compare(column.value(one), column.value(other), factor));
    }
    this.table.setAttribute("aria-rowcount", String(this.rows.length + 1));
    this.schedule();
  }

  schedule() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  draw() {
    const height = Math.min(this.box.clientHeight || 600, window.innerHeight);
    const hidden = Math.max(0, -this.box.getBoundingClientRect().top); // above the edge of the screen
    const first = Math.max(0, Math.min(Math.floor((this.box.scrollTop + hidden) / ROW), this.rows.length) - MARGIN);
    const last = Math.min(this.rows.length, first + Math.ceil(height / ROW) + 2 * MARGIN);
    if (this.drawn !== this.rows) {
      this.drawn = this.rows;
      this.lines = new Map();
      this.body.replaceChildren(this.above, this.below);
    }
    for (const [index, line] of this.lines) {
      if (index >= first && index < last) continue;
      line.remove();
      this.lines.delete(index);
    }
    for (let index = first; index < last; index++) { // NB a line that stays is neither made nor moved
      if (this.lines.has(index)) continue;
      this.lines.set(index, this.line(this.rows[index], index));
      (this.lines.get(index - 1) ?? this.above).after(this.lines.get(index));
    }
    this.above.style.height = `${first * ROW}px`;
    this.below.style.height = `${(this.rows.length - last) * ROW}px`;
  }

  line(row, index) {
    const cells = this.columns.map((column) => {
      const content = column.cell ? column.cell(row) : String(column.value(row) ?? "");
      return element("td", { class: kinds(column), hidden: column.absent }, ...(Array.isArray(content) ? content : [content]));
    });
    return element("tr", { "aria-rowindex": index + 2 }, ...cells);
  }
}

/** A row that stands for all that are not drawn. */
function space() {
  return element("tr", { class: "space", "aria-hidden": "true" });
}

function kinds(column) {
  return ["number", "clip", "minor"].filter((kind) => column[kind]).join(" ") || null;
}

/** Rows without a value come last, in either direction. */
function compare(one, other, factor) {
  const missing = (value) => value === null || value === undefined || value === "";
  if (missing(one) || missing(other)) return Number(missing(one)) - Number(missing(other));
  const order = typeof one === "number" && typeof other === "number" ? one - other : natural(String(one), String(other));
  return factor * order;
}
