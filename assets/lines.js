// Draws heads as lines from each query (left) to the keys it looks at (right): `lines`. Stands after common.js in one
// module. It is an SVG of its own, so that the picture one takes away is the picture one sees.
//
// Only the strongest edges are drawn (a few per query, a few hundred in all), and what they carry of the attention is
// said. Pointing at a token leaves only its edges, with their values beside the tokens at the other end.

export default function headscope(component) {
  return show(component, { lines: Lines });
}

const SVG = "http://www.w3.org/2000/svg";
const PER_QUERY = 8; // edges of one query, unless meta.edges_per_query says otherwise
const MOST_EDGES = 400; // edges of one head, unless meta.edges says otherwise
const OF_ONE = 12; // edges of the token that is pointed at
const SCROLL_FROM = 60; // tokens
const VALUE = 42; // px: a column of values
const EDGES = {
  // told apart under the common colour-vision deficiencies, 3 to 1 or more against the page
  light: ["#1f66ad", "#b3521b", "#0a7f68", "#8b3fa8", "#8a7300", "#c2326f", "#4d5664"],
  dark: ["#6db1f5", "#f79a52", "#3fcfae", "#d08df0", "#e0c93f", "#ff86b4", "#b4bdca"],
};

class Lines {
  constructor(look) {
    this.kind = "lines";
    this.look = look;
    this.head = make("div", "hs-from", look.stage);
    this.chips = make("div", "hs-chips", look.stage, { role: "group", "aria-label": "Heads" });
    this.box = make("div", "hs-lines", look.stage, {
      tabindex: "0", role: "application", "aria-roledescription": "attention as lines",
    });
    this.svg = this.element("svg", null, { "aria-hidden": "true" });
    this.box.append(this.svg);
    this.said = make("div", "hs-sr", look.stage, { "aria-live": "polite", role: "status" });
    this.hover = null; // {side: "query" | "key", i}
    this.locked = null;
    this.cursor = null;
    this.several = false;
    this.active = [];
    this.slots = new Map(); // head -> number of its colour
    this.box.addEventListener("pointerover", (event) => this.over(event));
    this.box.addEventListener("pointerleave", () => this.point(null));
    this.box.addEventListener("click", (event) => this.click(event));
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("blur", () => {
      this.cursor = null;
      this.mark();
    });
  }

