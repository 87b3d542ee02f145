// A grid of heads to switch off: one <button aria-pressed> per head (pressed = off), headers for layers, heads, KV groups.
//
// Who is right, the browser or Python? Both may change the list: the browser by a gesture (shown at once, sent at the
// end of the gesture), Python by a preset button or an address. Messages cross on the way, so each list carries two
// marks, kept by ui/components.py:
//   rev  an opaque word that Python changes whenever *it* sets the list,
//   seq  how many local changes since then the list contains.
// Browser to Python: setStateValue("off", {heads, seq, rev}); Python takes it only if rev is still its own and seq is new.
// Python to browser: a different rev is Python's own change and is adopted (an unfinished gesture ends); the same rev
// is an echo and is adopted only if its seq is not older than ours, so an older echo never undoes a newer click.
// A message can be lost while the page is redrawn, and a grid can be taken down with changes nobody has heard of. What no
// answer contains yet is therefore kept by its rev, taken over by the next grid of that rev, and said again once Python
// is at rest; saying it twice does no harm.

const UNHEARD = new Map(); // rev -> {seq, off}
const PATIENCE = 800; // ms without an answer, and with Python at rest, before a change is said again
const REMINDERS = 6; // in a row; a server that is gone is not asked for ever
const GRIDS = new WeakMap(); // parentElement -> HeadGrid
const BURST = 150; // ms: keyboard changes closer together than this go to Python as one

export default function (component) {
  const { parentElement } = component;
  let grid = GRIDS.get(parentElement);
  if (!grid) {
    grid = new HeadGrid(parentElement);
    GRIDS.set(parentElement, grid);
  }
  const generation = grid.update(component);
  return () => {
    // Streamlit may run the clean-up of an overtaken call after the next call: only the newest one may take down.
    if (grid.generation !== generation) return;
    grid.destroy();
    GRIDS.delete(parentElement);
  };
}

function make(tag, className, parent, attributes) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  if (parent) parent.appendChild(element);
  return element;
}

/** The colour at 0..1 along a list of hex colours. */
function along(colours, share) {
  const at = Math.max(0, Math.min(1, share)) * (colours.length - 1);
  const low = Math.min(Math.floor(at), colours.length - 2);
  const [a, b] = [colours[low], colours[low + 1]].map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  return `rgb(${a.map((c, k) => Math.round(c + (b[k] - c) * (at - low))).join(" ")})`;
}

class HeadGrid {
  constructor(parent) {
    for (const old of Array.from(parent.children)) if (old.classList.contains("hg")) old.remove();
    this.root = make("div", "hg", parent);
    this.probe = make("span", "hg-probe", this.root, { "aria-hidden": "true" });
    this.scroll = make("div", "hg-scroll", this.root);
    this.grid = make("div", "hg-grid", this.scroll, { role: "group" });
    this.foot = make("div", "hg-foot", this.root);
    this.text = make("span", "hg-text", this.foot, { role: "status", "aria-live": "polite" });
    this.clear = make("button", "hg-clear", this.foot, { type: "button" });
    this.clear.textContent = "all on";
    this.legend = make("span", "hg-legend", this.foot);
    this.tip = make("div", "hg-tip", this.root, { "aria-hidden": "true" });
    this.off = new Set(); // "layer,head"
    this.generation = 0;
    this.rev = undefined;
    this.seq = 0;
    this.reminded = 0; // how often the last change was said again
    this.anchor = null; // the last head that was set by hand: where a shift-click's rectangle starts
    this.place = [0, 0]; // roving tabindex; layer -1: head headers, -2: KV headers; head -1: layer headers
    this.gesture = null;
    this.listen();
    this.resize = new ResizeObserver(() => this.measure());
    this.resize.observe(this.root);
  }

  destroy() {
    this.resize.disconnect();
    clearTimeout(this.timer);
    clearTimeout(this.reminder);
    this.root.remove();
  }

  // ------------------------------------------------------------------------------------------------ from Python

