// Draws where every head of a layer looks from one token, in the sentence itself: `text`. Stands after common.js in one
// module.
//
// Short texts: one line of shaded tokens per head. Long ones (over 200 tokens): one thin strip per head, and the whole
// text once, shaded by the chosen head. Which token is looked from changes here, without the server: the token under the
// pointer, else the locked one, else the one Python or the arrow keys chose last.

export default function headscope(component) {
  return show(component, { text: Text });
}

const MOST_TOKENS = 200; // longer texts become strips
const MOST_BOXES = 6000; // and so do layers whose lines together have more tokens
const STRIP = 18; // px
const LOCK_DELAY = 120; // ms: a lock goes to Python when no other follows
const KEY_DELAY = 400; // ms: the same while arrow keys move the lock

class Text {
  constructor(look) {
    this.kind = "text";
    this.look = look;
    this.ways = make("span", "hs-switch", look.own, { role: "group", "aria-label": "Direction" });
    this.out = tool("looks at", "Shade by where the head looks from the token", this.ways, () => this.turn(false));
    this.back = tool("is looked at by", "Shade by who looks at the token", this.ways, () => this.turn(true));
    this.head = make("div", "hs-from", look.stage);
    this.box = make("div", "hs-text", look.stage, {
      tabindex: "0", role: "application", "aria-roledescription": "attention in the text",
    });
    this.said = make("div", "hs-sr", look.stage, { "aria-live": "polite", role: "status" });
    this.hover = null;
    this.locked = null;
    this.base = 0;
    this.sent = []; // locks that Python has not answered yet
    this.reverse = false;
    this.rows = [];
    this.box.addEventListener("pointerover", (event) => this.over(event));
    this.box.addEventListener("pointermove", (event) => this.strip(event));
    this.box.addEventListener("pointerleave", () => this.leave());
    this.box.addEventListener("click", (event) => this.click(event));
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("blur", () => look.hideTip());
  }

  destroy() {
    clearTimeout(this.timer);
  }

  // ------------------------------------------------------------------------------------------------------ from Python

  draw(view) {
    const { look } = this;
    const { meta } = view;
    this.meta = meta;
    this.data = new Rows(view);
    this.queryLabels = meta.query_labels || [];
    this.keyLabels = meta.key_labels || this.queryLabels;
    this.queryNames = meta.query_hovers || this.queryLabels;
    this.keyNames = meta.key_hovers || (meta.key_labels ? this.keyLabels : this.queryNames);
    this.cross =
      meta.cross ?? (this.queryLabels.length !== this.keyLabels.length || this.queryLabels.some((l, i) => l !== this.keyLabels[i]));
    this.level = quantiser(meta);
    this.shades = shades(look.colours);
    this.titles = Array.from({ length: this.data.heads }, (_, head) => String((meta.titles || [])[head] ?? `H${head}`));
    if (!this.data.full) this.reverse = false;
    this.ways.hidden = !this.data.full;
    this.out.setAttribute("aria-pressed", String(!this.reverse));
    this.back.setAttribute("aria-pressed", String(this.reverse));
    const shape = JSON.stringify([this.queryLabels, this.keyLabels, this.cross]);
    const same = shape === this.shape;
    this.shape = shape;
    this.adopt(same);
    this.picked = Math.max(0, Math.min(this.data.heads - 1, meta.row_selected ?? 0));
    const built = JSON.stringify([shape, this.reverse, this.titles, this.data.full]);
    if (built !== this.built) {
      this.built = built;
      this.build();
    }
    this.box.setAttribute("aria-label", meta.alt || `Where ${this.data.heads} heads look, in the text`);
    this.box.setAttribute("aria-description", "Left and right move the token that is looked from; Enter locks it, Escape frees it.");
    this.titleRows();
    this.layout();
    this.paint(true);
    const notes = [meta.caption || (this.compact ? "each strip is one head, each point a token" : "each line is one head")];
    if (meta.causal) notes.push("later tokens are closed");
    if (!this.data.full) notes.push(`each row brings only its ${this.data.k} strongest keys`);
    look.caption(meta, notes);
  }

