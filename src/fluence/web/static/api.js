// The view API: lists that the scheduler sends again whenever they change.

const ROOT = "apis/view.fluence.flux-framework.org/v1"; // below the address of the page
const PAGE = "1000"; // rows per request
const RETRY = 3000; // milliseconds

export class ViewError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function address(path, parameters) {
  return `${ROOT}/${path}?${new URLSearchParams(parameters)}`;
}

async function ask(url) {
  const response = await fetch(url).catch((error) => { throw new ViewError(0, error.message); });
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new ViewError(response.status, body.message ?? response.statusText);
  return body;
}

export async function read(path, parameters) {
  return ask(address(path, parameters));
}

/** All pages of a list, of one moment; the first may be there already. */
export async function readAll(path, parameters = {}, first = null) {
  const wanted = { ...parameters, limit: PAGE };
  let page = first ?? await read(path, wanted);
  const { items = [], totals, metadata } = page;
  while (page.metadata.continue) {
    page = await read(path, { ...wanted, continue: page.metadata.continue });
    items.push(...(page.items ?? []));
  }
  return { items, totals, metadata };
}

/** What `fluence explain` says of a job: what is in its way now, and what would help. */
export async function explain({ kind, namespace, name }) {
  return ask(["advice", kind, namespace, name].map(encodeURIComponent).join("/"));
}

/** One list, followed until it is closed. changed({items, totals, metadata}) is called with each new state. */
export class Feed {
  constructor(path, { parameters = {}, changed, failed, connected }) {
    Object.assign(this, { path, parameters, changed, failed, connected });
    this.open();
  }

  open() {
    this.source?.close();
    this.source = new EventSource(address(this.path, { ...this.parameters, limit: PAGE, watch: "true" }));
    this.source.addEventListener("list", ({ data }) => this.take(JSON.parse(data)));
    this.source.addEventListener("end", () => this.reopen(0));
    this.source.onopen = () => this.connected(true);
    this.source.onerror = () => this.lost();
  }

  /** The first page is sent; the others, of the same moment, are read. */
  async take(page) {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    try {
      const list = await readAll(this.path, this.parameters, page);
      if (turn === this.turn && !this.isClosed) await this.changed(list); // some views read more
    } catch (error) {
      if (!(error instanceof ViewError)) throw error;
      if (error.status !== 410 && !this.isClosed) this.failed(error); // 410: a newer list is on its way
    }
  }

  /** A stream does not say why it is refused, so ask once more without it. */
  async lost() {
    this.connected(false);
    if (this.source.readyState !== EventSource.CLOSED) return; // the browser connects again
    try {
      await read(this.path, { ...this.parameters, limit: "1" });
    } catch (error) {
      if (!this.isClosed) this.failed(error);
    }
    this.reopen(RETRY);
  }

  reopen(pause) {
    this.source.close();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.isClosed || this.open(), pause);
  }

  /** A browser has six connections to a server, for all of its tabs: one that nobody looks at needs none. */
  pause() {
    clearTimeout(this.timer);
    this.source.close();
  }

  close() {
    this.isClosed = true;
    this.pause();
  }
}
