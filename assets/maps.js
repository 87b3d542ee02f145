// Draws attention maps on canvases: `overview` (every head a thumbnail) and `layer` (one layer's heads side by side).
//
// Contract with Python (mha_core/view.py, mha_core/ui/components.py): `data` is one packed View (a Uint8Array). Streamlit
// calls the default export again for every new message and when the theme changes, always with the same parentElement:
// the state lives with that element and is redrawn, never rebuilt. Labels are untrusted: textContent and fillText only.
// After each paint the root carries data-painted (a counter), data-view (meta.id) and data-milliseconds (how long it
// took), for tests and benchmarks.

const LOOKS = new WeakMap(); // parentElement -> MapView
const BLANK = 0; // a fully transparent pixel: cells that cannot exist (the future of a causal map)

export default function (component) {
  const { parentElement } = component;
  let look = LOOKS.get(parentElement);
  if (!look) {
    look = new MapView(parentElement);
    LOOKS.set(parentElement, look);
  }
  const generation = look.update(component);
  return () => {
    // Streamlit may run the clean-up of an overtaken call after the next call: only the newest one may take down.
    if (look.generation !== generation) return;
    look.destroy();
    LOOKS.delete(parentElement);
  };
}

// ---------------------------------------------------------------------------------------------- reading the data

function unpack(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = view.getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const types = { uint8: Uint8Array, int32: Int32Array, float32: Float32Array };
  const arrays = {};
  for (const { name, dtype, shape, offset } of header.arrays) {
    const Type = types[dtype];
    const count = shape.reduce((a, b) => a * b, 1);
    const start = bytes.byteOffset + 4 + length + offset;
    const aligned = start % Type.BYTES_PER_ELEMENT === 0;
    const values = aligned
      ? new Type(bytes.buffer, start, count)
      : new Type(bytes.buffer.slice(start, start + count * Type.BYTES_PER_ELEMENT));
    arrays[name] = { values, shape, scale: dtype === "uint8" ? 1 / 255 : 1 };
  }
  return { kind: header.kind, meta: header.meta, arrays };
}

function sameBytes(a, b) {
  if (a === b) return true;
  if (!a || !b || a.byteLength !== b.byteLength) return false;
  if (a.byteOffset % 4 || b.byteOffset % 4) return a.every((x, i) => x === b[i]);
  const words = a.byteLength >> 2;
  const x = new Uint32Array(a.buffer, a.byteOffset, words);
  const y = new Uint32Array(b.buffer, b.byteOffset, words);
  for (let i = 0; i < words; i++) if (x[i] !== y[i]) return false;
  for (let i = words << 2; i < a.byteLength; i++) if (a[i] !== b[i]) return false;
  return true;
}

// ------------------------------------------------------------------------------------------------------- colours

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

