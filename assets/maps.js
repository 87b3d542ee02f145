// Draws attention maps on canvases: `overview` (every head a thumbnail) and `layer` (one layer's heads side by side).
// Stands after common.js in one module.

export default function headscope(component) {
  return show(component, { overview: Overview, layer: Layer });
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
    this.sketch(new CanvasPen(context, look, look.ratio));
    const notes = arrays.values ? [`ring: ${meta.values_label || "value"} ${(meta.values_range || [0, 1]).join("–")}`] : [];
    look.caption(meta, notes);
    this.semantics();
    this.outline();
  }

  sketch(pen) {
    const { look, meta, arrays, layers, heads } = this;
    const [, , rows, columns] = arrays.maps.shape;
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
          Math.floor(h * pen.ratio), Math.floor(w * pen.ratio), look.table, level, blank,
        );
        pen.image(look.scratch, x, y, w, h, { radius, alpha: off ? 0.35 : 1 });
        if (off) pen.hatch(x, y, w, h, { stroke: look.accent, spacing: 5, width: 1.6 });
        const ring = (stroke, width, alpha) =>
          pen.box(x - 0.5, y - 0.5, w + 1, h + 1, { stroke, width, alpha, radius: radius + 0.5 });
        ring(look.ink, 1, 0.16);
        if (arrays.values) {
          const share = (arrays.values.values[layer * heads + head] - low) / (high - low || 1);
          ring(look.accent, this.w < 20 ? 1.5 : 2, Math.max(0, Math.min(1, share || 0)));
        }
      }
    }
    this.axes(pen);
  }

  axes(pen) {
    const every = this.h + this.gap < 12 ? 2 : 1;
    for (let layer = 0; layer < this.layers; layer += every) {
      const y = this.top + layer * (this.h + this.gap) + this.h / 2 + 0.5;
      pen.text(`L${layer}`, this.left - 6, y, { align: "right", alpha: 0.66 });
    }
    const step = Math.ceil((this.look.longest([`H${this.heads - 1}`], 11) + 3) / (this.w + this.gap));
    for (let head = 0; head < this.heads; head += step) {
      const x = this.left + head * (this.w + this.gap) + this.w / 2;
      pen.text(`H${head}`, x, 7, { align: "center", alpha: 0.66 });
    }
  }

  picture() {
    const { meta } = this;
    const ring = this.arrays.values && `rings: ${meta.values_label || "value"}, ${(meta.values_range || [0, 1]).join(" to ")}`;
    return {
      width: this.canvasWidth,
      height: this.canvasHeight,
      title: `All ${this.layers * this.heads} heads`,
      notes: [
        "thumbnails: layers down from L0, heads across from H0; in each, rows (queries) look at columns (keys)",
        [ring, (meta.off || []).length && "hatched: switched off", meta.note].filter(Boolean).join(" · "),
      ],
      draw: (pen) => {
        this.sketch(pen);
        if (!meta.selected) return;
        const [x, y, w, h] = this.box(meta.selected);
        pen.box(x - 1.25, y - 1.25, w + 2.5, h + 2.5, { stroke: this.look.chosen, width: 2.5, radius: Math.min(4, this.w / 6) + 1 });
      },
    };
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
    this.look.send("select", { layer: place[0], head: place[1] });
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

class Layer {
  constructor(look) {
    this.kind = "layer";
    this.look = look;
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
    button.addEventListener("click", () => this.look.send("select", { head: index }));
    panel.map.addEventListener("pointermove", (event) => this.move(event, index));
    panel.map.addEventListener("pointerleave", () => this.point(null));
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
    look.caption(meta, this.notes());
    this.cell = null;
  }

  /** Sizes in CSS px: how many panels a row, how wide the labels, how large a cell. */
  layout() {
    const { look, heads, rows, columns } = this;
    const narrow = look.width < 520;
    const longest = (labels) => look.longest(labels, LABEL_FONT);
    this.labelWidth = Math.ceil(Math.min(longest(this.queryLabels), narrow ? 38 : 58)) + (this.queryLabels.length ? 5 : 0);
    this.labelHeight = Math.ceil(Math.min(longest(this.keyLabels), narrow ? 46 : 62)) + (this.keyLabels.length ? 6 : 0);
    // Wide enough that the tokens can be read where possible; then equally filled rows of panels.
    const wanted = Math.max(150, Math.min(232, this.labelWidth + columns * 11.5));
    const gap = narrow ? 10 : GAP;
    let across = Math.max(Math.min(2, heads), Math.min(heads, Math.floor((look.width + gap) / (wanted + gap))));
    across = Math.ceil(heads / Math.ceil(heads / across));
    this.across = across;
    const padding = narrow ? 5 : 8;
    this.gap = gap;
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
    const { look, meta, labelWidth, labelHeight, mapWidth, mapHeight } = this;
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
    const pen = new CanvasPen(context, look, look.ratio);
    pen.at(0, TOP, () => this.sketch(pen, head));
  }

  sketch(pen, head) {
    const { look, meta, rows, columns, labelWidth, mapWidth, mapHeight } = this;
    const off = (meta.off || []).includes(head);
    paintCells(
      look.scratch, this.array, head * rows * columns, rows, columns,
      Math.round(mapHeight * pen.ratio), Math.round(mapWidth * pen.ratio), look.table, this.level, this.future,
    );
    pen.image(look.scratch, labelWidth, 0, mapWidth, mapHeight, { alpha: off ? 0.5 : 1 });
    if (off) pen.hatch(labelWidth, 0, mapWidth, mapHeight, { stroke: look.accent, spacing: 16, width: 1.5, alpha: 0.6 });
    pen.box(labelWidth + 0.5, 0.5, mapWidth - 1, mapHeight - 1, { stroke: look.ink, alpha: 0.18 });
    this.labels(pen);
  }

  labels(pen) {
    const { rows, columns, labelWidth, labelHeight, mapWidth, mapHeight, block } = this;
    const axis = (labels, count, size, positions, room, place) => {
      // All labels when they fit, else evenly spaced ones with air between them.
      const every = Math.max(1, Math.ceil(((count > 40 ? 14 : 10) * count) / size));
      for (let i = 0; i < count; i += every) {
        const text = labels[i * positions];
        if (text === undefined) continue;
        const [x, y, turn] = place(((i + 0.5) * size) / count);
        // physical alignment, whatever the text's direction
        pen.text(text, x, y, { size: LABEL_FONT, align: "right", alpha: 0.72, turn, room: room - 5 });
      }
    };
    axis(this.queryLabels, rows, mapHeight, block[0], labelWidth, (at) => [labelWidth - 4, at, 0]);
    axis(this.keyLabels, columns, mapWidth, block[1], labelHeight, (at) => [labelWidth + at, mapHeight + 4, -90]);
  }

  notes() {
    const { meta, block } = this;
    const notes = [meta.caption || "rows look at columns"];
    if (meta.causal) notes.push("blank: the future, closed");
    if (block[0] > 1 || block[1] > 1) notes.push(`each cell the max of a ${block[0]}×${block[1]} block`);
    return notes;
  }

  picture() {
    const { meta, heads, across, gap, labelWidth, mapWidth, mapHeight, labelHeight } = this;
    const width = labelWidth + mapWidth + 1;
    const height = 20 + TOP + mapHeight + labelHeight + 10;
    return {
      width: across * (width + gap) - gap,
      height: Math.ceil(heads / across) * height - 10,
      notes: [[...this.notes(), meta.note].filter(Boolean).join(" · ")],
      draw: (pen) => {
        for (let head = 0; head < heads; head++) {
          pen.at((head % across) * (width + gap), Math.floor(head / across) * height, () => {
            const title = String((meta.titles || [])[head] ?? `H${head}`);
            const off = (meta.off || []).includes(head) ? "off · " : "";
            const room = width - Math.min(width / 2, title.length * 8) - 6;
            pen.text(title, 0, 8, { size: 13, weight: 650, room: width / 2 });
            const subtitle = off + String((meta.subtitles || [])[head] ?? "");
            if (subtitle) pen.text(subtitle, width, 8, { size: 12, align: "right", alpha: 0.7, room });
            pen.at(0, 20 + TOP, () => this.sketch(pen, head));
          });
        }
      },
    };
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
    this.point(cell);
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
    value.textContent = `  ${sayNumber(this.value(head, query, key))}`;
    if (this.future && this.future(query, key)) tip.append(" · the future, closed");
    else if (pooled) tip.append(` · max of ${bq}×${bk} block`);
  }

  point(cell) {
    const changed = String(cell) !== String(this.cell);
    this.mark(cell);
    const [bq, bk] = this.block;
    if (changed) this.look.share({ query: cell ? cell[0] * bq : null, key: cell ? cell[1] * bk : null });
  }

  /** Another view points at a pair of positions; what it points at alone is left to it. */
  shared({ query, key }) {
    const [bq, bk] = this.block;
    const cell = [Math.floor(query / bq), Math.floor(key / bk)];
    const fits = Number.isInteger(query) && Number.isInteger(key) && cell[0] < this.rows && cell[1] < this.columns;
    this.mark(fits ? cell : null);
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
