// Draws one head's map, large and exact: `matrix`. Zoom and pan to single cells, a keyboard cursor, a chosen cell.
// Stands after common.js in one module.
//
// How it stays fast at 2,048 x 2,048: a pyramid of maps, each half the size of the one before, every cell the maximum of
// four (of the largest magnitude where the scale has two sides). Each level is coloured once into its own canvas; a frame
// is one drawImage from the level whose cells are just not smaller than a device pixel.

export default function headscope(component) {
  return show(component, { matrix: Matrix });
}

const LABEL = 11; // px
const MOST_SIZE = 640; // px, a map's longer side
const CELL_MOST = 64; // px: how large a cell can be zoomed
const NUMBER_ROOM = 34; // px: cells as wide as this have their value written in
const MARK = "headscope-mark"; // mark.js: which cell is chosen
const NUMBER_LEAST = 0.005; // smaller values would be written as .00

class Matrix {
  constructor(look) {
    this.kind = "matrix";
    this.look = look;
    this.zoomOut = tool("−", "Zoom out", look.own, () => this.zoomBy(1 / 1.6));
    this.zoomIn = tool("+", "Zoom in", look.own, () => this.zoomBy(1.6));
    this.fitAll = tool("fit", "Show the whole map", look.own, () => this.moveTo(1, 0, 0));
    this.box = make("div", "hs-matrix", look.stage, {
      tabindex: "0", role: "application", "aria-roledescription": "attention map",
    });
    this.canvas = make("canvas", "", this.box, { "aria-hidden": "true" });
    this.over = make("canvas", "hs-over", this.box, { "aria-hidden": "true" });
    // What depends on the zoom stands below: a legend that grows or shrinks would move the map under the pointer.
    this.where = make("div", "hs-where", look.stage);
    this.said = make("div", "hs-sr", look.stage, { "aria-live": "polite", role: "status" });
    this.hover = null; // [query, key] under the pointer, or pointed at in another view
    this.cursor = [0, 0];
    this.chosen = null;
    this.zoom = 1;
    this.q0 = 0; // the top left corner, in cells
    this.k0 = 0;
    this.pointers = new Map();
    this.levels = [];
    const on = (name, handle, options) => this.box.addEventListener(name, handle, options);
    on("pointerdown", (event) => this.down(event));
    on("pointermove", (event) => this.move(event));
    on("pointerup", (event) => this.up(event));
    on("pointercancel", (event) => this.release(event));
    on("pointerleave", (event) => event.pointerType !== "touch" && this.point(null)); // a tap's answer stays
    on("dblclick", (event) => this.zoomBy(event.shiftKey ? 0.4 : 2.5, ...this.position(event)));
    on("wheel", (event) => this.wheel(event), { passive: false });
    on("keydown", (event) => this.key(event));
    on("focus", () => this.overlay());
    on("blur", () => {
      look.hideTip();
      this.overlay();
    });
    this.marked = ({ detail }) => {
      if (!this.meta || detail.name !== this.meta.mark) return;
      this.chosen = this.inside(detail.cell);
      this.overlay();
    };
    window.addEventListener(MARK, this.marked);
  }

  destroy() {
    cancelAnimationFrame(this.frame);
    window.removeEventListener(MARK, this.marked);
  }

  draw({ meta, arrays }) {
    const { look } = this;
    this.meta = meta;
    const same = this.array && arrays.map.shape.every((n, i) => n === this.array.shape[i]);
    if (arrays.map !== this.array || this.theme !== look.colours) this.levels = [];
    this.array = arrays.map;
    this.theme = look.colours;
    [this.rows, this.columns] = arrays.map.shape;
    this.queryLabels = meta.query_labels || [];
    this.keyLabels = meta.key_labels || [];
    this.queryNames = meta.query_hovers || this.queryLabels;
    this.keyNames = meta.key_hovers || this.keyLabels;
    this.future = futureTest(meta, [1, 1]);
    this.level = quantiser(meta);
    this.shades = shades(look.colours);
    this.chosen = this.inside(window.headscopeMarks?.get(meta.mark));
    if (!same) {
      Object.assign(this, { zoom: 1, q0: 0, k0: 0, hover: null });
      this.cursor = this.chosen ? [...this.chosen] : [0, 0];
    }
    this.box.setAttribute("aria-label", meta.alt || `Attention map, ${this.rows} queries by ${this.columns} keys`);
    this.box.setAttribute("aria-description", "Arrows move by cell, with Shift by 10; plus, minus and 0 zoom; Enter chooses.");
    this.layout();
    this.moveTo(this.zoom, this.q0, this.k0, true);
    // Python's answer to a click must not take away what is being read
    if (same && this.hover && this.tipAt) look.showTip(...this.tipAt, (tip) => this.fillTip(tip, this.hover));
  }