  update(component) {
    this.generation += 1;
    this.component = component;
    const { data } = component;
    this.data = data;
    const shape = [data.n_layers, data.n_heads, data.group, data.site_prefix].join("|");
    if (shape !== this.shape) {
      this.shape = shape;
      this.build();
    }
    this.adopt(data);
    this.colour();
    this.refresh();
    this.measure();
    this.root.dataset.ready = String(this.generation);
    return this.generation;
  }

  adopt(data) {
    if (data.rev !== this.rev) {
      clearTimeout(this.timer);
      this.gesture = null;
      UNHEARD.delete(this.rev);
      this.rev = data.rev;
    }
    const unheard = UNHEARD.get(data.rev);
    if (unheard && data.seq < unheard.seq) {
      // an older echo of our own, or a new grid in the place of one whose last change is not known yet
      this.seq = unheard.seq;
      this.off = new Set(unheard.off);
      this.remind();
      return;
    }
    UNHEARD.delete(data.rev);
    this.stopReminding();
    this.seq = data.seq;
    this.off = new Set();
    for (const name of data.off) {
      const place = this.byName.get(name);
      if (place) this.off.add(place);
    }
  }

  build() {
    const { n_layers: layers, n_heads: heads, group } = this.data;
    Object.assign(this, { layers, heads, per: group });
    this.grid.textContent = "";
    this.grid.dataset.rows = layers > 16 ? "many" : layers > 8 ? "some" : "few";
    this.cells = [];
    this.byName = new Map();
    this.buttons = new Map(); // "layer,head" -> button, headers included
    // Between KV groups stands a narrow column with a line.
    const column = (head) => 2 + head + (group > 1 ? Math.floor(head / group) : 0);
    const widths = [];
    for (let head = 0; head < heads; head++) {
      if (group > 1 && head > 0 && head % group === 0) {
        widths.push("3px");
        make("span", "hg-line", this.grid).style.gridArea = `2 / ${column(head) - 1} / ${layers + 3} / auto`;
      }
      widths.push("minmax(8px, var(--hg-w))");
    }
    this.grid.style.gridTemplateColumns = `max-content ${widths.join(" ")}`;
    const button = (place, className, label, row, from, span) => {
      const element = make("button", className, this.grid, { type: "button", tabindex: "-1" });
      element.style.gridArea = `${row} / ${from} / auto / span ${span || 1}`;
      element.dataset.place = place.join(",");
      element.setAttribute("aria-label", label);
      this.buttons.set(place.join(","), element);
      return element;
    };
    if (group > 1) {
      for (let head = 0; head < heads; head += group) {
        const name = `KV${head / group}`;
        const span = Math.min(group, heads - head);
        const last = head + span - 1;
        const label = `Switch heads H${head} to H${last}, which share ${name}, in every layer`;
        button([-2, head], "hg-head hg-kv", label, 1, column(head), span).textContent = name;
      }
    }
    for (let head = 0; head < heads; head++) {
      const element = button([-1, head], "hg-head hg-column", `Switch H${head} in every layer`, 2, column(head));
      make("span", "hg-letter", element).textContent = "H";
      element.append(String(head));
    }
    for (let layer = 0; layer < layers; layer++) {
      button([layer, -1], "hg-head hg-row", `Switch all heads of L${layer}`, layer + 3, 1).textContent = `L${layer}`;
      for (let head = 0; head < heads; head++) {
        const element = button([layer, head], "hg-cell", "", layer + 3, column(head));
        this.byName.set(this.name(layer, head), `${layer},${head}`);
        this.cells.push({ layer, head, place: `${layer},${head}`, element, off: undefined });
      }
    }
    this.anchor = null;
    this.place = [0, 0];
    this.buttons.get("0,0").tabIndex = 0;
  }

  name(layer, head) {
    return `${this.data.site_prefix || ""}L${layer}H${head}`;
  }

  // ------------------------------------------------------------------------------------------------- what is shown