/** 256 pixels (ABGR, as little-endian canvases want them) along a list of hex colours. */
function lookup(colours) {
  const table = new Uint32Array(256);
  const points = colours.map(rgb);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (points.length - 1);
    const low = Math.min(Math.floor(at), points.length - 2);
    const [r, g, b] = points[low].map((c, k) => Math.round(c + (points[low + 1][k] - c) * (at - low)));
    table[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return table;
}

/** A function from a value to 0..255, linear or logarithmic over the view's range. */
function quantiser(meta) {
  const [low, high] = meta.range || [0, 1];
  if (meta.scale === "log") {
    const floor = meta.log_floor || 1e-4;
    const span = Math.log(high / floor);
    return (v) => (v <= floor ? 0 : Math.min(255, Math.round((Math.log(v / floor) / span) * 255)));
  }
  const factor = 255 / (high - low || 1);
  return (v) => Math.max(0, Math.min(255, Math.round((v - low) * factor)));
}

/**
 * One map into a scratch canvas, at most maxRows x maxColumns cells: where there are more cells than pixels, each pixel
 * shows the maximum of its block, because skipping cells would hide single strong weights.
 */
function paintCells(scratch, array, start, rows, columns, maxRows, maxColumns, table, level, isBlank) {
  const by = Math.max(1, Math.ceil(rows / maxRows));
  const bx = Math.max(1, Math.ceil(columns / maxColumns));
  const h = Math.ceil(rows / by);
  const w = Math.ceil(columns / bx);
  if (scratch.width !== w || scratch.height !== h) {
    scratch.width = w;
    scratch.height = h;
  }
  const context = scratch.getContext("2d");
  const image = context.createImageData(w, h);
  const pixels = new Uint32Array(image.data.buffer);
  const { values, scale } = array;
  if (by === 1 && bx === 1) {
    for (let q = 0, i = 0; q < rows; q++) {
      for (let k = 0; k < columns; k++, i++) {
        pixels[i] = isBlank && isBlank(q, k) ? BLANK : table[level(values[start + i] * scale)];
      }
    }
  } else {
    for (let y = 0; y < h; y++) {
      for (let x = 0; x < w; x++) {
        let most = -Infinity;
        let blank = true;
        for (let q = y * by; q < Math.min(rows, (y + 1) * by); q++) {
          for (let k = x * bx; k < Math.min(columns, (x + 1) * bx); k++) {
            if (isBlank && isBlank(q, k)) continue;
            blank = false;
            const v = values[start + q * columns + k];
            if (v > most) most = v;
          }
        }
        pixels[y * w + x] = blank ? BLANK : table[level(most * scale)];
      }
    }
  }
  context.putImageData(image, 0, 0);
  return scratch;
}

function hatch(context, x, y, w, h, colour, spacing, width) {
  context.save();
  context.beginPath();
  context.rect(x, y, w, h);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.beginPath();
  for (let d = -h; d < w; d += spacing) {
    context.moveTo(x + d, y + h);
    context.lineTo(x + d + h, y);
  }
  context.stroke();
  context.restore();
}

/** Is the cell (a block of positions) wholly in the future of its queries? Only then it is structurally empty. */
function futureTest(meta, block) {
  if (!meta.causal) return null;
  const [bq, bk] = block;
  return bq === 1 && bk === 1 ? (q, k) => k > q : (q, k) => k * bk > (q + 1) * bq - 1;
}

// ------------------------------------------------------------------------------------------------ small DOM helpers

function make(tag, className, parent, attributes) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  if (parent) parent.appendChild(element);
  return element;
}

/** textContent in its own text direction, so that a Hebrew or Arabic token does not turn the line around it. */
function bdi(text, parent) {
  const element = make("bdi", "", parent, { dir: "auto" });
  element.textContent = text;
  return element;
}

function canvasOf(element, width, height, ratio) {
  const w = Math.max(1, Math.round(width * ratio));
  const h = Math.max(1, Math.round(height * ratio));
  if (element.width !== w || element.height !== h) {
    element.width = w;
    element.height = h;
  }
  element.style.width = `${width}px`;
  element.style.height = `${height}px`;
  const context = element.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.imageSmoothingEnabled = false;
  return context;
}

/** The label, cut with an ellipsis until it fits. */
function fitted(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  const letters = Array.from(text);
  let low = 0;
  let high = letters.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(letters.slice(0, middle).join("") + "…").width <= room) low = middle;
    else high = middle - 1;
  }
  return letters.slice(0, low).join("") + "…";
}

// ------------------------------------------------------------------------------------------------------ the component

class MapView {
  constructor(parent) {
    for (const old of Array.from(parent.children)) if (old.classList.contains("hs-maps")) old.remove();
    this.root = make("div", "hs-maps", parent);
    this.stage = make("div", "hs-stage", this.root);
    this.tip = make("div", "hs-tip", this.root, { "aria-hidden": "true" });
    this.probe = make("span", "hs-probe", this.root, { "aria-hidden": "true" });
    this.scratch = document.createElement("canvas");
    this.generation = 0;
    this.painted = 0;
    this.width = 0;
    this.resize = new ResizeObserver(() => {
      const width = Math.floor(this.root.clientWidth);
      // Only the width is ours to follow; the height is what we make it ourselves.
      if (width === this.width) return;
      cancelAnimationFrame(this.frame);
      this.frame = requestAnimationFrame(() => this.draw());
    });
    this.resize.observe(this.root);
  }

  destroy() {
    this.resize.disconnect();
    cancelAnimationFrame(this.frame);
    this.root.remove();
  }