  /** A cell that this map has, or null. */
  inside(cell) {
    const here = cell && cell[0] >= 0 && cell[0] < this.rows && cell[1] >= 0 && cell[1] < this.columns;
    return here ? [...cell] : null;
  }

  /** Sizes in CSS px. */
  layout() {
    const { look, rows, columns } = this;
    const narrow = look.width < 480;
    const most = narrow ? 58 : 92;
    this.numbered = Math.max(rows, columns) > 60;
    const axis = (labels, count) => {
      const numbers = this.numbered ? String(count).length * 7 + 5 : 0; // positions stand beside thinned labels
      return labels.length ? Math.ceil(Math.min(look.longest(labels, LABEL) + numbers, most)) + 8 : 14;
    };
    this.left = axis(this.queryLabels, rows) + 15; // 15: the axis' name
    this.bottom = axis(this.keyLabels, columns) + 15;
    this.top = 5;
    this.right = 9;
    const room = Math.max(80, look.width - this.left - this.right);
    const size = Math.min(room, MOST_SIZE);
    const longer = Math.max(rows, columns);
    // Whole device pixels per cell keep all cells equal; where that would cost much of the room, the picture stretches.
    const snap = (length, count) => {
      const whole = (Math.floor((length * look.ratio) / count) * count) / look.ratio;
      return whole > 0.9 * length ? whole : Math.floor(length);
    };
    this.mapWidth = columns < rows ? snap(Math.max(size * 0.4, (size * columns) / longer), columns) : snap(size, columns);
    this.mapHeight =
      rows === columns ? this.mapWidth
      : rows < columns ? snap(Math.max(Math.min(size * 0.4, 26 * rows), (size * rows) / longer), rows)
      : snap(size, rows);
    this.width = this.left + this.mapWidth + this.right;
    this.height = this.top + this.mapHeight + this.bottom;
    this.cellWidth = this.mapWidth / columns; // at zoom 1
    this.cellHeight = this.mapHeight / rows;
    this.zoomMost = Math.max(2, CELL_MOST / Math.min(this.cellWidth, this.cellHeight));
    this.box.dataset.map = [this.left, this.top, this.mapWidth, this.mapHeight].join(" "); // where in the box the map is
    this.box.style.width = `${this.width}px`;
    this.box.style.height = `${this.height}px`;
  }

  // ----------------------------------------------------------------------------------------------------- zoom and pan

  /** Show the part of the map whose top left corner is (q0, k0), enlarged. */
  moveTo(zoom, q0, k0, now) {
    this.zoom = Math.max(1, Math.min(this.zoomMost, zoom));
    this.q0 = Math.max(0, Math.min(this.rows - this.rows / this.zoom, q0));
    this.k0 = Math.max(0, Math.min(this.columns - this.columns / this.zoom, k0));
    this.zoomIn.disabled = this.zoom >= this.zoomMost;
    this.zoomOut.disabled = this.fitAll.disabled = this.zoom <= 1;
    this.box.dataset.zoom = this.zoom.toFixed(3);
    this.box.dataset.zoomed = String(this.zoom > 1);
    cancelAnimationFrame(this.frame);
    if (now) this.paint();
    else this.frame = requestAnimationFrame(() => this.paint());
  }

  /** Enlarge around a point of the map (px in it; without one its middle, or the cursor where that has the focus). */
  zoomBy(factor, x, y) {
    if (x === undefined) {
      const focused = this.box.matches(":focus-visible") && this.isVisible(this.cursor);
      const [bx, by, w, h] = this.cellBox(focused ? this.cursor : [0, 0]);
      x = focused ? bx + w / 2 : this.mapWidth / 2;
      y = focused ? by + h / 2 : this.mapHeight / 2;
    }
    const key = this.k0 + x / (this.cellWidth * this.zoom);
    const query = this.q0 + y / (this.cellHeight * this.zoom);
    const zoom = Math.max(1, Math.min(this.zoomMost, this.zoom * factor));
    this.moveTo(zoom, query - y / (this.cellHeight * zoom), key - x / (this.cellWidth * zoom));
  }

