/* The page: what is drawn, which theme, what happens in print. */
page.start = () => {
  const drawn = [], waiting = [];
  const kinds = { chart: page.charts, graph: page.graphs, ledger: page.ledgers, timeline: page.timelines };

  const drawOne = (place) => {
    drawn.push(kinds[place.dataset.kind].make(place, page.read(place.dataset.from)));
  };

  const whenIdle = window.requestIdleCallback || ((act) => setTimeout(act, 1));

  const drawNext = () => {
    if (waiting.length) drawOne(waiting.shift());
    if (waiting.length) whenIdle(drawNext);
    else document.documentElement.dataset.drawn = "yes";
  };

  const drawAllNow = () => waiting.splice(0).forEach(drawOne);

  /* What is in sight is drawn at once, what is below it one by one when there is time. What is
     folded has no size: it is drawn when it is opened. */
  const drawAll = () => {
    for (const place of document.querySelectorAll(".drawn")) {
      const folded = place.closest("details");
      if (folded && !folded.open) folded.addEventListener("toggle", () => drawOne(place), { once: true });
      else if (place.getBoundingClientRect().top < innerHeight) drawOne(place);
      else waiting.push(place);
    }
    whenIdle(drawNext);
  };

  const redraw = () => drawn.forEach((one) => one.draw());
  const resize = () => drawn.forEach((one) => one.resize());

  const themes = () => {
    const button = document.getElementById("theme");
    const names = { "": "as the system's", light: "light", dark: "dark" };
    const order = ["", "light", "dark"];
    button.hidden = false;
    button.addEventListener("click", () => {
      const root = document.documentElement;
      const next = order[(order.indexOf(root.dataset.theme || "") + 1) % order.length];
      if (next) root.dataset.theme = next;
      else delete root.dataset.theme;
      button.textContent = `Theme: ${names[next]}`;
      redraw();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  };

  const copies = () => {
    for (const button of document.querySelectorAll(".copy")) {
      button.hidden = false;
      button.addEventListener("click", () => {
        const range = document.createRange();
        range.selectNodeContents(button.parentElement.querySelector("code"));
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
        setTimeout(() => { button.textContent = "Copy"; }, 2000);
      });
    }
  };

  /* On paper everything is open, light, and as wide as the paper. */
  const prints = () => {
    let theme, closed;
    addEventListener("beforeprint", () => {
      const root = document.documentElement;
      theme = root.dataset.theme;
      root.dataset.theme = "light";
      closed = [...document.querySelectorAll("section > details:not([open])")];
      closed.forEach((one) => { one.open = true; });
      page.printing = true;
      drawAllNow();
      resize();
    });
    addEventListener("afterprint", () => {
      if (theme) document.documentElement.dataset.theme = theme;
      else delete document.documentElement.dataset.theme;
      closed.forEach((one) => { one.open = false; });
      page.printing = false;
      resize();
    });
  };

  /* In a notebook's frame a link would load the notebook: its place is gone to instead. */
  const links = () => {
    if (self === top) return;
    document.addEventListener("click", (event) => {
      const link = event.target.closest('a[href^="#"]');
      const there = link && document.getElementById(link.getAttribute("href").slice(1));
      if (!there) return;
      event.preventDefault();
      there.scrollIntoView();
    });
  };

  document.querySelectorAll("table.sorts").forEach(page.tables.make);
  drawAll();
  themes();
  copies();
  prints();
  links();
  let later = 0;
  addEventListener("resize", () => {
    clearTimeout(later);
    later = setTimeout(resize, 100);
  });
  document.documentElement.dataset.ready = "yes";
};

page.start();
