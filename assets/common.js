// What the drawing components share: reading a packed View, colours, canvases, the frame around a view (theme, tooltip,
// legend, pictures to take away) and access to a layer's rows. It stands before each component's own file in one module
// (mha_core/ui/components.py and mha_core/standalone.py put them together), so names here are theirs too.
//
// Contract with Python (mha_core/view.py): `data` is one packed View (a Uint8Array). Streamlit calls the default export
// again for every new message and when the theme changes, always with the same parentElement: the state lives with that
// element and is redrawn, never rebuilt. Labels are untrusted: textContent and fillText only, escaped in SVG.
// After each paint the root carries data-kind, data-painted (a counter), data-view (meta.id) and data-milliseconds (how
// long it took), for tests and benchmarks.
//
// A painter draws one kind: `new Painter(look)`, `draw(view)`, `picture()` (what an exported picture shows) and, where it
// has them, `shared(detail)` (what another view with the same meta.group points at) and `destroy()`.

const LOOKS = new WeakMap(); // parentElement -> Look
const BLANK = 0; // a fully transparent pixel: cells that cannot exist (the future of a causal map)
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufefc]/;
const SYNC = "headscope-point"; // the event by which views on one page show each other what is pointed at

/** The body of every component's default export. */
function show(component, painters) {
  const { parentElement } = component;
  let look = LOOKS.get(parentElement);
  if (!look) {
    look = new Look(parentElement, painters);
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
  const types = { uint8: Uint8Array, uint16: Uint16Array, int32: Int32Array, float32: Float32Array };
  const ends = header.meta.scale_to ?? header.meta.range ?? [0, 1];
  const [low, high] = Array.isArray(ends) ? ends : [0, ends];
  const arrays = {};
  for (const { name, dtype, shape, offset, lower, above, small, least } of header.arrays) {
    const Type = types[dtype];
    const count = lower ? (shape[0] * (shape[0] + 1)) / 2 : shape.reduce((a, b) => a * b, 1);
    const start = bytes.byteOffset + 4 + length + offset;
    const read = (Kind, from, n) =>
      from % Kind.BYTES_PER_ELEMENT === 0
        ? new Kind(bytes.buffer, from, n)
        : new Kind(bytes.buffer.slice(from, from + n * Kind.BYTES_PER_ELEMENT));
    const sent =
      small === undefined
        ? read(Type, start, count)
        : widened(read(Uint8Array, start, count), least, read(Type, start + Math.ceil(count / 4) * 4, count - small));
    const values = lower ? square(sent, shape[0], above) : sent;
    const array = { values, shape, dtype, scale: 1, base: 0 }; // a number is values[i] * scale + base
    if (dtype === "uint8") array.scale = 1 / 255;
    if (dtype === "uint16") Object.assign(array, { scale: (high - low) / 65535, base: low });
    arrays[name] = array;
  }
  return { kind: header.kind, meta: header.meta, provenance: header.provenance || {}, arrays };
}

/** Numbers of which most were sent as a byte from `least` on, the others after them where it is 255 (packing.py). */
function widened(bytes, least, large) {
  const values = new large.constructor(bytes);
  for (let i = 0, next = 0; i < bytes.length; i++) values[i] = bytes[i] === 255 ? large[next++] : bytes[i] + least;
  return values;
}

/** The square of which only the rows up to the diagonal were sent; above it is one number. */
function square(sent, size, above) {
  const whole = new sent.constructor(size * size).fill(above);
  for (let row = 0, from = 0; row < size; from += ++row) whole.set(sent.subarray(from, from + row + 1), row * size);
  return whole;
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

/**
 * A layer's rows, whole (`maps` [head, query, key]) or only their strongest keys (`top_values` and `top_keys`
 * [head, query, k]): one way to ask for both.
 */
class Rows {
  constructor({ meta, arrays }) {
    this.full = Boolean(arrays.maps);
    const main = this.full ? arrays.maps : arrays.top_values;
    [this.heads, this.queries] = main.shape;
    this.values = main.values;
    this.places = this.full ? null : arrays.top_keys.values;
    this.k = this.full ? 0 : main.shape[2];
    this.keys = this.full ? main.shape[2] : (meta.key_labels || meta.query_labels || []).length;
    this.mass = arrays.row_mass ? arrays.row_mass.values : null;
  }

  /** One row into `into` [key]; a key that did not travel has 0. */
  row(head, query, into) {
    if (this.full) {
      const start = (head * this.queries + query) * this.keys;
      into.set(this.values.subarray(start, start + this.keys));
      return into;
    }
    into.fill(0);
    const start = (head * this.queries + query) * this.k;
    for (let i = start; i < start + this.k; i++) {
      const key = this.places[i];
      if (key >= 0 && key < this.keys) into[key] = this.values[i];
    }
    return into;
  }

  /** Who looks at a key, into `into` [query]. */
  column(head, key, into) {
    for (let query = 0; query < this.queries; query++) into[query] = this.at(head, query, key) || 0;
    return into;
  }

  /** One weight; undefined when it did not travel. */
  at(head, query, key) {
    const row = head * this.queries + query;
    if (this.full) return this.values[row * this.keys + key];
    for (let i = row * this.k; i < (row + 1) * this.k; i++) if (this.places[i] === key) return this.values[i];
    return undefined;
  }

  /** What all of a row's keys that travelled add up to. */
  carried(head, query) {
    const size = this.full ? this.keys : this.k;
    const start = (head * this.queries + query) * size;
    let sum = 0;
    for (let i = start; i < start + size; i++) sum += this.values[i];
    return sum;
  }

  /** What the whole row adds up to, hidden keys included: `row_mass`, or 1. */
  whole(head, query) {
    return this.mass ? this.mass[head * this.queries + query] : 1;
  }
}

/** The places of the largest numbers, largest first, those of 0 left out. */
function strongest(row, count) {
  const best = [];
  for (let i = 0; i < row.length; i++) {
    const v = row[i];
    if (!(v > 0) || (best.length === count && v <= row[best[count - 1]])) continue;
    let at = best.length;
    while (at > 0 && row[best[at - 1]] < v) at--;
    best.splice(at, 0, i);
    if (best.length > count) best.pop();
  }
  return best;
}

/** "0.1234"; small ones as "1.2e-5", so that what is not nothing never reads as nothing. */
function sayNumber(v) {
  if (!Number.isFinite(v)) return "–";
  const size = Math.abs(v);
  if (size !== 0 && size < 0.001) return v.toExponential(1);
  return size >= 100 ? v.toPrecision(6) : v.toFixed(4);
}

// ------------------------------------------------------------------------------------------------------- colours

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

/** Red, green and blue at 0..255 along a list of hex colours. */
function along(colours) {
  const points = colours.map(rgb);
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (points.length - 1);
    const low = Math.min(Math.floor(at), points.length - 2);
    return points[low].map((c, k) => Math.round(c + (points[low + 1][k] - c) * (at - low)));
  });
}