  isVisible([query, key]) {
    return (
      query >= this.q0 - 1e-6 && query + 1 <= this.q0 + this.rows / this.zoom + 1e-6 &&
      key >= this.k0 - 1e-6 && key + 1 <= this.k0 + this.columns / this.zoom + 1e-6
    );
  }

  /** Move just so far that the cell can be seen. */
  reveal([query, key]) {
    const [high, wide] = [this.rows / this.zoom, this.columns / this.zoom];
    const q0 = Math.min(Math.max(this.q0, query + 1 - high), query);
    const k0 = Math.min(Math.max(this.k0, key + 1 - wide), key);
    if (q0 !== this.q0 || k0 !== this.k0) this.moveTo(this.zoom, q0, k0, true);
  }

  /** A cell's place in the map: x, y, width, height in px. */
  cellBox([query, key]) {
    const w = this.cellWidth * this.zoom;
    const h = this.cellHeight * this.zoom;
    return [(key - this.k0) * w, (query - this.q0) * h, w, h];
  }

  // --------------------------------------------------------------------------------------------------------- painting

  value(query, key) {
    return this.array.values[query * this.columns + key] * this.array.scale + this.array.base;
  }

  /** Level n of the pyramid: values as they came, each cell the maximum of 2^n x 2^n positions. */
  pyramid(n) {
    const { levels, meta } = this;
    if (!levels.length) {
      const { values, scale, base } = this.array;
      levels.push({ values, rows: this.rows, columns: this.columns, zero: (0 - base) / scale });
    }
    while (levels.length <= n) {
      const from = levels[levels.length - 1];
      const rows = Math.ceil(from.rows / 2);
      const columns = Math.ceil(from.columns / 2);
      const values = new from.values.constructor(rows * columns);
      const { zero } = from;
      const stronger = meta.diverging
        ? (a, b) => (Math.abs(a - zero) >= Math.abs(b - zero) || b !== b ? a : b)
        : (a, b) => (a >= b || b !== b ? a : b); // b !== b: NaN, a cell without a value
      for (let q = 0, i = 0; q < rows; q++) {
        const upper = 2 * q * from.columns;
        const lower = 2 * q + 1 < from.rows ? upper + from.columns : upper;
        for (let k = 0; k < columns; k++, i++) {
          const left = 2 * k;
          const right = left + 1 < from.columns ? left + 1 : left;
          const v = from.values;
          values[i] = stronger(stronger(v[upper + left], v[upper + right]), stronger(v[lower + left], v[lower + right]));
        }
      }
      levels.push({ values, rows, columns, zero });
    }
    return levels[n];
  }

  /** Level n in colour, made once. */
  picturedLevel(n) {
    const level = this.pyramid(n);
    if (level.canvas) return level.canvas;
    const { look } = this;
    const { scale, base } = this.array;
    const { values, rows, columns } = level;
    const canvas = document.createElement("canvas");
    canvas.width = columns;
    canvas.height = rows;
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    const pixels = new Uint32Array(image.data.buffer);
    const future = futureTest(this.meta, [2 ** n, 2 ** n]);
    let table = null;
    if (values instanceof Uint16Array && values.length > 65536) {
      table = Uint32Array.from({ length: 65536 }, (_, i) => look.table[this.level(i * scale + base)]);
    }
    for (let q = 0, i = 0; q < rows; q++) {
      for (let k = 0; k < columns; k++, i++) {
        const v = values[i];
        if (v !== v || (future && future(q, k))) pixels[i] = BLANK;
        else pixels[i] = table ? table[v] : look.table[this.level(v * scale + base)];
      }
    }
    context.putImageData(image, 0, 0);
    level.canvas = canvas;
    return canvas;
  }

  /** The coarsest detail that loses nothing at this size: cells at least one device pixel wide and high. */
  depth(ratio) {
    const cell = Math.min(this.cellWidth, this.cellHeight) * this.zoom * ratio;
    return cell >= 1 ? 0 : Math.min(Math.ceil(-Math.log2(cell)), 12);
  }