  update(component) {
    this.generation += 1;
    this.component = component;
    const { data } = component;
    const theme = this.readTheme();
    // A rerun resends the same bytes as a new object; repainting then would only cost time and drop the tooltip.
    if (this.view && theme === this.themeKey && sameBytes(this.bytes, data)) return this.generation;
    this.themeKey = theme;
    this.bytes = data;
    this.view = data instanceof Uint8Array && data.byteLength > 8 ? unpack(data) : null;
    this.draw();
    return this.generation;
  }

  readTheme() {
    const style = getComputedStyle(this.probe);
    const channels = (style.backgroundColor.match(/[\d.]+/g) || [255, 255, 255]).map(Number);
    const luminance = (0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]) / 255;
    this.theme = luminance < 0.45 ? "dark" : "light";
    this.ink = style.color;
    this.font = style.fontFamily;
    this.root.dataset.theme = this.theme;
    return `${style.backgroundColor} ${style.color} ${style.fontFamily}`;
  }

  draw() {
    this.width = Math.floor(this.root.clientWidth);
    if (!this.width || !this.view) return; // not laid out yet (a hidden tab): the observer calls again
    const { kind, meta } = this.view;
    this.ratio = window.devicePixelRatio || 1;
    const palette = meta.palette;
    this.table = lookup(palette[this.theme]);
    this.accent = palette.accent[this.theme];
    this.chosen = palette.selected[this.theme];
    this.root.style.setProperty("--hs-accent", this.accent);
    this.root.style.setProperty("--hs-selected", this.chosen);
    if (!this.painter || this.painter.kind !== kind) {
      this.stage.textContent = "";
      const Painter = { overview: Overview, layer: Layer }[kind];
      this.painter = Painter ? new Painter(this) : null;
      if (!this.painter) this.stage.textContent = `A view of kind “${kind}” cannot be drawn here.`;
    }
    this.hideTip();
    const start = performance.now();
    if (this.painter) this.painter.draw(this.view);
    this.root.dataset.milliseconds = (performance.now() - start).toFixed(1);
    this.painted += 1;
    this.root.dataset.painted = String(this.painted);
    this.root.dataset.view = meta.id === undefined ? "" : String(meta.id);
  }

  /** Show the tooltip near a point of the root; `fill` puts text into it. */
  showTip(x, y, fill) {
    this.tip.textContent = "";
    fill(this.tip);
    this.tip.dataset.shown = "true";
    const { offsetWidth: w, offsetHeight: h } = this.tip;
    const left = Math.max(0, Math.min(x + 14, this.width - w));
    const above = y - h - 12;
    this.tip.style.transform = `translate(${left}px, ${above > -24 ? above : y + 20}px)`;
  }

  hideTip() {
    delete this.tip.dataset.shown;
  }

  at(event) {
    const box = this.root.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }
}

// ------------------------------------------------------------------------------------------- overview: all thumbnails

class Overview {
  constructor(look) {
    this.kind = "overview";
    this.look = look;
    this.grid = make("div", "hs-overview", look.stage, { role: "grid", tabindex: "0" });
    this.canvas = make("canvas", "", this.grid, { "aria-hidden": "true" });
    this.over = make("canvas", "hs-over", this.grid, { "aria-hidden": "true" });
    this.cells = make("div", "hs-sr", this.grid, { role: "presentation" });
    this.focus = null; // the keyboard's place [layer, head]
    this.hover = null;
    this.grid.addEventListener("pointermove", (event) => this.move(event));
    this.grid.addEventListener("pointerleave", () => this.leave());
    this.grid.addEventListener("click", (event) => {
      const place = this.find(event);
      if (place) this.select(place);
    });
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.grid.addEventListener("focus", () => this.outline());
    this.grid.addEventListener("blur", () => {
      this.look.hideTip();
      this.outline();
    });
  }

  name([layer, head]) {
    return `${this.meta.site_prefix || ""}L${layer}H${head}`;
  }

  /** "L4H10 · first token 0.47" */
  describe(place) {
    const parts = [this.name(place)];
    const { values } = this.arrays;
    if (values) {
      const value = values.values[place[0] * this.heads + place[1]];
      parts.push(`${this.meta.values_label || "value"} ${Number.isFinite(value) ? value.toFixed(2) : "–"}`);
    }
    if (this.isOff(place)) parts.push("off");
    return parts.join(" · ");
  }