  colour() {
    const style = getComputedStyle(this.probe);
    const [r, g, b] = (style.backgroundColor.match(/[\d.]+/g) || [255, 255, 255]).map(Number);
    const theme = 0.2126 * r + 0.7152 * g + 0.0722 * b < 115 ? "dark" : "light";
    const { palette, heat, heat_range: range, heat_label: label } = this.data;
    this.root.dataset.theme = theme;
    this.root.style.setProperty("--hg-accent", palette.accent[theme]);
    const scale = heat && range[0] < 0 ? palette.diverging[theme] : palette[theme];
    for (const cell of this.cells) {
      const value = heat ? heat[cell.layer][cell.head] : null;
      cell.value = Number.isFinite(value) ? value : null;
      const share = cell.value === null ? null : (cell.value - range[0]) / (range[1] - range[0] || 1);
      cell.element.style.setProperty("--hg-heat", share === null ? "var(--hg-idle)" : along(scale, share));
    }
    this.legend.textContent = heat && label ? `colour: ${label}` : "";
  }

  refresh() {
    const { disabled } = this.data;
    for (const cell of this.cells) {
      const off = this.off.has(cell.place);
      if (cell.off !== off || cell.label !== this.shape) {
        cell.off = off;
        cell.label = this.shape;
        cell.element.setAttribute("aria-pressed", String(off));
        cell.element.setAttribute("aria-label", `${this.name(cell.layer, cell.head)}, ${off ? "off" : "on"}`);
      }
    }
    for (const element of this.buttons.values()) element.setAttribute("aria-disabled", String(Boolean(disabled)));
    this.grid.setAttribute("aria-label", `Heads to switch off, ${this.layers} layers of ${this.heads}`);
    const names = this.list();
    const shown = names.slice(0, 6).join(", ") + (names.length > 6 ? ` and +${names.length - 6} more` : "");
    this.text.textContent = "";
    if (names.length) {
      this.text.append(`${names.length} off: `);
      make("b", "", this.text).textContent = shown;
    } else {
      this.text.append("all heads on");
    }
    this.clear.hidden = !names.length || Boolean(disabled);
    this.root.dataset.off = String(names.length);
  }

  /** Remember what no answer contains yet. */
  keep() {
    UNHEARD.set(this.rev, { seq: this.seq, off: new Set(this.off) });
    this.reminded = 0;
  }

  /** Say it again when there is no answer for a while although Python is at rest. */
  remind() {
    clearTimeout(this.reminder);
    if (this.reminded >= REMINDERS) return;
    this.reminder = setTimeout(() => {
      const busy = this.gesture || document.querySelector('[data-test-script-state="running"]');
      if (busy) return this.remind();
      this.reminded += 1;
      this.send();
    }, PATIENCE);
  }

  stopReminding() {
    clearTimeout(this.reminder);
    this.reminded = 0;
  }

  list() {
    return this.cells.filter((cell) => this.off.has(cell.place)).map((cell) => this.name(cell.layer, cell.head));
  }

  /** Narrow cells have no room for the H of "H10". */
  measure() {
    const cell = this.buttons && this.buttons.get("-1,0");
    if (cell) this.root.dataset.narrow = String(cell.clientWidth < 22);
  }

  showTip(layer, head) {
    const cell = this.cells[layer * this.heads + head];
    const parts = [this.name(layer, head)];
    if (cell.value !== null) parts.push(`${this.data.heat_label || "value"} ${Number(cell.value.toPrecision(3))}`);
    if (cell.off) parts.push("off");
    this.tip.textContent = parts.join(" · ");
    const box = this.root.getBoundingClientRect();
    const at = cell.element.getBoundingClientRect();
    const { offsetWidth: w, offsetHeight: h } = this.tip;
    const left = Math.max(0, Math.min(at.left - box.left + at.width / 2 - w / 2, box.width - w));
    const top = at.top - box.top;
    this.tip.style.transform = `translate(${left}px, ${top - h - 6}px)`;
    this.tip.dataset.shown = "";
  }

  hideTip() {
    delete this.tip.dataset.shown;
  }

  // --------------------------------------------------------------------------------------------- changes and gestures