  paint() {
    const { look } = this;
    const start = performance.now();
    const context = canvasOf(this.canvas, this.width, this.height, look.ratio);
    this.sketch(new CanvasPen(context, look, look.ratio));
    this.overlay();
    const depth = this.depth(look.ratio);
    const notes = [this.meta.caption || "rows look at columns"];
    if (this.meta.off) notes.unshift("switched off");
    if (this.meta.causal) notes.push("blank: the future, closed");
    look.caption(this.meta, notes);
    const where = [];
    if (depth) where.push(`each point the ${this.meta.diverging ? "largest difference" : "maximum"} of ${2 ** depth}×${2 ** depth} cells, zoom in for each`);
    if (this.showsNumbers()) where.push(`numbers from ${NUMBER_LEAST}`);
    if (this.zoom > 1) where.push(this.window());
    this.where.textContent = where.join(" · ");
    this.box.dataset.block = String(2 ** depth);
    this.box.dataset.milliseconds = (performance.now() - start).toFixed(2);
  }

  /** "queries 120–180, keys 0–60" */
  window() {
    const span = (from, count, positions) => {
      const first = Math.floor(from + 1e-6);
      const last = Math.min(Math.ceil(from + count - 1e-6), positions) - 1;
      return `${first}–${last}`;
    };
    return `showing queries ${span(this.q0, this.rows / this.zoom, this.rows)}, keys ${span(this.k0, this.columns / this.zoom, this.columns)}`;
  }

  showsNumbers() {
    return this.cellWidth * this.zoom >= NUMBER_ROOM && this.cellHeight * this.zoom >= 15;
  }

  sketch(pen) {
    const { look, left, top, mapWidth, mapHeight } = this;
    pen.at(left, top, () => {
      this.cells(pen);
      if (this.meta.off) pen.hatch(0, 0, mapWidth, mapHeight, { stroke: look.accent, spacing: 20, width: 1.5, alpha: 0.6 });
      if (this.showsNumbers()) this.numbers(pen);
    }, mapWidth, mapHeight);
    pen.box(left - 0.5, top - 0.5, mapWidth + 1, mapHeight + 1, { stroke: look.ink, alpha: 0.2 });
    this.labels(pen);
  }

  cells(pen) {
    const { rows, columns, zoom, q0, k0 } = this;
    const depth = this.depth(pen.ratio);
    const block = 2 ** depth;
    const picture = this.picturedLevel(depth);
    // whole cells of the level that reach into the window, at their exact places; what stands out is clipped
    const y0 = Math.floor(q0 / block);
    const x0 = Math.floor(k0 / block);
    const y1 = Math.min(picture.height, Math.ceil((q0 + rows / zoom) / block));
    const x1 = Math.min(picture.width, Math.ceil((k0 + columns / zoom) / block));
    const w = this.cellWidth * zoom;
    const h = this.cellHeight * zoom;
    const place = [(x0 * block - k0) * w, (y0 * block - q0) * h, (x1 - x0) * block * w, (y1 - y0) * block * h];
    if (pen.context) {
      pen.context.globalAlpha = this.meta.off ? 0.5 : 1;
      pen.context.drawImage(picture, x0, y0, x1 - x0, y1 - y0, ...place);
      pen.context.globalAlpha = 1;
      return;
    }
    const part = document.createElement("canvas"); // an SVG file carries only what it shows
    part.width = x1 - x0;
    part.height = y1 - y0;
    part.getContext("2d").drawImage(picture, -x0, -y0);
    pen.image(part, ...place, { alpha: this.meta.off ? 0.5 : 1 });
  }

  numbers(pen) {
    const { rows, columns, zoom, q0, k0 } = this;
    const wide = this.cellWidth * zoom;
    const size = wide < 42 ? 10.5 : 11.5;
    for (let query = Math.floor(q0); query < Math.min(rows, q0 + rows / zoom); query++) {
      for (let key = Math.floor(k0); key < Math.min(columns, k0 + columns / zoom); key++) {
        const value = this.value(query, key);
        if (!(Math.abs(value) >= NUMBER_LEAST) || (this.future && this.future(query, key))) continue;
        const [x, y, w, h] = this.cellBox([query, key]);
        const colour = this.shades.text[this.level(value)];
        const digits = value.toFixed(wide < 50 ? 2 : 3);
        const text = Math.abs(value) < 1 ? digits.replace("0.", ".") : digits;
        pen.text(text, x + w / 2, y + h / 2, { size, align: "center", colour });
      }
    }
  }