  isOff([layer, head]) {
    return (this.meta.off || []).some(([l, h]) => l === layer && h === head);
  }

  layout() {
    const { width } = this.look;
    const { layers, heads } = this;
    this.left = layers > 10 ? 27 : 22;
    this.top = 17;
    this.gap = heads > 14 && width < 480 ? 2 : width < 480 ? 3 : 4;
    const room = Math.floor((width - this.left - this.gap * (heads - 1) - 4) / heads);
    // Few layers may be large, many layers stay small: about 420 px of height in all, never taller than 34 (26) px then.
    const budget = Math.floor(420 / layers) - this.gap;
    const most = layers >= 20 ? 30 : layers > 8 ? 34 : Math.min(110, Math.max(34, budget));
    this.w = Math.max(10, Math.min(room, most));
    this.h = layers >= 20 ? Math.min(this.w, 26) : this.w;
    this.canvasWidth = Math.max(this.left + heads * (this.w + this.gap) - this.gap + 4, 40);
    this.canvasHeight = this.top + layers * (this.h + this.gap) - this.gap + 4;
  }

  box([layer, head]) {
    return [this.left + head * (this.w + this.gap), this.top + layer * (this.h + this.gap), this.w, this.h];
  }

  draw({ meta, arrays }) {
    this.meta = meta;
    this.arrays = arrays;
    const [layers, heads, rows, columns] = arrays.maps.shape;
    this.layers = layers;
    this.heads = heads;
    this.layout();
    const { look } = this;
    const context = canvasOf(this.canvas, this.canvasWidth, this.canvasHeight, look.ratio);
    const level = quantiser(meta);
    const blank = futureTest(meta, meta.block || [1, 1]);
    const [low, high] = meta.values_range || [0, 1];
    const radius = Math.min(4, this.w / 6);
    for (let layer = 0; layer < layers; layer++) {
      for (let head = 0; head < heads; head++) {
        const [x, y, w, h] = this.box([layer, head]);
        const start = (layer * heads + head) * rows * columns;
        const off = this.isOff([layer, head]);
        paintCells(
          look.scratch, arrays.maps, start, rows, columns,
          Math.floor(h * look.ratio), Math.floor(w * look.ratio), look.table, level, blank,
        );
        context.save();
        context.beginPath();
        context.roundRect(x, y, w, h, radius);
        context.clip();
        context.globalAlpha = off ? 0.35 : 1;
        context.drawImage(look.scratch, x, y, w, h);
        context.restore();
        if (off) hatch(context, x, y, w, h, look.accent, 5, 1.6);
        context.lineWidth = 1;
        context.strokeStyle = look.ink;
        context.globalAlpha = 0.16;
        context.beginPath();
        context.roundRect(x - 0.5, y - 0.5, w + 1, h + 1, radius + 0.5);
        context.stroke();
        if (arrays.values) {
          const share = (arrays.values.values[layer * heads + head] - low) / (high - low || 1);
          context.globalAlpha = Math.max(0, Math.min(1, share || 0));
          context.lineWidth = this.w < 20 ? 1.5 : 2;
          context.strokeStyle = look.accent;
          context.stroke();
        }
        context.globalAlpha = 1;
      }
    }
    this.axes(context);
    this.semantics();
    this.outline();
  }

  axes(context) {
    const { look } = this;
    context.fillStyle = look.ink;
    context.globalAlpha = 0.66;
    context.font = `11px ${look.font}`;
    context.textBaseline = "middle";
    context.textAlign = "right";
    const every = this.h + this.gap < 12 ? 2 : 1;
    for (let layer = 0; layer < this.layers; layer += every) {
      context.fillText(`L${layer}`, this.left - 6, this.top + layer * (this.h + this.gap) + this.h / 2 + 0.5);
    }
    context.textAlign = "center";
    const step = Math.ceil((context.measureText(`H${this.heads - 1}`).width + 3) / (this.w + this.gap));
    for (let head = 0; head < this.heads; head += step) {
      context.fillText(`H${head}`, this.left + head * (this.w + this.gap) + this.w / 2, 7);
    }
    context.globalAlpha = 1;
  }

