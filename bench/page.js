// Watches the page from inside: when rows are painted after what brought them.
(() => {
  const waiting = [];
  const painted = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(() => resolve(performance.now()))));

  /** Give the time at which something that `found` finds was painted. */
  const until = (found) =>
    new Promise((resolve) => {
      const look = () => {
        if (!found()) return false;
        painted().then(resolve);
        return true;
      };
      if (!look()) waiting.push(look);
    });
  new MutationObserver(() => {
    for (let index = waiting.length - 1; index >= 0; index--) if (waiting[index]()) waiting.splice(index, 1);
  }).observe(document, { childList: true, subtree: true, characterData: true });

  let clicked = 0;
  addEventListener("click", () => (clicked = performance.now()), { capture: true });
  const rows = until(() => document.querySelector(".session-row"));

  // What is new: from the event that tells of it to the screen.
  let isHeard = () => false;
  let heardAt = 0;
  let seen = null;
  const Native = WebSocket;
  window.WebSocket = class extends Native {
    constructor(...given) {
      super(...given);
      this.addEventListener("message", ({ data }) => {
        if (!heardAt && isHeard(data)) heardAt = performance.now();
      });
    }
  };
  const expect = (heard, found) => {
    isHeard = heard;
    heardAt = 0;
    seen = until(found);
  };

  window.bench = {
    async listed() {
      const at = await rows;
      return [performance.getEntriesByName("first-contentful-paint")[0].startTime, at];
    },
    async opened() {
      return (await until(() => document.querySelector(".log article"))) - clicked;
    },
    /** Scroll from the end to the beginning, older messages and all; give how long each frame took. */
    async scrollThrough() {
      const log = document.querySelector(".log");
      const frames = [];
      let before = await new Promise(requestAnimationFrame);
      for (let still = 0; still < 120; ) {
        log.scrollTop -= 1200;
        const now = await new Promise(requestAnimationFrame);
        frames.push(now - before);
        before = now;
        still = log.scrollTop <= 0 && !document.querySelector(".older") ? 1000 : log.scrollTop <= 0 ? still + 1 : 0;
      }
      log.scrollTop = log.scrollHeight;
      await painted();
      return frames;
    },
    expectSaid(text) {
      const rows = () => [...document.querySelectorAll(".log article")].slice(-3);
      expect((data) => data.includes('"session.message"') && data.includes(text), () => rows().some((row) => row.textContent.includes(text)));
    },
    expectFirst(key) {
      expect((data) => data.includes('"sessions.changed"') && data.includes(key), () => document.querySelector('[data-index="0"] .session-row')?.title === key);
    },
    async seen() {
      return (await seen) - heardAt;
    },
  };
})();