  labels(pen) {
    const { look, left, top, mapWidth, mapHeight, bottom, zoom } = this;
    const { query_positions: queryPositions, key_positions: keyPositions } = this.meta;
    const axis = (labels, count, from, cell, length, room, positions, place) => {
      const every = thinning(cell, labels.length ? 14 : 24);
      const numbered = this.numbered || !labels.length;
      for (let i = Math.ceil(Math.max(0, from - 0.5) / every) * every; i < count; i += every) {
        const at = (i + 0.5 - from) * cell;
        if (at < 0 || at > length) continue;
        const [x, y, turn] = place(at);
        const position = String(positions ? positions[i] : i);
        const label = labels[i] === undefined ? "" : String(labels[i]);
        let space = room;
        if (numbered) {
          pen.text(position, x, y, { size: 9.5, align: "right", alpha: 0.5, turn });
          const used = look.longest([position], 9.5) + 5;
          space -= used;
          const [dx, dy] = turn ? [0, used] : [-used, 0];
          if (label) pen.text(label, x + dx, y + dy, { size: LABEL, align: "right", alpha: 0.78, turn, room: space });
        } else if (label) {
          pen.text(label, x, y, { size: LABEL, align: "right", alpha: 0.78, turn, room: space });
        }
      }
    };
    axis(this.queryLabels, this.rows, this.q0, this.cellHeight * zoom, mapHeight, left - 22, queryPositions, (at) => [left - 6, top + at, 0]);
    axis(this.keyLabels, this.columns, this.k0, this.cellWidth * zoom, mapWidth, bottom - 22, keyPositions, (at) => [left + at, top + mapHeight + 6, -90]);
    const name = { size: 10.5, alpha: 0.55, align: "center" };
    pen.text(this.meta.query_axis || "query, looks at", 7, top + mapHeight / 2, { ...name, turn: -90 });
    pen.text(this.meta.key_axis || "key, looked at", left + mapWidth / 2, top + mapHeight + bottom - 7, name);
  }

  /** Crosshair, chosen cell, cursor, what of the map is shown: on their own canvas, so that they cost no repaint. */
  overlay() {
    if (!this.meta) return;
    if (this.chosen) this.box.dataset.chosen = this.chosen.join(" ");
    else delete this.box.dataset.chosen;
    const { look, left, top, mapWidth, mapHeight } = this;
    const context = canvasOf(this.over, this.width, this.height, look.ratio);
    const pen = new CanvasPen(context, look, look.ratio);
    const outline = (cell, stroke, width, dash) => {
      const [x, y, w, h] = this.cellBox(cell);
      const grow = Math.max(0, (5 - Math.min(w, h)) / 2); // a ring around what is too small to be outlined
      pen.box(x - grow, y - grow, w + 2 * grow, h + 2 * grow, { stroke: look.page, width: width + 2, alpha: 0.8 });
      pen.box(x - grow, y - grow, w + 2 * grow, h + 2 * grow, { stroke, width, dash });
    };
    const focused = this.box.matches(":focus-visible");
    pen.at(left, top, () => {
      const mark = this.hover || (focused ? this.cursor : null);
      if (mark) {
        const [x, y, w, h] = this.cellBox(mark);
        const band = { stroke: look.accent, alpha: 0.75 };
        if (mark[0] >= 0) pen.box(-1, y, mapWidth + 2, h, band);
        if (mark[1] >= 0) pen.box(x, -1, w, mapHeight + 2, band);
      }
      if (this.chosen) outline(this.chosen, look.accent, 2);
      if (focused) outline(this.cursor, look.ink, 2, [3, 2]);
      if (this.hover && this.hover[0] >= 0 && this.hover[1] >= 0) outline(this.hover, look.ink, 1.5);
    }, mapWidth, mapHeight);
    const mark = this.hover || (focused ? this.cursor : null);
    if (mark) this.chips(pen, mark);
    if (this.zoom > 1) this.guides(pen);
  }