  /** Which token: Python's word counts when it is new, not when it only repeats what was locked here. */
  adopt(same) {
    const { meta } = this;
    const count = this.sources().length;
    const query = Number.isInteger(meta.query) ? Math.max(0, Math.min(count - 1, meta.query)) : count - 1;
    if (!same) {
      Object.assign(this, { hover: null, sent: [], base: query, locked: meta.locked ? query : null });
    } else if (query !== this.asked || Boolean(meta.locked) !== this.askedLock) {
      const echo = this.sent.indexOf(query);
      if (echo >= 0) {
        this.sent.splice(0, echo + 1);
        if (this.locked === null) this.base = query;
      } else {
        this.base = query;
        if (this.locked !== null || meta.locked) this.locked = meta.locked === false ? null : query;
      }
    }
    this.asked = query;
    this.askedLock = Boolean(meta.locked);
  }

  /** The labels that one is picked from, and those that are shaded; they change places with the direction. */
  sources() {
    return this.reverse ? this.keyLabels : this.queryLabels;
  }

  targets() {
    return this.reverse ? this.queryLabels : this.keyLabels;
  }

  current() {
    return this.hover ?? this.locked ?? this.base;
  }

  // ----------------------------------------------------------------------------------------------------- the elements

  build() {
    const { box, data } = this;
    box.textContent = "";
    this.rows = [];
    const targets = this.targets();
    this.compact = targets.length > MOST_TOKENS || targets.length * data.heads > MOST_BOXES || this.sources().length > 4 * MOST_TOKENS;
    this.box.dataset.compact = String(this.compact);
    this.picker = null;
    if (this.cross) {
      const line = make("div", "hs-row hs-pick", box);
      make("span", "hs-rowname", line).textContent = this.reverse ? "key" : "query";
      this.picker = this.line(line, this.sources());
    }
    this.list = make("div", "hs-rows", box);
    for (let head = 0; head < data.heads; head++) {
      const element = make("div", "hs-row", this.list);
      const name = make("button", "hs-rowname", element, { type: "button" });
      const row = { element, name, levels: new Int16Array(targets.length).fill(-1) };
      if (this.compact) {
        row.canvas = make("canvas", "hs-strip", element, { "aria-hidden": "true", "data-head": String(head) });
      } else {
        row.tokens = this.line(element, targets);
      }
      row.mass = make("span", "hs-mass", this.compact ? element : row.tokens[0].parentElement);
      this.rows.push(row);
    }
    this.whole = null;
    if (this.compact) {
      this.wholeName = make("div", "hs-wholename", box);
      const element = make("div", "hs-whole", box);
      this.whole = { tokens: this.line(element, targets), levels: new Int16Array(targets.length).fill(-1), element };
    }
    this.ringed = [];
  }

  /** A line of tokens: plain inline elements in logical order, so that right-to-left text reads as it should. */
  line(parent, labels) {
    const line = make("span", "hs-line", parent, { dir: directionOf(labels), "aria-hidden": "true" });
    const piece = document.createDocumentFragment();
    const tokens = labels.map((label, i) => {
      if (i) piece.append(" ");
      const token = make("span", "hs-token", null);
      token.dataset.i = String(i);
      token.textContent = inLine(label);
      piece.append(token);
      return token;
    });
    line.append(piece);
    return tokens;
  }

  layout() {
    const { look, titles } = this;
    const room = Math.ceil(look.longest([...titles, this.cross ? "query" : ""], 12.5)) + 16;
    this.box.style.setProperty("--hs-names", `${room}px`);
    if (!this.compact) return;
    this.stripWidth = Math.max(60, look.width - room - 8 - (this.hasMass() ? 84 : 0));
    for (const row of this.rows) canvasOf(row.canvas, this.stripWidth, STRIP, look.ratio);
  }

