// What the pictures share: a canvas as sharp as the screen, and the colours of the page.

import { element } from "./format.js";

export function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "raised", "ink", "soft", "line", "running", "planned", "late", "focus"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

export function mix(from, to, share) {
  const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const [one, other] = [channels(from), channels(to)];
  return `rgb(${one.map((value, index) => Math.round(value + (other[index] - value) * share)).join(",")})`;
}

/** A canvas that is drawn again when its size, its colours or its content change. */
export class Picture {
  constructor(label) {
    this.canvas = element("canvas", { tabindex: "0", role: "img", "aria-label": label });
    this.tip = element("p", { class: "tip", "aria-live": "polite" });
    this.observer = new ResizeObserver(() => this.schedule());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.schedule());
  }

  schedule() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      if (this.canvas.isConnected) this.draw();
    });
  }

  /** Clear the canvas at this size in CSS pixels, and return its context. */
  begin(width, height) {
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== w) this.canvas.width = w;
    if (this.canvas.height !== h) this.canvas.height = h;
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    return context;
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }
}