  /** The marked row's and column's own labels, also where the axis has thinned them out. */
  chips(pen, [query, key]) {
    const { look, left, top, mapWidth, mapHeight, bottom } = this;
    const [x, y, w, h] = this.cellBox([query, key]);
    const style = { size: LABEL, weight: 650, align: "right" };
    const chip = (text, at, room, length, isRow) => {
      if (text === undefined || at < 0 || at > length) return;
      if (isRow) {
        pen.box(15, top + at - 8, left - 17, 16, { fill: look.page, radius: 3 });
        pen.text(text, left - 6, top + at, { ...style, room });
      } else {
        pen.box(left + at - 10, top + mapHeight + 5, 20, bottom - 20, { fill: look.page, radius: 3 });
        pen.text(text, left + at, top + mapHeight + 6, { ...style, room, turn: -90 });
      }
    };
    const name = (i, labels, positions) => {
      const position = positions ? positions[i] : i;
      if (labels[i] === undefined) return String(position);
      return this.numbered ? `${labels[i]} ${position}` : String(labels[i]);
    };
    if (query >= 0) chip(name(query, this.queryLabels, this.meta.query_positions), y + h / 2, left - 22, mapHeight, true);
    if (key >= 0) chip(name(key, this.keyLabels, this.meta.key_positions), x + w / 2, bottom - 22, mapWidth, false);
  }

  /** Where in the whole map the window is: two thin bars, and a small map that can be clicked. */
  guides(pen) {
    const { look, left, top, mapWidth, mapHeight, rows, columns, zoom } = this;
    const track = { fill: look.ink, alpha: 0.1, radius: 2 };
    const thumb = { fill: look.ink, alpha: 0.5, radius: 2 };
    const x = left + mapWidth + 4;
    pen.box(x, top, 4, mapHeight, track);
    pen.box(x, top + (this.q0 / rows) * mapHeight, 4, Math.max(4, mapHeight / zoom), thumb);
    pen.box(left, top + mapHeight + 1.5, mapWidth, 3, track);
    pen.box(left + (this.k0 / columns) * mapWidth, top + mapHeight + 1.5, Math.max(4, mapWidth / zoom), 3, thumb);
    this.mini = null;
    if (Math.max(rows, columns) < 48) return;
    const size = Math.min(96, mapWidth / 3.2);
    const scale = size / Math.max(mapWidth, mapHeight);
    const [w, h] = [mapWidth * scale, mapHeight * scale];
    this.mini = [left + mapWidth - w - 8, top + 8, w, h];
    const cell = Math.min(w / columns, h / rows) * look.ratio;
    const depth = cell >= 1 ? 0 : Math.ceil(-Math.log2(cell));
    const picture = this.picturedLevel(depth);
    const [mx, my] = this.mini;
    pen.box(mx - 3, my - 3, w + 6, h + 6, { fill: look.page, radius: 5 });
    pen.box(mx - 3, my - 3, w + 6, h + 6, { stroke: look.ink, alpha: 0.35, radius: 5 });
    pen.image(picture, mx, my, w, h);
    pen.box(mx + (this.k0 / columns) * w, my + (this.q0 / rows) * h, Math.max(3, w / zoom), Math.max(3, h / zoom), {
      stroke: look.accent, width: 2,
    });
  }

  picture() {
    const { meta } = this;
    const depth = this.depth(3);
    return {
      width: this.width,
      height: this.height,
      notes: [
        [
          meta.caption || "rows look at columns", meta.causal && "blank: the future, closed",
          depth && `each point the maximum of ${2 ** depth}×${2 ** depth} cells`,
          this.zoom > 1 && `${this.window()} of ${this.rows} × ${this.columns}`, meta.note,
        ].filter(Boolean).join(" · "),
      ],
      draw: (pen) => {
        this.sketch(pen);
        if (!this.chosen) return;
        pen.at(this.left, this.top, () => {
          pen.box(...this.cellBox(this.chosen), { stroke: this.look.accent, width: 2 });
        }, this.mapWidth, this.mapHeight);
      },
    };
  }

  // ---------------------------------------------------------------------------------------------- pointer and keyboard