  titleRows() {
    const off = this.meta.off || [];
    this.rows.forEach(({ element, name }, head) => {
      name.textContent = this.titles[head];
      const chosen = head === this.picked;
      element.dataset.chosen = String(chosen);
      element.dataset.off = String(off.includes(head));
      name.setAttribute("aria-pressed", String(chosen));
      name.setAttribute("aria-label", [this.titles[head], off.includes(head) && "off", chosen && "chosen"].filter(Boolean).join(", "));
    });
  }

  hasMass() {
    return isMass(this.meta) && !this.reverse;
  }

  // ---------------------------------------------------------------------------------------------------------- shading

  values(head, at) {
    const { data } = this;
    this.buffer = this.buffer && this.buffer.length === this.targets().length ? this.buffer : new Float32Array(this.targets().length);
    return this.reverse ? data.column(head, at, this.buffer) : data.row(head, at, this.buffer);
  }

  /** Shade everything by the current token. Only what changes its level is touched. */
  paint(all) {
    const start = performance.now();
    const at = this.current();
    const { data, shades: colours } = this;
    for (let head = 0; head < data.heads; head++) {
      const values = this.values(head, at);
      const row = this.rows[head];
      if (this.compact) this.paintStrip(row, values, at);
      else this.shade(row, values, colours, all);
      if (this.whole && head === this.picked) this.shade(this.whole, values, colours, all);
      this.stateMass(row, head, at);
    }
    this.ring(at);
    this.heading(at);
    if (this.compact) {
      const direction = this.reverse ? "who looks at the token" : "where it looks";
      this.wholeName.textContent = `The whole text, shaded by ${this.titles[this.picked]}: ${direction}`;
    }
    Object.assign(this.box.dataset, {
      query: String(at),
      locked: this.locked === null ? "" : String(this.locked),
      milliseconds: (performance.now() - start).toFixed(2),
    });
  }

  shade({ tokens, levels }, values, colours, all) {
    for (let i = 0; i < tokens.length; i++) {
      const level = this.level(values[i]);
      if (level === levels[i] && !all) continue;
      levels[i] = level;
      const { style } = tokens[i];
      style.backgroundColor = colours.back[level];
      style.color = colours.text[level];
    }
  }

  /** One thin bar per token; where there are more tokens than pixels, each pixel shows the maximum of its tokens. */
  paintStrip({ canvas }, values, at) {
    const { look } = this;
    const width = canvas.width;
    const n = values.length;
    const context = canvas.getContext("2d");
    const { scratch } = look;
    const cells = Math.min(n, width);
    scratch.width = cells;
    scratch.height = 1;
    const image = new ImageData(cells, 1);
    const pixels = new Uint32Array(image.data.buffer);
    for (let x = 0; x < cells; x++) {
      let most = 0;
      const last = Math.max(Math.floor((x * n) / cells) + 1, Math.ceil(((x + 1) * n) / cells));
      for (let i = Math.floor((x * n) / cells); i < last && i < n; i++) if (values[i] > most) most = values[i];
      pixels[x] = look.table[this.level(most)];
    }
    const scratchContext = scratch.getContext("2d");
    scratchContext.putImageData(image, 0, 0);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(scratch, 0, 0, width, canvas.height);
    if (this.cross) return;
    const x = ((at + 0.5) * width) / n;
    context.fillStyle = look.accent;
    context.fillRect(Math.round(x - look.ratio), 0, Math.max(2, Math.round(2 * look.ratio)), canvas.height);
  }

  /** What of the row is not shown is said, never scaled away. */
  stateMass(row, head, at) {
    let text = "";
    if (this.hasMass()) {
      const carried = this.data.carried(head, at);
      const whole = this.data.whole(head, at);
      if (!this.data.full && carried < whole - 0.005) text = `top ${this.data.k}: ${carried.toFixed(2)}`;
      else if (carried < whole - 0.005 || carried < 0.995) text = `${carried.toFixed(2)} shown`;
    }
    if (row.said === text) return;
    row.said = text;
    row.mass.textContent = text;
    row.mass.title = text && (this.data.full
      ? "The rest of this head’s attention goes to tokens that are not shown, or nowhere"
      : `Its ${this.data.k} strongest keys carry this much of the row; the rest is not shown`);
  }