  /** Hidden grid cells say to a screen reader what the canvas shows to the eye. */
  semantics() {
    const { grid, cells, layers, heads } = this;
    grid.setAttribute("aria-label", this.meta.alt || `All heads: ${layers} layers of ${heads} heads`);
    grid.setAttribute("aria-rowcount", String(layers));
    grid.setAttribute("aria-colcount", String(heads));
    if (cells.children.length !== layers || cells.firstChild.children.length !== heads) {
      cells.textContent = "";
      for (let layer = 0; layer < layers; layer++) {
        const row = make("div", "", cells, { role: "row" });
        for (let head = 0; head < heads; head++) {
          make("span", "", row, { role: "gridcell", id: `hs-cell-${layer}-${head}` });
        }
      }
    }
    const [l, h] = this.meta.selected || [-1, -1];
    for (let layer = 0; layer < layers; layer++) {
      for (let head = 0; head < heads; head++) {
        const cell = cells.children[layer].children[head];
        cell.textContent = this.describe([layer, head]);
        cell.setAttribute("aria-selected", String(layer === l && head === h));
      }
    }
    if (this.focus && (this.focus[0] >= layers || this.focus[1] >= heads)) this.focus = null;
    if (!this.focus) this.focus = this.meta.selected ? [...this.meta.selected] : [0, 0];
    grid.setAttribute("aria-activedescendant", `hs-cell-${this.focus[0]}-${this.focus[1]}`);
  }

  /** Selected, hovered and focused outlines, on their own canvas: moving them never repaints a map. */
  outline() {
    const { look } = this;
    const context = canvasOf(this.over, this.canvasWidth, this.canvasHeight, look.ratio);
    const radius = Math.min(4, this.w / 6);
    const ring = (place, colour, width, spread, dash) => {
      const [x, y, w, h] = this.box(place);
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.setLineDash(dash || []);
      context.beginPath();
      context.roundRect(x - spread, y - spread, w + 2 * spread, h + 2 * spread, radius + spread);
      context.stroke();
    };
    const thick = this.w < 20 ? 2 : 2.5;
    if (this.meta.selected) ring(this.meta.selected, look.chosen, thick, thick / 2);
    if (this.hover) ring(this.hover, look.ink, 1.5, 0.75);
    const focused = this.grid.matches(":focus-visible");
    if (focused && this.focus) ring(this.focus, look.ink, 2, 1, [3, 2]);
  }

  find(event) {
    const box = this.canvas.getBoundingClientRect();
    const head = Math.floor((event.clientX - box.left - this.left + this.gap / 2) / (this.w + this.gap));
    const layer = Math.floor((event.clientY - box.top - this.top + this.gap / 2) / (this.h + this.gap));
    return layer >= 0 && layer < this.layers && head >= 0 && head < this.heads ? [layer, head] : null;
  }

  move(event) {
    const place = this.find(event);
    this.grid.style.cursor = place ? "pointer" : "";
    if (!place) return this.leave();
    const changed = !this.hover || this.hover[0] !== place[0] || this.hover[1] !== place[1];
    this.hover = place;
    if (changed) this.outline();
    this.look.showTip(...this.look.at(event), (tip) => {
      tip.textContent = this.describe(place);
    });
  }

  leave() {
    this.look.hideTip();
    if (!this.hover) return;
    this.hover = null;
    this.outline();
  }

  select(place) {
    this.focus = place;
    this.meta.selected = place; // at once; Python's answer comes with the next data
    this.semantics();
    this.outline();
    this.look.component.setTriggerValue("select", { layer: place[0], head: place[1] });
  }