  /** Where in the map (px) an event is. */
  position(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left - this.left, event.clientY - box.top - this.top];
  }

  find(event) {
    const [x, y] = this.position(event);
    if (x < 0 || y < 0 || x >= this.mapWidth || y >= this.mapHeight) return null;
    const key = Math.floor(this.k0 + x / (this.cellWidth * this.zoom));
    const query = Math.floor(this.q0 + y / (this.cellHeight * this.zoom));
    return query < this.rows && key < this.columns ? [query, key] : null;
  }

  inMini(event) {
    if (!this.mini || this.zoom <= 1) return null;
    const [x, y, w, h] = this.mini;
    const [px, py] = this.position(event);
    const at = [(px + this.left - x) / w, (py + this.top - y) / h];
    return at.every((share) => share >= 0 && share <= 1) ? at : null;
  }

  jump([x, y]) {
    const [high, wide] = [this.rows / this.zoom, this.columns / this.zoom];
    this.moveTo(this.zoom, y * this.rows - high / 2, x * this.columns - wide / 2);
  }

  down(event) {
    if (event.button !== 0) return;
    const mini = this.inMini(event);
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    this.gesture = { mini: Boolean(mini), moved: false, from: [event.clientX, event.clientY], q0: this.q0, k0: this.k0 };
    if (mini) this.jump(mini);
    if (this.pointers.size === 2) {
      this.gesture.pinch = this.spread();
      this.gesture.moved = true;
    }
  }

  /** Two fingers: their distance, and the point between them in the map. */
  spread() {
    const [[ax, ay], [bx, by]] = [...this.pointers.values()];
    const middle = this.position({ clientX: (ax + bx) / 2, clientY: (ay + by) / 2 });
    return { distance: Math.hypot(ax - bx, ay - by), middle };
  }

  move(event) {
    const { gesture } = this;
    this.last = { clientX: event.clientX, clientY: event.clientY };
    if (gesture && this.pointers.has(event.pointerId)) {
      this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
      if (gesture.pinch && this.pointers.size === 2) {
        const now = this.spread();
        this.zoomBy(now.distance / (gesture.pinch.distance || 1), ...now.middle);
        gesture.pinch = now;
        return;
      }
      if (gesture.mini) {
        const mini = this.inMini(event);
        if (mini) this.jump(mini);
        return;
      }
      const [dx, dy] = [event.clientX - gesture.from[0], event.clientY - gesture.from[1]];
      if (!gesture.moved && Math.hypot(dx, dy) > 4) {
        gesture.moved = true;
        if (this.zoom > 1) {
          this.box.setPointerCapture(event.pointerId);
          this.box.dataset.dragged = "true";
        }
      }
      if (gesture.moved && this.zoom > 1) {
        const w = this.cellWidth * this.zoom;
        const h = this.cellHeight * this.zoom;
        this.point(null);
        this.moveTo(this.zoom, gesture.q0 - dy / h, gesture.k0 - dx / w);
        return;
      }
    }
    this.point(this.inMini(event) ? null : this.find(event), event);
  }

  up(event) {
    const { gesture } = this;
    this.release(event);
    if (!gesture || gesture.moved || gesture.mini || event.button !== 0) return;
    const cell = this.find(event);
    if (!cell) return;
    this.point(cell, event);
    const again = this.chosen && cell[0] === this.chosen[0] && cell[1] === this.chosen[1];
    if (again && event.timeStamp - this.chosenAt < 500) return; // the second click of a double click
    this.chosenAt = event.timeStamp;
    this.cursor = cell;
    this.choose(cell);
  }

  release(event) {
    this.pointers.delete(event.pointerId);
    if (!this.pointers.size) this.gesture = null;
    delete this.box.dataset.dragged;
  }

  wheel(event) {
    if (!(event.ctrlKey || event.metaKey)) return; // a plain wheel scrolls the page
    event.preventDefault();
    const step = event.deltaMode === 1 ? event.deltaY * 16 : event.deltaY;
    // a wheel's place is in whole pixels, the pointer's is finer: at 2,048 tokens a pixel is three cells
    const { last } = this;
    const fine = last && Math.hypot(last.clientX - event.clientX, last.clientY - event.clientY) < 1.5;
    this.zoomBy(Math.exp(-Math.max(-60, Math.min(60, step)) * 0.01), ...this.position(fine ? last : event));
  }

  point(cell, event) {
    const { look } = this;
    if (!cell) look.hideTip();
    const before = this.hover;
    const same = cell && before ? cell[0] === before[0] && cell[1] === before[1] : cell === before;
    this.hover = cell;
    this.tipAt = cell && event ? look.at(event) : null;
    if (this.tipAt) look.showTip(...this.tipAt, (tip) => this.fillTip(tip, cell));
    if (same) return;
    this.overlay();
    look.share({ query: cell ? cell[0] : null, key: cell ? cell[1] : null });
  }

  /** Another view points at a token pair (or only one of both: the other is -1). */
  shared({ query, key }) {
    const at = (i, count) => (Number.isInteger(i) && i >= 0 && i < count ? i : -1);
    const cell = [at(query, this.rows), at(key, this.columns)];
    this.hover = cell[0] < 0 && cell[1] < 0 ? null : cell;
    this.overlay();
  }

  /** “she” (9) → “engineer” (2)  0.1234 */
  fillTip(tip, [query, key]) {
    const end = (i, names, positions) => {
      tip.append("“");
      bdi(names[i] ?? String(i), tip);
      tip.append(`” (${positions ? positions[i] : i})`);
    };
    end(query, this.queryNames, this.meta.query_positions);
    tip.append(" → ");
    end(key, this.keyNames, this.meta.key_positions);
    make("b", "", tip).textContent = `  ${this.number(query, key)}`;
    if (this.future && this.future(query, key)) tip.append(" · the future, closed");
  }

  /** The value in digits; where it travelled in 65,536 steps, small ones cannot be told more finely than these. */
  number(query, key) {
    const value = this.value(query, key);
    const { dtype, scale } = this.array;
    const sign = this.meta.diverging && value > 0 ? "+" : "";
    const closed = this.future && this.future(query, key);
    if (dtype === "uint16" && Math.abs(value) < 0.001 && !closed) return `${sign}${sayNumber(value)} ± ${(scale / 2).toExponential(0)}`;
    return sign + sayNumber(value);
  }

  say([query, key]) {
    const { query_positions: qs, key_positions: ks } = this.meta;
    const name = (kind, i, names, positions) => `${kind} ${positions ? positions[i] : i}${names[i] === undefined ? "" : ` ${names[i]}`}`;
    const closed = this.future && this.future(query, key) ? ", the future, closed" : "";
    this.said.textContent =
      `${name("query", query, this.queryNames, qs)}, ${name("key", key, this.keyNames, ks)}, ` +
      `${this.number(query, key)}${closed}`;
  }

  choose([query, key]) {
    this.chosen = [query, key]; // at once; Python's answer comes as a mark
    this.overlay();
    this.look.send("cell", { query, key });
  }

  key(event) {
    if (event.altKey || event.metaKey) return;
    const { rows, columns } = this;
    const by = event.shiftKey ? 10 : 1;
    const page = Math.max(1, Math.floor(rows / this.zoom));
    const [query, key] = this.cursor;
    const to = {
      ArrowUp: [query - by, key],
      ArrowDown: [query + by, key],
      ArrowLeft: [query, key - by],
      ArrowRight: [query, key + by],
      Home: [event.ctrlKey ? 0 : query, 0],
      End: [event.ctrlKey ? rows - 1 : query, columns - 1],
      PageUp: [query - page, key],
      PageDown: [query + page, key],
    }[event.key];
    if (to) {
      this.cursor = [Math.max(0, Math.min(rows - 1, to[0])), Math.max(0, Math.min(columns - 1, to[1]))];
      this.hover = null;
      this.reveal(this.cursor);
      this.overlay();
      this.say(this.cursor);
      this.look.share({ query: this.cursor[0], key: this.cursor[1] });
      const [x, y, w] = this.cellBox(this.cursor);
      const offset = this.box.offsetTop;
      this.look.showTip(this.left + x + w, offset + this.top + y, (tip) => this.fillTip(tip, this.cursor));
    } else if (event.key === "Enter" || event.key === " ") {
      this.choose(this.cursor);
    } else if ((event.key === "+" || event.key === "=") && !event.ctrlKey) {
      this.zoomBy(1.6);
    } else if (event.key === "-" && !event.ctrlKey) {
      this.zoomBy(1 / 1.6);
    } else if (event.key === "0" && !event.ctrlKey) {
      this.moveTo(1, 0, 0);
    } else if (event.key === "Escape") {
      this.look.hideTip();
      return;
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }
}