/** 256 pixels (ABGR, as little-endian canvases want them) along a list of hex colours. */
function lookup(colours) {
  return Uint32Array.from(along(colours), ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0);
}

/** Relative luminance of red, green and blue, 0 to 1 (WCAG 2). */
function luminance(channels) {
  const [r, g, b] = channels.map((c) => (c <= 10 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Per level 0..255: the colour as CSS, and the colour that is readable on it. */
function shades(colours) {
  const table = along(colours);
  return {
    back: table.map((channels) => `rgb(${channels.join(", ")})`),
    // black and white text are equally readable on a luminance of 0.18
    text: table.map((channels) => (luminance(channels) > 0.2 ? "#0c1322" : "#fff")),
  };
}

/** The scale's two ends; a diverging one is as far from 0 on both sides. */
function rangeOf(meta) {
  const [low, high] = meta.range || [0, 1];
  if (!meta.diverging) return [low, high];
  const most = Math.max(Math.abs(low), Math.abs(high));
  return [-most, most];
}

/** Do rows add up to something known, so that what is not shown can be stated? */
function isMass(meta) {
  return meta.sums_to_one ?? (!meta.unit || meta.unit.startsWith("attention weight"));
}

/** A function from a value to 0..255, linear or logarithmic over the view's range. */
function quantiser(meta) {
  const [low, high] = rangeOf(meta);
  if (meta.scale === "log" && !meta.diverging) {
    const floor = meta.log_floor || 1e-4;
    const span = Math.log(high / floor);
    return (v) => (v <= floor ? 0 : Math.min(255, Math.round((Math.log(v / floor) / span) * 255)));
  }
  const factor = 255 / (high - low || 1);
  return (v) => Math.max(0, Math.min(255, Math.round((v - low) * factor)));
}

/** Is the cell (a block of positions) wholly in the future of its queries? Only then it is structurally empty. */
function futureTest(meta, block) {
  if (!meta.causal) return null;
  const [bq, bk] = block;
  return bq === 1 && bk === 1 ? (q, k) => k > q : (q, k) => k * bk > (q + 1) * bq - 1;
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

/** A small button of the bar above a view. */
function tool(text, name, parent, action) {
  const button = make("button", "hs-tool", parent, { type: "button", "aria-label": name, title: name });
  button.textContent = text;
  button.addEventListener("click", action);
  return button;
}

/** The direction a line of tokens reads in: that of the first letter that has one, special tokens apart. */
function directionOf(labels) {
  for (const label of labels) {
    if (/^[[<].*[\]>]$/.test(label)) continue;
    const strong = label.match(/\p{L}/u);
    if (strong) return RIGHT_TO_LEFT.test(strong[0]) ? "rtl" : "ltr";
  }
  return "ltr";
}

/** A label as text in a running line: characters that steer the direction of their surroundings are shown instead. */
const inLine = (label) => String(label).replace(/[\u202a-\u202e\u2066-\u2069\u0000-\u001f]/g, "\ufffd") || "\u00a0";

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

/** How many labels one stands for, so that they keep air between them: 1, 2, 5, 10, 20, 50, … */
function thinning(cell, least) {
  const wanted = least / cell;
  if (wanted <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(wanted));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= wanted - 1e-9);
}

// ------------------------------------------------------------- pens: one way to draw on a canvas and into an SVG file

let ruler; // a context that only measures

class CanvasPen {
  constructor(context, look, ratio) {
    Object.assign(this, { context, look, ratio });
    context.imageSmoothingEnabled = false;
  }

  /** Draw with (x, y) as the origin, and nothing outside width x height when those are given. */
  at(x, y, draw, width, height) {
    const { context } = this;
    context.save();
    context.translate(x, y);
    if (width !== undefined) {
      context.beginPath();
      context.rect(0, 0, width, height);
      context.clip();
    }
    draw();
    context.restore();
  }

  image(canvas, x, y, w, h, { alpha = 1, radius = 0 } = {}) {
    const { context } = this;
    context.save();
    context.globalAlpha = alpha;
    if (radius) {
      context.beginPath();
      context.roundRect(x, y, w, h, radius);
      context.clip();
    }
    context.drawImage(canvas, x, y, w, h);
    context.restore();
  }

  box(x, y, w, h, { fill, stroke, width = 1, alpha = 1, radius = 0, dash } = {}) {
    const { context } = this;
    context.save();
    context.globalAlpha = alpha;
    context.beginPath();
    context.roundRect(x, y, w, h, radius);
    if (fill) {
      context.fillStyle = fill;
      context.fill();
    }
    if (stroke) {
      context.strokeStyle = stroke;
      context.lineWidth = width;
      context.setLineDash(dash || []);
      context.stroke();
    }
    context.restore();
  }

  /** A polyline of [x, y], or one S-shaped curve when there are four points. */
  line(points, { stroke, width = 1, alpha = 1, curved = false }) {
    const { context } = this;
    context.save();
    context.globalAlpha = alpha;
    context.strokeStyle = stroke;
    context.lineWidth = width;
    context.beginPath();
    context.moveTo(...points[0]);
    if (curved) context.bezierCurveTo(...points[1], ...points[2], ...points[3]);
    else for (const point of points.slice(1)) context.lineTo(...point);
    context.stroke();
    context.restore();
  }

  /** One line of text whose middle is at y; `align` is physical; `turn` degrees around (x, y). */
  text(words, x, y, { size = 11, weight = 400, align = "left", colour, alpha = 1, turn = 0, room } = {}) {
    const { context, look } = this;
    context.save();
    context.globalAlpha = alpha;
    context.fillStyle = colour || look.ink;
    context.font = `${weight} ${size}px ${look.font}`;
    context.textBaseline = "middle";
    context.textAlign = align;
    context.direction = RIGHT_TO_LEFT.test(words) ? "rtl" : "ltr";
    context.translate(x, y);
    if (turn) context.rotate((turn * Math.PI) / 180);
    context.fillText(room === undefined ? words : look.fit(words, size, weight, room), 0, 0);
    context.restore();
  }

  hatch(x, y, w, h, { stroke, spacing, width, alpha = 1 }) {
    this.at(x, y, () => {
      for (let d = -h; d < w; d += spacing) this.line([[d, h], [d + h, 0]], { stroke, width, alpha });
    }, w, h);
  }
}

/** Text for XML: markup escaped, characters that XML cannot carry replaced. */
function xml(value) {
  return String(value)
    .replace(/[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]/g, (pair) => (pair.length === 2 ? pair : "\ufffd"))
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd")
    .replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}

class SvgPen {
  constructor(look) {
    Object.assign(this, { look, ratio: 2, parts: [], clips: 0 });
  }

  put(tag, attributes, inner) {
    const said = Object.entries(attributes)
      .filter(([, value]) => value !== undefined && value !== false)
      .map(([name, value]) => ` ${name}="${xml(typeof value === "number" ? Number(value.toFixed(2)) : value)}"`)
      .join("");
    this.parts.push(inner === undefined ? `<${tag}${said}/>` : `<${tag}${said}>${inner}</${tag}>`);
  }

  at(x, y, draw, width, height) {
    let clip = "";
    if (width !== undefined) {
      const id = `c${(this.clips += 1)}`;
      this.parts.push(`<clipPath id="${id}"><rect width="${width}" height="${height}"/></clipPath>`);
      clip = ` clip-path="url(#${id})"`;
    }
    this.parts.push(`<g transform="translate(${x} ${y})"><g${clip}>`);
    draw();
    this.parts.push("</g></g>");
  }

  image(canvas, x, y, width, height, { alpha = 1 } = {}) {
    const href = canvas.toDataURL("image/png");
    this.put("image", {
      x, y, width, height, href, preserveAspectRatio: "none", opacity: alpha, style: "image-rendering:pixelated",
    });
  }

  box(x, y, width, height, { fill, stroke, width: line = 1, alpha = 1, radius = 0, dash } = {}) {
    this.put("rect", {
      x, y, width, height, rx: radius || undefined, fill: fill || "none", stroke,
      "stroke-width": stroke && line, "stroke-dasharray": dash && dash.join(" "), opacity: alpha < 1 && alpha,
    });
  }

  line(points, { stroke, width = 1, alpha = 1, curved = false }) {
    const at = points.map(([x, y]) => `${Number(x.toFixed(2))} ${Number(y.toFixed(2))}`);
    const d = `M${at[0]}${curved ? `C${at.slice(1).join(" ")}` : at.slice(1).map((p) => `L${p}`).join("")}`;
    this.put("path", { d, fill: "none", stroke, "stroke-width": width, opacity: alpha < 1 && alpha });
  }

  text(words, x, y, { size = 11, weight = 400, align = "left", colour, alpha = 1, turn = 0, room } = {}) {
    const { look } = this;
    const shown = room === undefined ? words : look.fit(words, size, weight, room);
    const rtl = RIGHT_TO_LEFT.test(shown);
    const anchors = rtl ? { left: "end", center: "middle", right: "start" } : { left: "start", center: "middle", right: "end" };
    this.put("text", {
      transform: `translate(${x.toFixed(2)} ${y.toFixed(2)})${turn ? ` rotate(${turn})` : ""}`, dy: "0.35em",
      "font-size": size, "font-weight": weight !== 400 && weight, "text-anchor": anchors[align], fill: colour || look.ink,
      direction: rtl && "rtl", opacity: alpha < 1 && alpha, "xml:space": "preserve",
    }, xml(shown));
  }

  hatch(x, y, w, h, options) {
    CanvasPen.prototype.hatch.call(this, x, y, w, h, options);
  }

  file(width, height, title) {
    return (
      `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
      `font-family="${xml(this.look.font)}" role="img"><title>${xml(title)}</title>${this.parts.join("")}</svg>\n`
    );
  }
}

// ----------------------------------------------------------------------------------------------- pictures to take away

const LEAST_PICTURE = 1800; // px: what a picture is wide at least, where three device pixels per pixel reach it
const MOST_SIDE = 16000; // px: browsers refuse larger canvases

/** What made the picture, as short lines; everything the page knows, in an order people read. */
function provenanceLines(provenance) {
  const left = { ...provenance };
  const take = (name) => {
    const value = left[name];
    delete left[name];
    return value === null || value === undefined || value === "" ? undefined : value;
  };
  const cut = (text) => (text.length > 400 ? `${text.slice(0, 400)}… (${text.length} characters)` : text);
  const lines = [];
  const add = (name, value) => value !== undefined && lines.push(`${name}: ${cut(String(value))}`);
  take("index_base"); // said in the last line
  const hash = take("model_sha256");
  const model = take("model");
  const places = ["site", "layer", "head", "heads", "query"].map((name) => [name, take(name)]).filter(([, v]) => v !== undefined);
  const say = (value) => (Array.isArray(value) ? value.join(", ") : value);
  const plan = take("interventions");
  const what = [
    model && `model ${model}${hash ? ` (sha256 ${String(hash).slice(0, 12)}…)` : ""}`,
    ...places.map(([name, value]) => `${name} ${say(value)}`),
    plan && `plan: ${plan}`,
  ].filter(Boolean);
  if (what.length) lines.push(what.join(" · "));
  add("text", take("text"));
  add("second text", take("text_pair"));
  add("target", take("target"));
  const versions = take("versions");
  for (const [name, value] of Object.entries(left)) {
    if (value === null || value === undefined || value === "") continue;
    const nested = typeof value === "object" && !Array.isArray(value);
    // another run's own provenance, as a difference has it: what of it tells the two apart
    add(name.replaceAll("_", " "), nested ? provenanceLines(value).slice(0, -1).join("; ") : say(value));
  }
  const tools = Object.entries(versions || {}).map(([name, version]) => `${name} ${version}`);
  lines.push(`made with ${["Headscope", ...tools].join(", ")}; layers, heads and positions count from 0`);
  return lines;
}

/** Text in lines of at most `room` px; a word that is longer is broken. */
function wrapped(text, size, room, look) {
  ruler ||= document.createElement("canvas").getContext("2d");
  ruler.font = `400 ${size}px ${look.font}`;
  const lines = [""];
  for (let word of text.replace(/\s+/g, " ").split(/(?<= )/)) {
    while (word) {
      const last = lines.length - 1;
      if (ruler.measureText(lines[last] + word.trimEnd()).width <= room) {
        lines[last] += word;
        break;
      }
      if (lines[last]) {
        lines.push("");
        continue;
      }
      const letters = Array.from(word);
      let count = letters.length;
      while (count > 1 && ruler.measureText(letters.slice(0, count).join("")).width > room) count--;
      lines[last] = letters.slice(0, count).join("");
      word = letters.slice(count).join("");
      if (word) lines.push("");
    }
  }
  return lines;
}

const slug = (text) =>
  String(text).normalize("NFKD").toLowerCase().replace(/[^\p{L}\p{N}.]+/gu, "-").replace(/^[-.]+|[-.]+$/g, "").slice(0, 48);

class Picture {
  constructor(look) {
    const { meta, kind, provenance } = look.view;
    this.look = look;
    this.body = look.painter.picture();
    const { layer, head, heads } = provenance;
    const one = head ?? (Array.isArray(heads) && heads.length === 1 ? heads[0] : undefined);
    const all = layer === undefined || layer === null ? undefined : `Layer ${layer}`;
    this.title = String(meta.title || one || this.body.title || all || meta.alt || kind);
    // a head is a head in the file's name too
    this.name = ["headscope", slug(provenance.model || ""), slug(this.title).replace(/\bl(\d+)h(\d+)\b/g, "L$1H$2"), kind]
      .filter((part, i, parts) => part && part !== parts[i - 1])
      .join("_");
    this.pad = 20;
    this.width = Math.ceil(Math.max(this.body.width, 420)) + 2 * this.pad;
    const room = this.width - 2 * this.pad;
    this.titles = wrapped(this.title, 17, room / 1.08, look);
    this.subtitle = (this.body.notes || []).filter(Boolean).flatMap((note) => wrapped(note, 12, room, look));
    this.legend = this.body.legend === undefined ? look.legendOf(meta) : this.body.legend;
    this.caption = provenanceLines(provenance).flatMap((line) => wrapped(line, 10.5, room, look));
    this.top = this.pad + this.titles.length * 22 + this.subtitle.length * 16 + (this.legend ? 26 : 4) + 6;
    this.height = Math.ceil(this.top + this.body.height + 18 + this.caption.length * 14.5 + this.pad - 4);
  }

  draw(pen) {
    const { look, pad } = this;
    pen.box(0, 0, this.width, this.height, { fill: look.page });
    let y = pad + 9;
    for (const line of this.titles) {
      pen.text(line, pad, y, { size: 17, weight: 700 });
      y += 22;
    }
    y -= 2;
    for (const line of this.subtitle) {
      pen.text(line, pad, y, { size: 12, alpha: 0.72 });
      y += 16;
    }
    if (this.legend) {
      const { colours, low, high, unit } = this.legend;
      ruler ||= document.createElement("canvas").getContext("2d");
      ruler.font = `400 12px ${look.font}`;
      const after = pad + ruler.measureText(low).width + 7;
      const strip = document.createElement("canvas");
      strip.width = 256;
      strip.height = 1;
      const image = new ImageData(256, 1);
      new Uint32Array(image.data.buffer).set(lookup(colours));
      strip.getContext("2d").putImageData(image, 0, 0);
      pen.text(low, pad, y + 4, { size: 12, alpha: 0.72 });
      pen.image(strip, after, y - 1, 130, 10, { radius: 5 });
      pen.text(`${high}   ${unit}`, after + 137, y + 4, { size: 12, alpha: 0.72 });
    }
    pen.at(pad, this.top, () => this.body.draw(pen));
    y = this.top + this.body.height + 12;
    pen.line([[pad, y], [this.width - pad, y]], { stroke: look.ink, alpha: 0.14 });
    y += 14;
    for (const line of this.caption) {
      pen.text(line, pad, y, { size: 10.5, alpha: 0.66 });
      y += 14.5;
    }
  }

  async png() {
    const wanted = Math.max(2, window.devicePixelRatio || 1, Math.min(3, LEAST_PICTURE / this.width));
    const ratio = Math.min(wanted, MOST_SIDE / this.height, MOST_SIDE / this.width);
    const canvas = document.createElement("canvas");
    canvas.width = Math.round(this.width * ratio);
    canvas.height = Math.round(this.height * ratio);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    this.draw(new CanvasPen(context, this.look, ratio));
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }

  svg() {
    const pen = new SvgPen(this.look);
    this.draw(pen);
    return new Blob([pen.file(this.width, this.height, this.title)], { type: "image/svg+xml" });
  }
}

function download(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = make("a", "", null, { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// --------------------------------------------------------------------------------------------------- the frame of a view

class Look {
  constructor(parent, painters) {
    for (const old of Array.from(parent.children)) if (old.classList.contains("hs-maps")) old.remove();
    this.painters = painters;
    this.root = make("div", "hs-maps", parent);
    this.bar = make("div", "hs-bar", this.root);
    this.legend = make("div", "hs-legend", this.bar);
    this.low = make("span", "hs-num", this.legend);
    this.scale = make("span", "hs-scale", this.legend, { "aria-hidden": "true" });
    this.high = make("span", "hs-num", this.legend);
    this.note = make("span", "hs-note", this.legend);
    this.tools = make("div", "hs-tools", this.bar);
    this.own = make("span", "hs-own", this.tools); // the painter's own tools
    tool("PNG", "Save this view as a PNG picture", this.tools, () => this.save("png"));
    tool("SVG", "Save this view as an SVG picture", this.tools, () => this.save("svg"));
    this.stage = make("div", "hs-stage", this.root);
    this.tip = make("div", "hs-tip", this.root, { "aria-hidden": "true" });
    this.probe = make("span", "hs-probe", this.root, { "aria-hidden": "true" });
    this.scratch = document.createElement("canvas");
    this.fits = new Map();
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
    this.listener = (event) => this.hear(event);
    window.addEventListener(SYNC, this.listener);
  }

  destroy() {
    this.resize.disconnect();
    cancelAnimationFrame(this.frame);
    window.removeEventListener(SYNC, this.listener);
    if (this.painter && this.painter.destroy) this.painter.destroy();
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
    const light = (0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]) / 255;
    this.theme = light < 0.45 ? "dark" : "light";
    this.ink = style.color;
    this.page = style.backgroundColor;
    if (style.fontFamily !== this.font) this.fits.clear();
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
    this.colours = meta.diverging ? palette.diverging[this.theme] : palette[this.theme];
    this.table = lookup(this.colours);
    this.accent = palette.accent[this.theme];
    this.chosen = palette.selected[this.theme];
    this.root.style.setProperty("--hs-accent", this.accent);
    this.root.style.setProperty("--hs-selected", this.chosen);
    if (!this.painter || this.painter.kind !== kind) {
      if (this.painter && this.painter.destroy) this.painter.destroy();
      this.stage.textContent = "";
      this.own.textContent = "";
      const Painter = this.painters[kind];
      this.painter = Painter ? new Painter(this) : null;
      this.bar.hidden = !Painter;
      this.root.dataset.kind = kind;
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

  // ---------------------------------------------------------------------------------------------------- the legend

  /** The scale's ends and its unit, in words. */
  legendOf(meta) {
    const [low, high] = rangeOf(meta);
    const log = meta.scale === "log" && !meta.diverging;
    const end = (v) => String(Number(v.toPrecision(4)));
    const unit = [meta.unit || (meta.diverging ? "difference" : "attention weight"), log && "logarithmic colour"];
    return {
      colours: this.colours,
      low: log ? `≤ ${meta.log_floor || 1e-4}` : end(low),
      high: meta.diverging ? `+${end(high)}` : end(high),
      unit: unit.filter(Boolean).join(", "),
    };
  }

  /** The legend above the view: the scale, then notes. */
  caption(meta, notes) {
    const { colours, low, high } = this.legendOf(meta);
    this.low.textContent = low;
    this.high.textContent = high;
    this.scale.style.background = `linear-gradient(to right, ${colours.join(", ")})`;
    const log = meta.scale === "log" && !meta.diverging;
    this.note.textContent = [meta.unit, log && "logarithmic colour", ...notes, meta.note].filter(Boolean).join(" · ");
  }

  // ------------------------------------------------------------------------------------------------ text and tooltip

  /** The text cut to `room` px; remembered, because views draw the same labels many times a second. */
  fit(text, size, weight, room) {
    const key = `${size} ${weight} ${room} ${text}`;
    let cut = this.fits.get(key);
    if (cut === undefined) {
      ruler ||= document.createElement("canvas").getContext("2d");
      ruler.font = `${weight} ${size}px ${this.font}`;
      cut = fitted(ruler, text, room);
      if (this.fits.size > 20_000) this.fits.clear();
      this.fits.set(key, cut);
    }
    return cut;
  }

  /** The widest of some labels, in px. */
  longest(labels, size) {
    ruler ||= document.createElement("canvas").getContext("2d");
    ruler.font = `400 ${size}px ${this.font}`;
    return labels.slice(0, 400).reduce((most, text) => Math.max(most, ruler.measureText(text).width), 0);
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

  // ----------------------------------------------------------------------------------------- to Python, to other views

  /** Tell Python, when it listens (`meta.listens`, set by the wrapper; without it everything is told). */
  send(name, value) {
    const { listens } = this.view.meta;
    if (!listens || listens.includes(name)) this.component.setTriggerValue(name, value);
  }

  /** Tell the other views with this meta.group what is pointed at (null: nothing any more). Stays in the browser. */
  share(detail) {
    const { group } = this.view.meta;
    if (group) window.dispatchEvent(new CustomEvent(SYNC, { detail: { ...detail, group, from: this } }));
  }

  hear({ detail }) {
    if (!this.view || detail.from === this || detail.group !== this.view.meta.group) return;
    if (this.painter && this.painter.shared) this.painter.shared(detail);
  }

  async save(type) {
    if (!this.painter || !this.view) return;
    const picture = new Picture(this);
    const blob = type === "svg" ? picture.svg() : await picture.png();
    if (blob) download(blob, `${picture.name}.${type}`);
  }
}