  ring(at) {
    for (const token of this.ringed) delete token.dataset.ring;
    const lines = this.cross ? [this.picker] : [...this.rows.map((row) => row.tokens), this.whole && this.whole.tokens];
    this.ringed = lines.filter(Boolean).map((tokens) => tokens[at]).filter(Boolean);
    const kind = this.locked === at ? "locked" : "free";
    for (const token of this.ringed) token.dataset.ring = kind;
    if (this.locked === null || this.locked === at) return;
    // the locked token waits, visibly, until the pointer leaves
    const waiting = lines.filter(Boolean).map((tokens) => tokens[this.locked]).filter(Boolean);
    for (const token of waiting) token.dataset.ring = "waiting";
    this.ringed.push(...waiting);
  }

  heading(at) {
    const names = this.reverse ? this.keyNames : this.queryNames;
    const { head } = this;
    head.textContent = "";
    head.append(this.reverse ? "Who looks at “" : "Where each head looks from “");
    make("b", "", bdi("", head)).textContent = String(names[at] ?? at);
    head.append(`” (${this.position(at, !this.reverse)})`);
    const hint = make("span", "hs-hint", head);
    hint.textContent =
      this.locked === null ? "hover, tap or ←→ to another token; click to lock"
      : this.locked === at ? "locked; Esc or a second click frees it"
      : `“${names[this.locked]}” stays locked; Esc frees it`;
  }

  position(i, isQuery) {
    const positions = isQuery ? this.meta.query_positions : this.meta.key_positions;
    return positions ? positions[i] : i;
  }

  // ---------------------------------------------------------------------------------------------- pointer and keyboard

  /** The token of an event that can be looked from, or null. */
  find(event) {
    const token = event.target.closest ? event.target.closest(".hs-token") : null;
    if (!token || !this.box.contains(token)) return null;
    const inPicker = token.closest(".hs-pick") !== null;
    return { i: Number(token.dataset.i), token, source: !this.cross || inPicker, row: this.rows.findIndex((r) => r.element.contains(token)) };
  }

  over(event) {
    if (event.pointerType === "touch") return;
    const found = this.find(event);
    if (!found) return;
    if (found.source && found.i !== this.hover) {
      this.hover = found.i;
      this.paint();
      this.point(found.i);
    }
    this.tip(event, found);
  }

  point(i) {
    this.look.share(this.reverse ? { query: null, key: i } : { query: i, key: null });
  }

  shared({ query, key }) {
    const i = this.reverse ? key : query;
    this.hover = Number.isInteger(i) && i >= 0 && i < this.sources().length ? i : null;
    this.paint();
  }

  leave() {
    this.look.hideTip();
    if (this.hover === null) return;
    this.hover = null;
    this.paint();
    this.look.share({ query: null, key: null });
  }

  /** What a line says under the pointer: the row's strongest keys, or one exact weight. */
  tip(event, { i, source, row }) {
    const head = row >= 0 ? row : this.picked;
    const { look } = this;
    const from = source && this.locked !== null && this.locked !== i ? this.locked : source ? null : this.current();
    look.showTip(...look.at(event), (tip) => {
      make("b", "", tip).textContent = this.titles[head];
      if (source) this.tipTop(tip, head, i);
      if (from !== null) {
        if (source) tip.append("\nlocked: ");
        else tip.append("  ");
        this.tipPair(tip, head, from, i);
      }
    });
  }

  tipTop(tip, head, at) {
    const values = this.values(head, at);
    const best = strongest(values, 3);
    const names = this.reverse ? this.queryNames : this.keyNames;
    tip.append(this.reverse ? "  looked at most by " : "  looks most at ");
    if (!best.length) tip.append("nothing");
    best.forEach((place, rank) => {
      if (rank) tip.append(", ");
      bdi(String(names[place] ?? place), tip);
      tip.append(` ${sayNumber(values[place])}`);
    });
  }