  key(event) {
    const [layer, head] = this.focus || [0, 0];
    const places = {
      ArrowUp: [layer - 1, head],
      ArrowDown: [layer + 1, head],
      ArrowLeft: [layer, head - 1],
      ArrowRight: [layer, head + 1],
      Home: [layer, 0],
      End: [layer, this.heads - 1],
      PageUp: [0, head],
      PageDown: [this.layers - 1, head],
    };
    if (event.key === "Enter" || event.key === " ") {
      this.select([layer, head]);
    } else if (places[event.key]) {
      const [l, h] = places[event.key];
      this.focus = [Math.max(0, Math.min(this.layers - 1, l)), Math.max(0, Math.min(this.heads - 1, h))];
      this.grid.setAttribute("aria-activedescendant", `hs-cell-${this.focus[0]}-${this.focus[1]}`);
      this.outline();
      const [x, y, w] = this.box(this.focus);
      this.look.showTip(x + w, y, (tip) => {
        tip.textContent = this.describe(this.focus);
      });
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }
}

// ------------------------------------------------------------------------------------ layer: all heads of one layer

const LABEL_FONT = 10.5; // px
const GAP = 14; // px between panels
const TOP = 4; // px: half a line of text stands above the first row's middle
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufefc]/;

class Layer {
  constructor(look) {
    this.kind = "layer";
    this.look = look;
    this.legend = make("div", "hs-legend", look.stage);
    this.low = make("span", "hs-num", this.legend);
    this.bar = make("span", "hs-bar", this.legend, { "aria-hidden": "true" });
    this.high = make("span", "hs-num", this.legend);
    this.note = make("span", "hs-note", this.legend);
    this.group = make("div", "hs-layer", look.stage, { role: "group" });
    this.panels = [];
    this.cell = null;
    this.group.addEventListener("keydown", (event) => this.key(event));
  }

  panel(index) {
    const button = make("button", "hs-panel", this.group, { type: "button" });
    const title = make("span", "hs-title", button);
    const panel = {
      button,
      title: make("b", "", title, { dir: "auto" }),
      off: make("span", "hs-off", title),
      subtitle: make("span", "hs-sub", title, { dir: "auto" }),
      map: make("span", "hs-map", button, { "aria-hidden": "true" }),
    };
    panel.off.textContent = "off";
    panel.canvas = make("canvas", "", panel.map);
    panel.row = make("span", "hs-band", panel.map);
    panel.column = make("span", "hs-band", panel.map);
    button.addEventListener("click", () => this.look.component.setTriggerValue("select", { head: index }));
    panel.map.addEventListener("pointermove", (event) => this.move(event, index));
    panel.map.addEventListener("pointerleave", () => this.mark(null));
    return panel;
  }

  draw({ meta, arrays }) {
    const { look } = this;
    this.meta = meta;
    this.array = arrays.maps;
    const [heads, rows, columns] = arrays.maps.shape;
    Object.assign(this, { heads, rows, columns, block: meta.block || [1, 1] });
    this.queryLabels = meta.query_labels || [];
    this.keyLabels = meta.key_labels || [];
    // What the tooltip says of a token: its whole word, where the label is only a part of it.
    this.queryNames = meta.query_hovers || this.queryLabels;
    this.keyNames = meta.key_hovers || this.keyLabels;
    this.future = futureTest(meta, this.block);
    this.level = quantiser(meta);
    while (this.panels.length < heads) this.panels.push(this.panel(this.panels.length));
    while (this.panels.length > heads) this.panels.pop().button.remove();
    this.group.setAttribute("aria-label", meta.alt || `${heads} heads side by side`);
    this.layout();
    for (let head = 0; head < heads; head++) this.paint(head);
    this.caption();
    this.cell = null;
  }

