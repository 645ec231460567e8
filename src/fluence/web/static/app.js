// The page: which view is shown, by the address, and the lists that it follows.

import { Feed } from "./api.js";
import { element, stopClock } from "./format.js";
import { views } from "./views.js";

const main = document.getElementById("main");
const menu = document.getElementById("views");
const connection = document.getElementById("connection");
const HIDDEN = 2000; // milliseconds until a tab that nobody looks at follows nothing
let current = null;

/** The address: #/view/part/part?key=value */
function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...parts] = path.split("/").map(decodeURIComponent);
  return { name: name in views ? name : "cluster", parts, query: new URLSearchParams(query) };
}

/** Keep what is searched for and sorted by in the address, without a new entry in the history. */
function remember(key, value) {
  const { query } = route();
  if (value) query.set(key, value);
  else query.delete(key);
  const path = location.hash.split("?")[0] || "#/cluster";
  history.replaceState(null, "", query.size ? `${path}?${query}` : path);
}

function show({ focus }) {
  if (location.hash === "#main") return main.focus();
  const { name, parts, query } = route();
  const View = views[name];
  for (const link of menu.querySelectorAll("a")) {
    if (link.dataset.view === (View.menu ?? name)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  for (const feed of current?.feeds ?? []) feed.close();
  const view = (current = new View({ parts, query, remember }));
  document.title = `${view.title} – Fluence`;
  main.replaceChildren(element("h1", {}, view.title), view.body);
  if (focus) {
    main.focus({ preventScroll: true });
    window.scrollTo(0, 0); // the next view is seen from its start, below the menu
  }
  const lists = view.lists();
  const awaited = new Set(lists.map(([path]) => path));
  // Drawn means: every list has answered once, and the frame in which tables and charts draw is over.
  const answered = (path) => {
    if (awaited.delete(path) && !awaited.size) requestAnimationFrame(() => view.body.removeAttribute("aria-busy"));
  };
  view.feeds = lists.map(([path, changed, parameters]) => new Feed(path, {
    parameters,
    changed: async (list) => {
      fault(null);
      if (list.metadata.saved) standStill(Date.parse(list.metadata.taken));
      await changed(list); // some read more
      answered(path);
    },
    failed: (error) => {
      fault(explain(error));
      answered(path);
    },
    connected,
  }));
}

function fault(text) {
  main.querySelector("[role=alert]")?.remove();
  if (text) main.insertBefore(element("p", { class: "late", role: "alert" }, text), current.body);
}

function explain(error) {
  if (error.status === 404) return "The scheduler does not know this. It may have ended, or you may not see it.";
  return error.status ? error.message : "The page has lost its server. It tries again.";
}

function connected(isConnected) {
  connection.classList.toggle("lost", !isConnected);
  connection.textContent = isConnected ? "Live" : "Not connected. Trying again …";
}

/** A saved view: nothing changes, and times are those of its moment. */
function standStill(at) {
  stopClock(at);
  connection.textContent = `Saved: ${new Date(at).toLocaleString()}`;
}

for (const [name, View] of Object.entries(views)) {
  if (View.menu === undefined) menu.append(element("li", {}, element("a", { href: `#/${name}`, "data-view": name }, View.label)));
}
let leaving = null;
let isPaused = false;
document.addEventListener("visibilitychange", () => {
  clearTimeout(leaving);
  if (document.visibilityState === "hidden") {
    leaving = setTimeout(() => {
      isPaused = true;
      for (const feed of current.feeds) feed.pause();
    }, HIDDEN);
  } else if (isPaused) {
    isPaused = false;
    for (const feed of current.feeds) feed.open();
  }
});
window.addEventListener("hashchange", () => show({ focus: true }));
show({ focus: false });