  /** Set heads on or off, here and now; `later` decides when Python hears of it. */
  set(places, off) {
    let changed = false;
    for (const place of places) {
      if (this.off.has(place) === off) continue;
      if (off) this.off.add(place);
      else this.off.delete(place);
      changed = true;
    }
    if (!changed) return;
    this.seq += 1;
    this.keep();
    this.refresh();
  }

  /** Like a header's checkbox: when all are off, all go on; otherwise all go off. */
  flip(places) {
    this.set(places, !places.every((place) => this.off.has(place)));
  }

  send() {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.component.setStateValue("off", { heads: this.list(), seq: this.seq, rev: this.rev });
    this.remind();
  }

  sendSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.send(), BURST);
  }

  layerOf(layer) {
    return Array.from({ length: this.heads }, (_, head) => `${layer},${head}`);
  }

  groupOf(layer, head) {
    const first = Math.floor(head / this.per) * this.per;
    const count = Math.min(this.per, this.heads - first);
    return Array.from({ length: count }, (_, i) => `${layer},${first + i}`);
  }

  everyLayer(make) {
    return Array.from({ length: this.layers }, (_, layer) => make(layer)).flat();
  }

  /** What a button stands for: one head, a layer, a head in every layer, or a KV group in every layer. */
  meant([layer, head]) {
    if (layer === -2) return this.everyLayer((l) => this.groupOf(l, head));
    if (layer === -1) return this.everyLayer((l) => [`${l},${head}`]);
    if (head === -1) return this.layerOf(layer);
    return [`${layer},${head}`];
  }

  rectangle([la, ha], [lb, hb]) {
    const places = [];
    for (let l = Math.min(la, lb); l <= Math.max(la, lb); l++) {
      for (let h = Math.min(ha, hb); h <= Math.max(ha, hb); h++) places.push(`${l},${h}`);
    }
    return places;
  }

  /** All heads on the straight way between two: a fast pointer skips some. */
  path([la, ha], [lb, hb]) {
    const steps = Math.max(Math.abs(lb - la), Math.abs(hb - ha), 1);
    return Array.from({ length: steps + 1 }, (_, i) =>
      [la + ((lb - la) * i) / steps, ha + ((hb - ha) * i) / steps].map(Math.round).join(","),
    );
  }

  find(target) {
    const element = target && target.closest ? target.closest("[data-place]") : null;
    return element && this.grid.contains(element) ? element.dataset.place.split(",").map(Number) : null;
  }

  listen() {
    const { grid } = this;
    grid.addEventListener("pointerdown", (event) => this.down(event));
    grid.addEventListener("pointermove", (event) => this.move(event));
    grid.addEventListener("pointerup", (event) => this.up(event));
    grid.addEventListener("pointercancel", () => this.cancel());
    grid.addEventListener("pointerleave", () => this.hideTip());
    grid.addEventListener("focusout", () => this.hideTip());
    grid.addEventListener("click", (event) => {
      // detail 0: the keyboard or a screen reader pressed the button; pointers were served on the way down
      const place = event.detail === 0 ? this.find(event.target) : null;
      if (place) this.press(place);
    });
    grid.addEventListener("keydown", (event) => this.key(event));
    this.clear.addEventListener("click", () => {
      if (this.data.disabled) return;
      this.set([...this.off], false);
      this.send();
      this.focus(this.place);
    });
  }

  press(place) {
    if (place[0] >= 0 && place[1] >= 0) this.anchor = place;
    this.rove(place);
    this.flipSoon(this.meant(place));
  }

  flipSoon(places) {
    if (this.data.disabled) return;
    this.flip(places);
    this.sendSoon();
  }

  down(event) {
    const place = this.find(event.target);
    if (!place || event.button !== 0 || this.data.disabled) return;
    const before = new Set(this.off);
    const [layer, head] = place;
    const isCell = layer >= 0 && head >= 0;
    this.gesture = { before, seq: this.seq, at: null, pointer: event.pointerId };
    if (!isCell) {
      this.flip(this.meant(place));
    } else if (event.shiftKey && this.anchor) {
      this.set(this.rectangle(this.anchor, place), this.off.has(this.anchor.join(",")));
    } else if (event.altKey && this.per > 1) {
      this.flip(this.groupOf(layer, head));
    } else {
      const off = !this.off.has(place.join(","));
      this.set([place.join(",")], off);
      this.gesture.at = place;
      this.gesture.off = off;
      this.anchor = place;
    }
    this.rove(place);
    this.hideTip();
    this.grid.setPointerCapture(event.pointerId);
  }

  move(event) {
    const { gesture } = this;
    // While the pointer is captured, event.target is the grid: ask what lies under the pointer.
    const under = this.root.getRootNode().elementFromPoint(event.clientX, event.clientY);
    const place = this.find(under);
    const isCell = place && place[0] >= 0 && place[1] >= 0;
    if (!gesture) {
      if (isCell && event.pointerType !== "touch") this.showTip(...place);
      else this.hideTip();
      return;
    }
    if (!gesture.at || !isCell || gesture.pointer !== event.pointerId) return;
    if (place[0] === gesture.at[0] && place[1] === gesture.at[1]) return;
    this.set(this.path(gesture.at, place), gesture.off);
    gesture.at = place;
    this.anchor = place;
  }

  up(event) {
    if (!this.gesture || this.gesture.pointer !== event.pointerId) return;
    const changed = this.seq !== this.gesture.seq;
    this.gesture = null;
    this.focus(this.place);
    if (changed) this.send();
  }

  /** The browser took the finger for scrolling, or Escape was pressed: as if nothing had been touched. */
  cancel() {
    if (!this.gesture) return;
    this.off = this.gesture.before;
    this.seq = this.gesture.seq;
    this.gesture = null;
    this.keep();
    this.refresh();
  }

  /** Where a key leads from a place, or undefined; headers are rows and columns of the same grid. */
  next([layer, head], key) {
    const by = layer === -2 ? this.per : 1; // a KV header spans its group
    const step = {
      ArrowUp: [layer - 1, head],
      ArrowDown: [layer + 1, head],
      ArrowLeft: [layer, head - by],
      ArrowRight: [layer, head + by],
      Home: [layer, 0],
      End: [layer, this.heads - 1],
      PageUp: [0, head],
      PageDown: [this.layers - 1, head],
    }[key];
    if (!step) return undefined;
    const top = head < 0 ? 0 : this.per > 1 ? -2 : -1;
    const l = Math.max(top, Math.min(this.layers - 1, step[0]));
    const h = Math.max(l < 0 ? 0 : -1, Math.min(this.heads - 1, step[1]));
    return l === -2 ? [l, Math.floor(h / this.per) * this.per] : [l, h];
  }

  key(event) {
    const place = this.find(event.target);
    if (!place || event.ctrlKey || event.metaKey) return;
    const [layer, head] = place;
    const letter = event.key.toLowerCase();
    const next = this.next(place, event.key);
    if (next) {
      this.focus(next);
      if (event.shiftKey && this.anchor && next[0] >= 0 && next[1] >= 0 && !this.data.disabled) {
        this.set(this.rectangle(this.anchor, next), this.off.has(this.anchor.join(",")));
        this.sendSoon();
      }
    } else if (letter === "l" && layer >= 0 && !event.altKey) {
      this.flipSoon(this.layerOf(layer));
    } else if (letter === "g" && layer >= 0 && head >= 0 && this.per > 1 && !event.altKey) {
      this.flipSoon(this.groupOf(layer, head));
    } else if (event.key === "Escape") {
      this.cancel();
      this.hideTip();
      return;
    } else {
      return; // Enter and Space press the button by themselves
    }
    event.preventDefault();
    event.stopPropagation();
  }

  rove(place) {
    const old = this.buttons.get(this.place.join(","));
    if (old) old.tabIndex = -1;
    this.place = place;
    this.buttons.get(place.join(",")).tabIndex = 0;
  }

  focus(place) {
    this.rove(place);
    const element = this.buttons.get(place.join(","));
    element.focus({ preventScroll: element.matches(":hover") });
    if (place[0] >= 0 && place[1] >= 0 && element.matches(":focus-visible")) this.showTip(...place);
  }
}