  /** Sizes in CSS px: how many panels a row, how wide the labels, how large a cell. */
  layout() {
    const { look, heads, rows, columns } = this;
    const narrow = look.width < 520;
    const context = look.scratch.getContext("2d");
    context.font = `${LABEL_FONT}px ${look.font}`;
    const longest = (labels) =>
      labels.slice(0, 400).reduce((most, text) => Math.max(most, context.measureText(text).width), 0);
    this.labelWidth = Math.ceil(Math.min(longest(this.queryLabels), narrow ? 38 : 58)) + (this.queryLabels.length ? 5 : 0);
    this.labelHeight = Math.ceil(Math.min(longest(this.keyLabels), narrow ? 46 : 62)) + (this.keyLabels.length ? 6 : 0);
    // Wide enough that the tokens can be read where possible; then equally filled rows of panels.
    const wanted = Math.max(150, Math.min(232, this.labelWidth + columns * 11.5));
    const gap = narrow ? 10 : GAP;
    let across = Math.max(Math.min(2, heads), Math.min(heads, Math.floor((look.width + gap) / (wanted + gap))));
    across = Math.ceil(heads / Math.ceil(heads / across));
    this.across = across;
    const padding = narrow ? 5 : 8;
    this.panelWidth = Math.min(Math.floor((look.width - gap * (across - 1)) / across), heads === 1 ? 560 : 348);
    const room = this.panelWidth - 2 * padding - 2 - this.labelWidth;
    // Whole device pixels per cell keep all cells equal; where that would cost much of the room, the picture stretches.
    const snap = (size, count) => {
      const whole = (Math.floor((size * look.ratio) / count) * count) / look.ratio;
      return whole > 0.9 * size ? whole : Math.floor(size);
    };
    this.mapWidth = snap(room, columns);
    const square = (this.mapWidth / columns) * rows;
    this.mapHeight = rows === columns ? this.mapWidth : snap(Math.max(0.4 * room, Math.min(square, 1.4 * room)), rows);
    this.group.style.gridTemplateColumns = `repeat(${across}, ${this.panelWidth}px)`;
    this.group.style.gap = `${narrow ? 4 : 6}px ${gap}px`;
    this.group.style.setProperty("--hs-pad", `${padding}px`);
  }

  paint(head) {
    const { look, meta, rows, columns, labelWidth, labelHeight, mapWidth, mapHeight } = this;
    const panel = this.panels[head];
    const title = String((meta.titles || [])[head] ?? `H${head}`);
    const subtitle = String((meta.subtitles || [])[head] ?? "");
    const off = (meta.off || []).includes(head);
    const selected = meta.selected_head === head;
    panel.title.textContent = title;
    panel.subtitle.textContent = subtitle;
    panel.off.hidden = !off;
    panel.button.setAttribute("aria-label", [title, off && "off", subtitle, selected && "selected"].filter(Boolean).join(", "));
    panel.button.setAttribute("aria-current", String(selected));
    const context = canvasOf(panel.canvas, labelWidth + mapWidth + 1, TOP + mapHeight + labelHeight, look.ratio);
    context.translate(0, TOP);
    paintCells(
      look.scratch, this.array, head * rows * columns, rows, columns,
      Math.round(mapHeight * look.ratio), Math.round(mapWidth * look.ratio), look.table, this.level, this.future,
    );
    context.globalAlpha = off ? 0.5 : 1;
    context.drawImage(look.scratch, labelWidth, 0, mapWidth, mapHeight);
    context.globalAlpha = 0.6;
    if (off) hatch(context, labelWidth, 0, mapWidth, mapHeight, look.accent, 16, 1.5);
    context.strokeStyle = look.ink;
    context.globalAlpha = 0.18;
    context.lineWidth = 1;
    context.strokeRect(labelWidth + 0.5, 0.5, mapWidth - 1, mapHeight - 1);
    context.globalAlpha = 0.72;
    this.labels(context);
    context.globalAlpha = 1;
  }

  labels(context) {
    const { rows, columns, labelWidth, labelHeight, mapWidth, mapHeight, block, look } = this;
    context.font = `${LABEL_FONT}px ${look.font}`;
    context.fillStyle = look.ink;
    context.textBaseline = "middle";
    context.textAlign = "right"; // physical, whatever the text's direction
    const axis = (labels, count, size, positions, room, place) => {
      // All labels when they fit, else evenly spaced ones with air between them.
      const every = Math.max(1, Math.ceil(((count > 40 ? 14 : 10) * count) / size));
      for (let i = 0; i < count; i += every) {
        const text = labels[i * positions];
        if (text === undefined) continue;
        context.save();
        place(((i + 0.5) * size) / count);
        context.direction = RIGHT_TO_LEFT.test(text) ? "rtl" : "ltr";
        context.fillText(fitted(context, text, room - 5), 0, 0);
        context.restore();
      }
    };
    axis(this.queryLabels, rows, mapHeight, block[0], labelWidth, (at) => context.translate(labelWidth - 4, at));
    axis(this.keyLabels, columns, mapWidth, block[1], labelHeight, (at) => {
      context.translate(labelWidth + at, mapHeight + 4);
      context.rotate(-Math.PI / 2);
    });
  }