  element(tag, parent, attributes) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, String(value));
    if (parent) parent.appendChild(element);
    return element;
  }

  draw(view) {
    const { look } = this;
    const { meta } = view;
    this.meta = meta;
    this.data = new Rows(view);
    this.queryLabels = meta.query_labels || [];
    this.keyLabels = meta.key_labels || this.queryLabels;
    this.queryNames = meta.query_hovers || this.queryLabels;
    this.keyNames = meta.key_hovers || (meta.key_labels ? this.keyLabels : this.queryNames);
    this.titles = Array.from({ length: this.data.heads }, (_, head) => String((meta.titles || [])[head] ?? `H${head}`));
    this.level = quantiser(meta);
    this.shades = shades(look.colours);
    this.edges = new Map(); // head -> its strongest edges
    const shape = JSON.stringify([this.queryLabels, this.keyLabels, this.data.heads]);
    if (shape !== this.shape) Object.assign(this, { hover: null, locked: null, cursor: null, several: false, active: [] });
    this.shape = shape;
    const picked = Math.max(0, Math.min(this.data.heads - 1, meta.row_selected ?? 0));
    if (!this.several) this.active = [picked];
    else if (picked !== this.picked && !this.active.includes(picked)) this.active.push(picked);
    this.picked = picked;
    this.colourHeads();
    this.box.setAttribute("aria-label", meta.alt || "Attention as lines from queries to keys");
    this.box.setAttribute("aria-description", "Up and down move by token, left and right change the side; Enter locks, Escape frees.");
    this.buildChips();
    this.build();
    const notes = [meta.caption || "queries on the left look at keys on the right"];
    if (!this.data.full) notes.push(`each query brings only its ${this.data.k} strongest keys`);
    look.caption(meta, notes);
  }

  /** The first head that is on takes the first colour, and keeps it while it is on. */
  colourHeads() {
    for (const head of this.slots.keys()) if (!this.active.includes(head)) this.slots.delete(head);
    for (const head of this.active) {
      if (this.slots.has(head)) continue;
      const used = new Set(this.slots.values());
      const most = EDGES.light.length;
      this.slots.set(head, Array.from({ length: most }, (_, i) => i).find((i) => !used.has(i)) ?? head % most);
    }
  }

  colour(head) {
    const colours = EDGES[this.look.theme];
    return colours[this.slots.get(head) ?? 0];
  }

  // ------------------------------------------------------------------------------------------------------------ edges

  /** The strongest edges of a head, and what they carry of all its attention. */
  strongestEdges(head) {
    let found = this.edges.get(head);
    if (found) return found;
    const { data, meta } = this;
    const per = meta.edges_per_query ?? PER_QUERY;
    const row = new Float32Array(data.keys);
    const edges = [];
    let total = 0;
    for (let query = 0; query < data.queries; query++) {
      data.row(head, query, row);
      for (const key of strongest(row, per)) edges.push({ head, query, key, value: row[key] });
      total += isMass(meta) ? data.whole(head, query) : data.carried(head, query);
    }
    edges.sort((a, b) => b.value - a.value);
    edges.length = Math.min(edges.length, meta.edges ?? MOST_EDGES);
    const share = edges.reduce((sum, edge) => sum + edge.value, 0) / (total || 1);
    edges.reverse(); // the strongest are drawn last, on top
    found = { edges, share };
    this.edges.set(head, found);
    return found;
  }

  /** A token's own edges, its strongest, and their sum. */
  edgesOf(head, { side, i }) {
    const { data } = this;
    const row = new Float32Array(side === "query" ? data.keys : data.queries);
    if (side === "query") data.row(head, i, row);
    else data.column(head, i, row);
    const places = strongest(row, OF_ONE);
    const edges = places.map((place) => ({
      head, value: row[place], query: side === "query" ? i : place, key: side === "query" ? place : i, end: place,
    }));
    return { edges: edges.reverse(), sum: edges.reduce((sum, edge) => sum + edge.value, 0) };
  }

  // ------------------------------------------------------------------------------------------------------------ layout

  layout() {
    const { look, data } = this;
    const width = Math.min(look.width, 760);
    const narrow = width < 480;
    const columns = Math.min(this.active.length, narrow ? 1 : 3);
    this.valueColumns = columns;
    const values = columns * VALUE;
    this.pitch = Math.max(data.queries, data.keys) > 40 ? 19 : 23;
    const numbers = Math.max(data.queries, data.keys) > SCROLL_FROM ? 34 : 0;
    const most = Math.max(48, Math.min(170, (width - 2 * values - 110) / 2 - 14));
    const room = (labels) => Math.ceil(Math.min(look.longest(labels, 12.5) + 14 + numbers, most + numbers));
    this.numbers = numbers;
    this.leftRoom = room(this.queryLabels);
    this.rightRoom = room(this.keyLabels);
    this.x0 = values + this.leftRoom + 4; // where edges start
    this.x1 = Math.max(this.x0 + 60, width - values - this.rightRoom - 4);
    // much space between the columns makes lines flat and far: keep the picture together
    this.x1 = Math.min(this.x1, this.x0 + 420);
    this.width = this.x1 + this.rightRoom + values + 4;
    this.height = Math.max(data.queries, data.keys) * this.pitch + 22;
    this.long = Math.max(data.queries, data.keys) > SCROLL_FROM;
  }

  y(i) {
    return 20 + (i + 0.5) * this.pitch;
  }

  /** The two ends and the two handles of an edge's curve. */
  curve({ query, key }) {
    const [from, to] = [this.y(query), this.y(key)];
    const bend = (this.x1 - this.x0) * 0.45;
    return [[this.x0, from], [this.x0 + bend, from], [this.x1 - bend, to], [this.x1, to]];
  }

  build() {
    const { look, svg } = this;
    this.layout();
    svg.textContent = "";
    svg.setAttribute("width", this.width);
    svg.setAttribute("height", this.height);
    svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.box.dataset.long = String(this.long);
    this.box.style.maxHeight = this.long ? `${Math.min(640, SCROLL_FROM * this.pitch)}px` : "";
    const heading = (text, x, anchor) => {
      this.element("text", svg, { x, y: 9, dy: "0.35em", "text-anchor": anchor, class: "hs-axis" }).textContent = text;
    };
    heading(this.meta.query_axis || "query", this.x0 - 8, "end");
    heading(this.meta.key_axis || "key", this.x1 + 8, "start");
    this.all = this.element("g", svg, { fill: "none", class: "hs-edges" });
    this.own = this.element("g", svg, { fill: "none", class: "hs-edges" });
    this.notes = this.element("g", svg, {});
    const token = (label, side, i) => {
      const left = side === "query";
      const x = left ? this.x0 - this.leftRoom : this.x1;
      const room = left ? this.leftRoom : this.rightRoom;
      const group = this.element("g", svg, { class: "hs-end", "data-side": side, "data-i": i });
      const back = this.element("rect", group, { x, y: this.y(i) - this.pitch / 2 + 1.5, width: room, height: this.pitch - 3, rx: 4 });
      const text = this.element("text", group, {
        x: left ? this.x0 - 7 : this.x1 + 7, y: this.y(i), dy: "0.35em", "text-anchor": left ? "end" : "start",
      });
      text.textContent = this.label(label, side, i);
      return { group, back, text, side, i };
    };
    this.ends = {
      query: this.queryLabels.map((label, i) => token(label, "query", i)),
      key: this.keyLabels.map((label, i) => token(label, "key", i)),
    };
    this.paintAll();
    this.mark();
  }

  /** A token's label as it fits; in long texts its position stands outside of it. */
  label(label, side, i) {
    const text = this.look.fit(inLine(label), 12.5, 400, (side === "query" ? this.leftRoom : this.rightRoom) - 13 - this.numbers);
    if (!this.numbers) return text;
    const position = this.position(side, i);
    return side === "query" ? `${position}  ${text}` : `${text}  ${position}`;
  }

  position(side, i) {
    const positions = side === "query" ? this.meta.query_positions : this.meta.key_positions;
    return positions ? positions[i] : i;
  }

  path(edge, parent) {
    const [a, b, c, d] = this.curve(edge);
    const strength = this.level(edge.value) / 255;
    this.element("path", parent, {
      d: `M${a.join(" ")}C${b.join(" ")} ${c.join(" ")} ${d.join(" ")}`, stroke: this.colour(edge.head),
      "stroke-opacity": Math.max(0.02, strength).toFixed(3), "stroke-width": (1.2 + 2.2 * strength).toFixed(2),
    });
  }

  paintAll() {
    this.all.textContent = "";
    for (const head of this.active) for (const edge of this.strongestEdges(head).edges) this.path(edge, this.all);
  }

  focused() {
    return this.hover || this.locked || this.cursor;
  }

  /** Only the focused token's edges, with their values at the other end; or all strongest ones. */
  mark() {
    if (!this.data) return;
    const focus = this.focused();
    this.own.textContent = "";
    this.notes.textContent = "";
    this.all.style.display = focus ? "none" : "";
    for (const end of this.marked || []) {
      delete end.group.dataset.mark;
      end.back.style.fill = "";
      end.text.style.fill = "";
    }
    this.marked = [];
    this.statement(focus);
    this.box.dataset.focus = focus ? `${focus.side} ${focus.i}` : "";
    this.box.dataset.locked = this.locked ? `${this.locked.side} ${this.locked.i}` : "";
    if (!focus) return;
    const self = this.ends[focus.side][focus.i];
    const other = focus.side === "query" ? "key" : "query";
    self.group.dataset.mark = this.locked && this.locked.side === focus.side && this.locked.i === focus.i ? "locked" : "from";
    this.marked.push(self);
    this.active.forEach((head, number) => {
      for (const edge of this.edgesOf(head, focus).edges) {
        this.path(edge, this.own);
        const end = this.ends[other][edge.end];
        if (this.active.length === 1) {
          const level = this.level(edge.value);
          end.back.style.fill = this.shades.back[level];
          end.text.style.fill = this.shades.text[level];
        }
        end.group.dataset.mark = "to";
        this.marked.push(end);
        if (number >= this.valueColumns) continue;
        const x = other === "key" ? this.x1 + this.rightRoom + VALUE * (number + 1) : this.x0 - this.leftRoom - 6 - VALUE * number;
        const text = this.element("text", this.notes, {
          x, y: this.y(edge.end), dy: "0.35em", "text-anchor": "end", class: "hs-value", "data-end": edge.end,
        });
        text.textContent = sayNumber(edge.value);
        if (this.active.length > 1) text.style.fill = this.colour(head);
      }
    });
  }

  /** What the drawn edges carry. */
  statement(focus) {
    const { head, active, meta } = this;
    head.textContent = "";
    if (!focus) {
      const count = active.reduce((sum, one) => sum + this.strongestEdges(one).edges.length, 0);
      const { queries, keys } = this.data;
      let possible = queries * keys;
      if (meta.causal) possible = Array.from({ length: queries }, (_, q) => Math.min(q + 1, keys)).reduce((a, b) => a + b, 0);
      const each = active.length > 1 ? "strongest edges carry " : `strongest of ${possible.toLocaleString("en")} edges carry `;
      head.append(`The ${count} ${each}`);
      active.forEach((one, i) => {
        if (i) head.append(", ");
        make("b", "", head).textContent = this.strongestEdges(one).share.toFixed(2);
        head.append(` of ${this.titles[one]}’s ${isMass(meta) ? "attention" : "total"}`);
      });
      if (!active.length) head.append("no head: choose one");
    } else {
      const names = focus.side === "query" ? this.queryNames : this.keyNames;
      head.append("“");
      make("b", "", bdi("", head)).textContent = String(names[focus.i] ?? focus.i);
      head.append(`” (${this.position(focus.side, focus.i)}) `);
      head.append(focus.side === "query" ? "looks: edges shown carry " : "is looked at: edges shown add up to ");
      active.forEach((one, i) => {
        if (i) head.append(", ");
        make("b", "", head).textContent = this.edgesOf(one, focus).sum.toFixed(2);
        head.append(focus.side === "query" && isMass(meta) ? ` of ${this.titles[one]}’s row` : ` in ${this.titles[one]}`);
      });
    }
    const hint = make("span", "hs-hint", head);
    hint.textContent = this.locked ? "locked; Esc frees it" : "point at a token; click to lock";
  }

  // ------------------------------------------------------------------------------------------------------------- heads

  buildChips() {
    const { chips, data } = this;
    chips.hidden = data.heads < 2;
    if (chips.hidden) return;
    if (chips.children.length !== data.heads + 1) {
      chips.textContent = "";
      for (let head = 0; head < data.heads; head++) {
        make("button", "hs-chip", chips, { type: "button" }).addEventListener("click", () => this.chip(head));
      }
      this.mode = make("button", "hs-chip hs-mode", chips, { type: "button" });
      this.mode.textContent = "overlay several";
      this.mode.addEventListener("click", () => {
        this.several = !this.several;
        if (!this.several) this.active = [this.picked];
        this.refresh();
      });
    }
    this.mode.setAttribute("aria-pressed", String(this.several));
    for (let head = 0; head < data.heads; head++) {
      const chip = chips.children[head];
      const on = this.active.includes(head);
      chip.textContent = this.titles[head];
      chip.setAttribute("aria-pressed", String(on));
      chip.style.setProperty("--hs-chip", on ? this.colour(head) : "transparent");
    }
  }

  /** Alone, a click chooses the head for the whole page; among several, it puts its lines on or off, here only. */
  chip(head) {
    if (!this.several) {
      this.active = [head];
      this.picked = head;
      this.refresh();
      this.look.send("select", { head });
      return;
    }
    const at = this.active.indexOf(head);
    if (at >= 0) this.active.splice(at, 1);
    else this.active.push(head);
    this.refresh();
  }

  refresh() {
    this.colourHeads();
    this.buildChips();
    const top = this.box.scrollTop;
    this.build();
    this.box.scrollTop = top;
  }

  // ---------------------------------------------------------------------------------------------- pointer and keyboard

  find(event) {
    const group = event.target.closest ? event.target.closest(".hs-end") : null;
    return group ? { side: group.dataset.side, i: Number(group.dataset.i) } : null;
  }

  over(event) {
    if (event.pointerType === "touch") return;
    this.point(this.find(event));
  }

  point(end) {
    const same = end && this.hover ? end.side === this.hover.side && end.i === this.hover.i : end === this.hover;
    if (same) return;
    this.hover = end;
    this.mark();
    this.look.share({ query: end && end.side === "query" ? end.i : null, key: end && end.side === "key" ? end.i : null });
  }

  shared({ query, key }) {
    const fits = (i, labels) => Number.isInteger(i) && i >= 0 && i < labels.length;
    if (fits(query, this.queryLabels)) this.hover = { side: "query", i: query };
    else this.hover = fits(key, this.keyLabels) ? { side: "key", i: key } : null;
    this.mark();
  }

  click(event) {
    const end = this.find(event);
    const same = end && this.locked && end.side === this.locked.side && end.i === this.locked.i;
    this.locked = end && !same ? end : null;
    this.mark();
  }

  key(event) {
    if (event.altKey || event.metaKey || event.ctrlKey) return;
    const at = this.locked || this.cursor || { side: "query", i: 0 };
    const started = this.locked || this.cursor;
    const by = event.shiftKey ? 10 : 1;
    const other = { ArrowLeft: "query", ArrowRight: "key" }[event.key];
    const step = { ArrowUp: -by, ArrowDown: by, Home: -Infinity, End: Infinity }[event.key];
    if (other || step !== undefined) {
      const side = other || at.side;
      const last = this.ends[side].length - 1;
      const moved = started && step !== undefined ? at.i + step : step === Infinity ? last : step === -Infinity ? 0 : at.i;
      const to = { side, i: Math.max(0, Math.min(last, moved)) };
      this.hover = null;
      this.cursor = to;
      if (this.locked) this.locked = to;
      this.mark();
      this.say(to);
      if (this.long) {
        const y = this.y(to.i);
        if (y < this.box.scrollTop + 30 || y > this.box.scrollTop + this.box.clientHeight - 30) this.box.scrollTop = y - this.box.clientHeight / 2;
      }
    } else if (event.key === "Enter" || event.key === " ") {
      if (!started) return;
      this.locked = this.locked ? null : at;
      this.mark();
    } else if (event.key === "Escape") {
      if (!this.locked && !this.cursor) return;
      this.locked = this.cursor = this.hover = null;
      this.mark();
      this.said.textContent = "all strongest edges";
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  say(end) {
    const [own, far] = end.side === "query" ? [this.queryNames, this.keyNames] : [this.keyNames, this.queryNames];
    const heads = this.active.map((head) => {
      const best = this.edgesOf(head, end).edges.slice(-3).reverse();
      return `${this.titles[head]} ${best.map((edge) => `${far[edge.end]} ${sayNumber(edge.value)}`).join(", ") || "nothing"}`;
    });
    const verb = end.side === "query" ? "looks at" : "is looked at by";
    this.said.textContent = `${end.side} ${this.position(end.side, end.i)} ${own[end.i] ?? ""} ${verb}: ${heads.join("; ")}`;
  }

  // ---------------------------------------------------------------------------------------------------------- picture

  picture() {
    const { look, meta } = this;
    const focus = this.focused();
    // a long text's picture is the part that is on the screen
    const top = this.long ? this.box.scrollTop : 0;
    const height = this.long ? Math.min(this.box.clientHeight, this.height - top) : this.height;
    const edges = this.active.flatMap((head) => (focus ? this.edgesOf(head, focus).edges : this.strongestEdges(head).edges));
    const scale = look.legendOf(meta);
    const words = this.head.textContent.replace(this.head.querySelector(".hs-hint").textContent, "");
    return {
      width: this.width,
      height,
      title: this.active.map((head) => this.titles[head]).join(", ") || "no head",
      notes: [`${words}; a line’s strength is its ${scale.unit}, ${scale.low} to ${scale.high}`, this.long ? `the part from ${Math.floor(top / this.pitch)} on, ${Math.floor(height / this.pitch)} tokens` : "", meta.note || ""],
      legend: null,
      draw: (pen) => {
        pen.at(0, 0, () => pen.at(0, -top, () => this.sketch(pen, edges, focus)), this.width, height);
        if (this.active.length < 2) return;
        this.active.forEach((head, i) => pen.text(this.titles[head], this.width, 9 + i * 15, { align: "right", weight: 700, colour: this.colour(head) }));
      },
    };
  }

  sketch(pen, edges, focus) {
    pen.text(this.meta.query_axis || "query", this.x0 - 8, 9, { size: 11, align: "right", alpha: 0.6 });
    pen.text(this.meta.key_axis || "key", this.x1 + 8, 9, { size: 11, alpha: 0.6 });
    for (const edge of edges) {
      const strength = this.level(edge.value) / 255;
      pen.line(this.curve(edge), { stroke: this.colour(edge.head), width: 1.2 + 2.2 * strength, alpha: Math.max(0.02, strength), curved: true });
    }
    const other = focus && (focus.side === "query" ? "key" : "query");
    const values = new Map();
    if (focus) for (const edge of edges) values.set(edge.end, [...(values.get(edge.end) || []), edge]);
    for (const side of ["query", "key"]) {
      const left = side === "query";
      for (const { i, text } of this.ends[side]) {
        const y = this.y(i);
        const room = left ? this.leftRoom : this.rightRoom;
        const x = left ? this.x0 - this.leftRoom : this.x1;
        const reached = side === other ? values.get(i) : undefined;
        let colour;
        if (reached && this.active.length === 1) {
          const level = this.level(reached[0].value);
          pen.box(x, y - this.pitch / 2 + 1.5, room, this.pitch - 3, { fill: this.shades.back[level], radius: 4 });
          colour = this.shades.text[level];
        }
        if (focus && side === focus.side && i === focus.i) {
          pen.box(x, y - this.pitch / 2 + 1.5, room, this.pitch - 3, { stroke: this.look.accent, width: 2, radius: 4 });
        }
        pen.text(text.textContent, left ? this.x0 - 7 : this.x1 + 7, y, { size: 12.5, align: left ? "right" : "left", colour });
        for (const edge of reached || []) {
          const number = this.active.indexOf(edge.head);
          if (number >= this.valueColumns) continue;
          const at = left ? this.x0 - this.leftRoom - 6 - VALUE * number : this.x1 + this.rightRoom + VALUE * (number + 1);
          pen.text(sayNumber(edge.value), at, y, { size: 11, align: "right", colour: this.active.length > 1 ? this.colour(edge.head) : undefined });
        }
      }
    }
  }
}
