// The cluster as a picture: groups of nodes (racks, zones), each node a square, darker the more of it is taken.

import { colours, mix, Picture } from "./canvas.js";
import { element, plural } from "./format.js";

const HEAD = 20, GAP = 14, PAD = 12;

export class NodeGrid extends Picture {
  constructor({ describe, open }) {
    super("Nodes of the cluster");
    this.describe = describe;
    this.open = open;
    this.groups = [];
    this.cells = [];
    this.chosen = -1;
    this.box = element("div", { class: "picture" }, this.canvas);
    this.canvas.addEventListener("pointermove", (event) => this.choose(this.at(...this.point(event))));
    this.canvas.addEventListener("click", (event) => this.enter(this.at(...this.point(event))));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.observer.observe(this.box);
  }

  /** groups: [{name, nodes}]; use(node): from 0 to 1, or null for a node that takes no work. */
  set(groups, use) {
    this.groups = groups;
    this.use = use;
    const count = groups.reduce((sum, group) => sum + group.nodes.length, 0);
    this.canvas.setAttribute("aria-label", `${plural(count, "node")} in ${plural(groups.length, "group")}. Arrow keys move, Enter opens a node.`);
    this.schedule();
  }

  /** Groups flow from left to right, like words. */
  arrange(width) {
    const count = this.groups.reduce((sum, group) => sum + group.nodes.length, 0);
    const size = count > 2500 ? 9 : count > 600 ? 13 : count > 100 ? 20 : 30;
    this.size = size;
    this.cells = [];
    this.heads = [];
    let x = PAD, y = PAD, tallest = 0;
    for (const group of this.groups) {
      const most = Math.max(1, Math.floor((width - 2 * PAD) / size));
      const columns = Math.min(most, Math.max(1, Math.ceil(Math.sqrt(group.nodes.length * 1.6))));
      const wide = Math.max(columns * size, Math.min(8 * group.name.length, width - 2 * PAD));
      const high = HEAD + Math.ceil(group.nodes.length / columns) * size;
      if (x > PAD && x + wide > width - PAD) {
        [x, y, tallest] = [PAD, y + tallest + GAP, 0];
      }
      this.heads.push([group.name, x, y + HEAD / 2]);
      group.nodes.forEach((node, index) => {
        const column = index % columns, row = Math.floor(index / columns);
        this.cells.push({ node, x: x + column * size, y: y + HEAD + row * size });
      });
      [x, tallest] = [x + wide + GAP, Math.max(tallest, high)];
    }
    return y + tallest + PAD;
  }

  draw() {
    const width = this.box.clientWidth;
    const height = Math.max(60, this.arrange(width));
    const context = this.begin(width, height);
    const colour = colours();
    context.fillStyle = colour.soft;
    for (const [name, x, y] of this.heads) context.fillText(name, x, y);
    const side = this.size - (this.size > 10 ? 2 : 1);
    for (const { node, x, y } of this.cells) {
      const use = this.use(node);
      context.fillStyle = use === null ? colour.late : mix(colour.raised, colour.running, use);
      context.fillRect(x, y, side, side);
      if (this.size > 10) {
        context.strokeStyle = colour.line;
        context.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
      }
    }
    const cell = this.cells[this.chosen];
    if (cell) {
      context.strokeStyle = colour.focus;
      context.lineWidth = 2;
      context.strokeRect(cell.x - 1, cell.y - 1, side + 2, side + 2);
      context.lineWidth = 1;
    }
  }

  at(x, y) {
    const { size } = this;
    return this.cells.findIndex((cell) => x >= cell.x && x < cell.x + size && y >= cell.y && y < cell.y + size);
  }

  choose(index) {
    if (index < 0 || index === this.chosen) return;
    this.chosen = index;
    this.tip.textContent = this.describe(this.cells[index].node);
    this.schedule();
  }

  enter(index) {
    if (index >= 0) this.open(this.cells[index].node);
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: "down", ArrowUp: "up" }[event.key];
    if (event.key === "Enter") this.enter(this.chosen);
    if (!step || !this.cells.length) return;
    event.preventDefault();
    if (typeof step === "number") this.choose(Math.max(0, Math.min(this.cells.length - 1, this.chosen + step)));
    else this.choose(this.nearest(step));
  }

  /** The node above or below the chosen one. */
  nearest(direction) {
    const from = this.cells[Math.max(0, this.chosen)];
    let best = this.chosen, distance = Infinity;
    this.cells.forEach((cell, index) => {
      const down = direction === "down" ? cell.y - from.y : from.y - cell.y;
      const far = down * 4 + Math.abs(cell.x - from.x);
      if (down > 0 && far < distance) [best, distance] = [index, far];
    });
    return best;
  }
}