  tipPair(tip, head, at, i) {
    const [query, key] = this.reverse ? [i, at] : [at, i];
    tip.append("“");
    bdi(String(this.queryNames[query] ?? query), tip);
    tip.append("” → “");
    bdi(String(this.keyNames[key] ?? key), tip);
    const value = this.data.at(head, query, key);
    tip.append(value === undefined ? `”  not among the top ${this.data.k}` : `”  ${sayNumber(value)}`);
  }

  /** On a strip: the token of the bar and its weight; several tokens to a pixel say their strongest. */
  strip(event) {
    const canvas = event.target.closest ? event.target.closest(".hs-strip") : null;
    if (!canvas) {
      if (this.compact && !this.find(event)) this.look.hideTip();
      return;
    }
    const head = Number(canvas.dataset.head);
    const i = this.stripToken(canvas, event, head);
    this.look.showTip(...this.look.at(event), (tip) => {
      make("b", "", tip).textContent = this.titles[head];
      tip.append(`  (${this.position(i, this.reverse)}) `);
      this.tipPair(tip, head, this.current(), i);
    });
  }

  stripToken(canvas, event, head) {
    const box = canvas.getBoundingClientRect();
    const n = this.targets().length;
    const share = (x) => ((x - box.left) / box.width) * n;
    const first = Math.max(0, Math.min(n - 1, Math.floor(share(event.clientX - 0.5))));
    const last = Math.max(first, Math.min(n - 1, Math.floor(share(event.clientX + 0.5) - 1e-6)));
    const values = this.values(head, this.current());
    let best = Math.max(0, Math.min(n - 1, Math.floor(share(event.clientX))));
    if (n > box.width / 2) for (let i = first; i <= last; i++) if (values[i] > values[best]) best = i;
    return best;
  }

  click(event) {
    const name = event.target.closest ? event.target.closest("button.hs-rowname") : null;
    const at = name ? this.rows.findIndex((row) => row.name === name) : -1;
    if (at >= 0) {
      this.picked = at; // at once; Python's answer comes with the next data
      this.titleRows();
      this.paint();
      this.look.send("select", { head: at });
      return;
    }
    const canvas = event.target.closest ? event.target.closest(".hs-strip") : null;
    if (canvas && !this.cross) {
      this.lock(this.stripToken(canvas, event, Number(canvas.dataset.head)), LOCK_DELAY);
      if (this.whole) this.whole.tokens[this.locked].scrollIntoView({ block: "nearest" });
      return;
    }
    const found = this.find(event);
    if (!found || !found.source) {
      if (found) this.tip(event, found);
      return;
    }
    if (this.locked === found.i) this.free();
    else this.lock(found.i, LOCK_DELAY);
    this.tip(event, found);
  }

  lock(i, delay) {
    this.locked = i;
    this.paint();
    this.tell(i, delay);
  }

  free() {
    if (this.locked === null) return;
    this.locked = null;
    this.paint();
    this.tell(null, LOCK_DELAY);
  }

  /** Python hears of a lock when it has settled (null: of its end); only looks from the token are its business. */
  tell(query, delay) {
    clearTimeout(this.timer);
    if (this.reverse) return;
    this.timer = setTimeout(() => {
      if (query !== null) this.sent.push(query);
      this.look.send("query", { query });
    }, delay);
  }

  turn(reverse) {
    if (reverse === this.reverse) return;
    this.reverse = reverse;
    const count = this.sources().length;
    Object.assign(this, { hover: null, locked: null, base: Math.min(this.current(), count - 1), built: "" });
    this.draw(this.look.view);
  }

  say(at) {
    const values = this.values(this.picked, at);
    const names = this.reverse ? this.queryNames : this.keyNames;
    const best = strongest(values, 3).map((i) => `${names[i] ?? i} ${sayNumber(values[i])}`);
    const own = (this.reverse ? this.keyNames : this.queryNames)[at] ?? "";
    this.said.textContent =
      `${this.reverse ? "to" : "from"} ${this.position(at, !this.reverse)} ${own}${this.locked === at ? ", locked" : ""}: ` +
      `${this.titles[this.picked]} ${this.reverse ? "is reached most from" : "looks most at"} ${best.join(", ") || "nothing"}`;
  }

