// Runs in the app's page before anything else: when did a person do something, what travelled, when was it all painted?
//
// All times are performance.now() of this page. `headscopeMeter.arm` waits for one action and all that follows from it;
// what it promises is an object of times and counts.

(() => {
  const PAINTED = "[data-painted]";
  const sent = [];
  const received = [];

  window.WebSocket = class extends window.WebSocket {
    constructor(...given) {
      super(...given);
      // Added before the app's own listener, so this is when a message arrives and not when it has been dealt with.
      this.addEventListener("message", ({ data }) => received.push([performance.now(), data.byteLength ?? data.size ?? data.length]));
    }

    send(data) {
      sent.push([performance.now(), data.byteLength ?? data.size ?? data.length]);
      super.send(data);
    }
  };

  /** The roots of the components inside an element, in their order; each component has a shadow root of its own. */
  function roots(within) {
    const place = within ? document.querySelector(within) : document;
    const hosts = place ? place.querySelectorAll('[data-testid^="stBidiComponent"]') : [];
    return Array.from(hosts).flatMap((host) => Array.from((host.shadowRoot || host).querySelectorAll(PAINTED)));
  }

  const lastMessage = () => (received.length ? received[received.length - 1][0] : 0);

  const views = (within) => roots(within).map((root) => root.dataset.view);

  /** After the frame that is being made now has been painted. */
  const afterPaint = () => new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(performance.now()))));

  const nextFrame = () => new Promise((done) => requestAnimationFrame(done));

  /**
   * Wait for one event of the given type, then until every component inside `within` shows another view than before and
   * nothing has changed or come for `quiet` milliseconds. Times are from the event:
   *
   * committed: the browser first sent something. answered: the first message came. arrived: the last message before the
   * painting came. painted: the frame in which the last component was new has been painted. each: when each component
   * was new. idle: the last message of all came.
   */
  async function arm({ type, within, count, quiet, timeout }) {
    const before = new Set(views(within));
    let shown = views(within);
    const started = await new Promise((done) => {
      window.addEventListener(type, (event) => done(event.timeStamp), { capture: true, once: true });
    });
    const each = new Map();
    let painted = null;
    for (;;) {
      await nextFrame();
      const now = views(within);
      if (now.length !== shown.length || now.some((view, place) => view !== shown[place])) {
        const when = await afterPaint();
        now.forEach((view, place) => {
          if (view !== shown[place]) each.set(place, when - started);
        });
        shown = now;
        painted = when;
      }
      const isNew = painted !== null && shown.length >= Math.max(before.size, count) && shown.every((view) => !before.has(view));
      if (isNew && performance.now() - Math.max(painted, lastMessage()) > quiet) break;
      if (performance.now() - started > timeout) throw new Error(`nothing new after ${timeout} ms: ${JSON.stringify(shown)}`);
    }
    const after = (list) => list.filter(([when]) => when >= started);
    const messages = after(received);
    const commits = after(sent);
    return {
      committed: commits[0][0] - started,
      answered: messages[0][0] - started,
      arrived: Math.max(...messages.filter(([when]) => when <= painted).map(([when]) => when)) - started,
      painted: painted - started,
      idle: messages[messages.length - 1][0] - started,
      each: Array.from(each).sort((a, b) => a[0] - b[0]).map(([, when]) => when),
      drawing: roots(within).map((root) => Number(root.dataset.milliseconds || 0)),
      messages: messages.length,
      bytes: messages.reduce((sum, [, size]) => sum + size, 0),
      bytesUp: commits.reduce((sum, [, size]) => sum + size, 0),
    };
  }

  /** How often each component has painted, and what. */
  const paintings = () => roots().map((root) => `${root.dataset.view}|${root.dataset.painted}`).join();

  const isRunning = () => {
    const app = document.querySelector("[data-testid=stApp]");
    return Boolean(app) && app.getAttribute("data-test-script-state") === "running";
  };

  /**
   * Wait for one event of the given type, then until the page has run again and nothing has been painted and no message
   * has come for `quiet` milliseconds. Times are from the event:
   *
   * ended: the app showed that the page's run had ended. painted: the last component that painted anew was on the screen
   * (null: none did). answered: the later of the two, and of the paint after the run's end.
   */
  async function rerun({ type, quiet, timeout }) {
    let shown = paintings();
    const started = await new Promise((done) => {
      window.addEventListener(type, (event) => done(event.timeStamp), { capture: true, once: true });
    });
    let began = null;
    let ended = null;
    let painted = null;
    let answered = null;
    for (;;) {
      await nextFrame();
      const now = paintings();
      if (now !== shown) {
        shown = now;
        painted = await afterPaint();
      }
      if (isRunning()) {
        began ??= performance.now();
        ended = null;
      } else if (began !== null && ended === null) {
        ended = performance.now();
        answered = await afterPaint();
      }
      if (ended !== null && performance.now() - Math.max(ended, painted ?? 0, lastMessage()) > quiet) break;
      if (performance.now() - started > timeout) throw new Error(`no run of the page has ended after ${timeout} ms`);
    }
    const after = (list) => list.filter(([when]) => when >= started);
    return {
      ended: ended - started,
      painted: painted === null ? null : painted - started,
      answered: Math.max(answered, painted ?? 0) - started,
      messages: after(received).length,
      bytes: after(received).reduce((sum, [, size]) => sum + size, 0),
    };
  }

  /** Until nothing has come from the server for a while. */
  async function settled(quiet) {
    for (;;) {
      if (performance.now() - lastMessage() >= quiet) return;
      await nextFrame();
    }
  }

  window.headscopeMeter = {
    views,
    settled,
    arm(options) {
      window.headscopeMeter.result = arm(options);
    },
    armRerun(options) {
      window.headscopeMeter.result = rerun(options);
    },
  };
})();