  caption() {
    const { meta, look, block } = this;
    const [low, high] = meta.range || [0, 1];
    const log = meta.scale === "log";
    this.low.textContent = log ? `≤ ${meta.log_floor || 1e-4}` : String(low);
    this.high.textContent = String(high);
    this.bar.style.background = `linear-gradient(to right, ${meta.palette[look.theme].join(", ")})`;
    const notes = [meta.caption || "rows look at columns"];
    if (log) notes.unshift("logarithmic colour");
    if (meta.causal) notes.push("blank: the future, closed");
    if (block[0] > 1 || block[1] > 1) notes.push(`each cell the max of a ${block[0]}×${block[1]} block`);
    this.note.textContent = notes.join(" · ");
  }

  find(event, head) {
    const box = this.panels[head].canvas.getBoundingClientRect();
    const x = event.clientX - box.left - this.labelWidth;
    const y = event.clientY - box.top - TOP;
    const key = Math.floor((x / this.mapWidth) * this.columns);
    const query = Math.floor((y / this.mapHeight) * this.rows);
    return key >= 0 && key < this.columns && query >= 0 && query < this.rows ? [query, key] : null;
  }

  move(event, head) {
    const cell = this.find(event, head);
    this.mark(cell);
    if (cell) this.look.showTip(...this.look.at(event), (tip) => this.fillTip(tip, head, ...cell));
  }

  value(head, query, key) {
    return this.array.values[(head * this.rows + query) * this.columns + key] * this.array.scale;
  }

  /** “she” → “engineer”  0.1234 */
  fillTip(tip, head, query, key) {
    const [bq, bk] = this.block;
    const pooled = bq > 1 || bk > 1;
    const end = (i, block, labels) => {
      const first = i * block;
      const last = Math.min((i + 1) * block, labels.length || Infinity) - 1;
      tip.append("“");
      bdi(labels[first] ?? String(first), tip);
      tip.append("”");
      if (pooled && last > first) {
        tip.append(" … “");
        bdi(labels[last] ?? String(last), tip);
        tip.append("”");
      }
      if (pooled) tip.append(last > first ? ` (${first}–${last})` : ` (${first})`);
    };
    end(query, bq, this.queryNames);
    tip.append(" → ");
    end(key, bk, this.keyNames);
    const value = make("b", "", tip);
    value.textContent = `  ${this.value(head, query, key).toFixed(4)}`;
    if (this.future && this.future(query, key)) tip.append(" · the future, closed");
    else if (pooled) tip.append(` · max of ${bq}×${bk} block`);
  }

  /** The same row and column in every panel, and every head's value at that cell: comparing is what the page is for. */
  mark(cell) {
    if (!cell) this.look.hideTip();
    const same = cell && this.cell ? cell[0] === this.cell[0] && cell[1] === this.cell[1] : cell === this.cell;
    if (same) return;
    this.cell = cell;
    const { labelWidth, mapWidth, mapHeight, rows, columns } = this;
    this.panels.forEach((panel, head) => {
      panel.button.dataset.marked = String(Boolean(cell));
      if (!cell) {
        panel.subtitle.textContent = String((this.meta.subtitles || [])[head] ?? "");
        return;
      }
      const [query, key] = cell;
      const h = mapHeight / rows;
      const w = mapWidth / columns;
      panel.row.style.cssText = `left:${labelWidth}px;top:${TOP + query * h}px;width:${mapWidth}px;height:${h}px`;
      panel.column.style.cssText = `left:${labelWidth + key * w}px;top:${TOP}px;width:${w}px;height:${mapHeight}px`;
      panel.subtitle.textContent = this.value(head, query, key).toFixed(4);
    });
  }

  key(event) {
    const { across } = this;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[event.key];
    const at = this.panels.findIndex((panel) => panel.button.contains(event.target));
    if (step === undefined || at < 0) return;
    const next = this.panels[at + step];
    if (next) next.button.focus();
    event.preventDefault();
    event.stopPropagation();
  }
}