  key(event) {
    if (event.altKey || event.metaKey || event.ctrlKey) return;
    const onButton = event.target.closest && event.target.closest("button");
    const count = this.sources().length;
    const at = this.current();
    const rtl = directionOf(this.sources()) === "rtl" ? -1 : 1;
    const by = event.shiftKey ? 10 : 1;
    const to = { ArrowLeft: at - by * rtl, ArrowRight: at + by * rtl, Home: 0, End: count - 1 }[event.key];
    if (to !== undefined) {
      const next = Math.max(0, Math.min(count - 1, to));
      this.hover = null;
      if (this.locked === null) {
        this.base = next;
        this.paint();
      } else {
        this.lock(next, KEY_DELAY);
      }
      this.point(next);
      this.say(next);
      if (this.whole && !this.cross) this.whole.tokens[next].scrollIntoView({ block: "nearest" });
    } else if (event.key === "Escape") {
      if (this.locked === null) return;
      this.free();
      this.say(this.current());
    } else if ((event.key === "Enter" || event.key === " ") && !onButton) {
      if (this.locked === at) this.free();
      else this.lock(at, LOCK_DELAY);
      this.say(at);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  // ---------------------------------------------------------------------------------------------------------- picture

  /** What is on the screen, box by box, from where the browser has put it. */
  picture() {
    const { look, meta } = this;
    const scroller = this.whole && this.whole.element;
    const frame = this.box.getBoundingClientRect();
    const scrolled = scroller ? scroller.scrollTop : 0;
    const bottom = scroller ? scroller.getBoundingClientRect().top - frame.top + scroller.scrollHeight : frame.height;
    const place = (element, inScroller) => {
      const down = inScroller ? scrolled : 0;
      return Array.from(element.getClientRects(), (r) => [r.left - frame.left, r.top - frame.top + down, r.width, r.height]);
    };
    const at = this.current();
    const names = this.reverse ? this.keyNames : this.queryNames;
    const tokens = (pen, list, inScroller) => {
      for (const token of list) {
        const style = getComputedStyle(token);
        const [first] = place(token, inScroller);
        if (!first) continue;
        const [x, y, w, h] = first;
        const plain = /rgba\(.*, 0\)|transparent/.test(style.backgroundColor);
        if (!plain) pen.box(x, y, w, h, { fill: style.backgroundColor, radius: 3 });
        if (["free", "locked"].includes(token.dataset.ring)) pen.box(x, y, w, h, { stroke: look.accent, width: 2, radius: 3 });
        const size = parseFloat(style.fontSize);
        pen.text(token.textContent, x + w / 2, y + h / 2 + 0.5, { size, align: "center", colour: plain ? look.ink : style.color, room: w });
      }
    };
    return {
      width: frame.width,
      height: bottom,
      notes: [
        `${this.reverse ? "who looks at" : "where each head looks from"} “${names[at] ?? at}” (position ${this.position(at, !this.reverse)})`,
        meta.note || "",
      ],
      draw: (pen) => {
        if (this.picker) tokens(pen, this.picker);
        for (const row of this.rows) {
          const [[x, y, , h]] = place(row.name);
          pen.text(row.name.textContent, x + 4, y + h / 2, { size: 12.5, weight: row.element.dataset.chosen === "true" ? 700 : 400 });
          if (row.tokens) {
            tokens(pen, row.tokens);
          } else {
            const [[cx, cy, cw, ch]] = place(row.canvas);
            pen.image(row.canvas, cx, cy, cw, ch);
          }
          const [mass] = row.said ? place(row.mass) : [];
          if (mass) pen.text(row.said, mass[0] + mass[2] / 2, mass[1] + mass[3] / 2, { size: 11, alpha: 0.66, align: "center" });
        }
        if (!this.whole) return;
        const [[x, y, , h]] = place(this.wholeName);
        pen.text(this.wholeName.textContent, x, y + h / 2, { size: 12.5, alpha: 0.72 });
        tokens(pen, this.whole.tokens, true);
      },
    };
  }
}
