/* Which rank saw which samples in which step: a panel for each number of ranks. */
page.ledgers = (() => {
  const SCALE = ["#440154", "#3B528B", "#21918C", "#5EC962", "#FDE725"]; // of samples, the first one dark
  const AGAIN = "#D55E00";
  const TOP = 20, BOTTOM = 22, WIDEST = 120, GAP = 6, TEXT = 11, MOST_ROWS = 2000;

  const colorOf = (part) => {
    const at = Math.min(Math.max(part, 0), 1) * (SCALE.length - 1), low = Math.min(Math.floor(at), SCALE.length - 2);
    const [a, b] = [page.rgb(SCALE[low]), page.rgb(SCALE[low + 1])];
    return `rgb(${a.map((one, place) => Math.round(one + (b[place] - one) * (at - low))).join(",")})`;
  };

  const font = `${TEXT}px system-ui, "DejaVu Sans", sans-serif`;

  const rowHeight = (count) => Math.max(5, Math.min(26, Math.floor(560 / count)));

  /* The least of 1, 2, 5, 10, ... that is at least so much. */
  const every = (least) => {
    for (let scale = 1; ; scale *= 10) for (const one of [1, 2, 5]) if (one * scale >= least) return one * scale;
  };

  const listed = (samples) => (samples.length > 24 ? `${samples.slice(0, 24).join(", ")} and ${samples.length - 24} more` : samples.join(", "));

  const makePanel = (data, panel, box) => {
    const canvas = page.make("canvas", { role: "img", "aria-label": panel.caption });
    box.append(page.make("figure", { class: "ledger" }, page.make("figcaption", {}, panel.name), canvas));
    const cells = new Map(panel.cells.map((cell) => [`${cell[0]}.${cell[1]}`, cell]));
    const missed = panel.epochs.filter((one) => one.missed && one.missed.length);
    const height = rowHeight(panel.ranks), missedHeight = missed.length ? Math.max(height, 16) : 0;
    const missedTop = TOP + panel.ranks * height + GAP;
    let left = 0, cell = 0;
    const color = (sample) => colorOf((sample - data.first) / Math.max(data.last - data.first, 1));

    /* Stripes of samples in a box; some of them where pixels are fewer. */
    const stripes = (pen, samples, x, y, width, tall) => {
      const count = Math.max(1, Math.min(samples.length, Math.floor(width))), each = width / count;
      for (let at = 0; at < count; at++) {
        const sample = samples[Math.floor((at * samples.length) / count)];
        pen.fillStyle = color(sample);
        pen.fillRect(x + at * each, y, each > 3 ? each - 0.5 : each + 0.3, tall);
        if (count < samples.length || tall < 14 || pen.measureText(String(data.last)).width + 4 > each) continue;
        pen.fillStyle = (sample - data.first) / Math.max(data.last - data.first, 1) > 0.55 ? "#222222" : "#ffffff";
        pen.textAlign = "center";
        pen.fillText(String(sample), x + (at + 0.5) * each, y + tall / 2);
      }
    };

    const drawCell = (pen, [rank, step, , samples, again]) => {
      const x = left + (step - 1) * cell, y = TOP + rank * height;
      const width = cell - (cell > 5 ? 2 : 0.5), tall = height - (height > 6 ? 1.5 : 0.5);
      if (!samples.length) {
        pen.strokeStyle = page.ink("muted");
        pen.strokeRect(x + 0.5, y + 0.5, width - 1, tall - 1);
        return;
      }
      stripes(pen, samples, x, y, width, tall);
      const each = width / samples.length, mark = Math.max(2, Math.round(tall / 5));
      for (const at of again) {
        pen.fillStyle = page.ink("ground");
        pen.fillRect(x + at * each, y + tall - mark - 1, Math.max(each, 1), 1);
        pen.fillStyle = AGAIN;
        pen.fillRect(x + at * each, y + tall - mark, Math.max(each, 1), mark);
      }
    };

    /* Epochs above, ranks at the left, steps below; names that have no room are left out. */
    const drawAxes = (pen) => {
      pen.fillStyle = page.ink("ink");
      pen.textAlign = "right";
      const gap = every(14 / height);
      for (let rank = 0; rank < panel.ranks; rank += gap) pen.fillText(String(rank), left - 6, TOP + (rank + 0.5) * height);
      if (missed.length) pen.fillText("missed", left - 6, missedTop + missedHeight / 2);
      const bottom = missedTop + missedHeight + (missed.length ? 4 : 0);
      pen.textAlign = "center";
      const steps = every((pen.measureText(String(panel.steps)).width + 10) / cell);
      for (let step = 1; step <= panel.steps; step++) {
        const isNamed = step === 1 || (step % steps === 0 && step - 1 >= 0.75 * steps);
        if (isNamed) pen.fillText(String(step), left + (step - 0.5) * cell, bottom + 9);
      }
      pen.textAlign = "left";
      let free = 0;
      for (const one of panel.epochs) {
        const x = left + (one.from - 1) * cell;
        pen.fillStyle = page.ink("muted");
        if (one.from > 1) pen.fillRect(x - 1.5, 4, 1, bottom - 4);
        const text = [`epoch ${one.epoch}`, String(one.epoch)].find((name) => x + pen.measureText(name).width + 8 <= left + one.to * cell + 2);
        if (text === undefined || x < free) continue;
        pen.fillText(text, x + 3, 10);
        free = x + 3 + pen.measureText(text).width + 6;
      }
    };

    const draw = () => {
      const width = box.clientWidth, tall = missedTop + missedHeight + (missed.length ? 4 : 0) + BOTTOM;
      const ratio = window.devicePixelRatio || 1;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(tall * ratio);
      canvas.style.height = `${tall}px`;
      const pen = canvas.getContext("2d");
      pen.scale(ratio, ratio);
      pen.font = font;
      pen.textBaseline = "middle";
      left = Math.ceil(pen.measureText("missed").width) + 12;
      cell = Math.min((width - left - 8) / data.steps, WIDEST);
      panel.cells.forEach((one) => drawCell(pen, one));
      for (const one of missed) stripes(pen, one.missed, left + (one.from - 1) * cell, missedTop, (one.to - one.from + 1) * cell - 2, missedHeight);
      drawAxes(pen);
    };

    const told = (x, y) => {
      const step = Math.floor((x - left) / cell) + 1, rank = Math.floor((y - TOP) / height);
      if (x < left || step > panel.steps) return "";
      if (missed.length && y >= missedTop && y < missedTop + missedHeight) {
        const one = missed.find(({ from, to }) => from <= step && step <= to);
        return one ? `epoch ${one.epoch}: no rank sees ${listed(one.missed)}` : "";
      }
      const found = cells.get(`${rank}.${step}`);
      if (!found) return "";
      const [, , epoch, samples, again] = found;
      const lines = [`rank ${rank}, step ${step}, epoch ${epoch}`, samples.length ? `samples ${listed(samples)}` : "no samples"];
      return [...lines, ...(again.length ? [`seen before in this epoch: ${listed(again.map((at) => samples[at]))}`] : [])].join("\n");
    };

    const tip = document.getElementById("tip");
    canvas.addEventListener("mousemove", (event) => {
      const text = told(event.offsetX, event.offsetY), at = canvas.getBoundingClientRect();
      tip.hidden = !text;
      tip.textContent = text;
      tip.style.left = `${Math.min(at.left + event.offsetX + 14, innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${Math.min(at.top + event.offsetY + 16, innerHeight - tip.offsetHeight - 8)}px`;
    });
    canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
    return draw;
  };

  const swatch = (paint) => {
    const made = page.make("canvas", { width: 44, height: 12 });
    paint(made.getContext("2d"));
    return made;
  };

  const legendOf = (data) => {
    const scale = swatch((pen) => {
      for (let x = 0; x < 44; x++) {
        pen.fillStyle = colorOf(x / 43);
        pen.fillRect(x, 0, 1, 12);
      }
    });
    const again = swatch((pen) => {
      pen.fillStyle = colorOf(0.5);
      pen.fillRect(0, 0, 44, 12);
      pen.fillStyle = AGAIN;
      pen.fillRect(0, 8, 44, 4);
    });
    return page.make("ul", { class: "legend", "aria-label": "What colours mean" },
      page.make("li", {}, scale, `samples ${data.first} to ${data.last}`),
      ...(data.repeats ? [page.make("li", {}, again, "seen before in the same epoch")] : []),
      page.make("li", {}, "rows: ranks; columns: optimizer steps"));
  };

  const tableOf = (data) => {
    const rows = data.panels.flatMap((panel) => panel.cells.map(([rank, step, epoch, samples, again]) =>
      [panel.name, String(rank), String(step), String(epoch), samples.join(", "), again.map((at) => samples[at]).join(", ")]));
    return page.tables.ofData(["ranks", "rank", "step", "epoch", "samples", "seen before in the epoch"], rows.slice(0, MOST_ROWS));
  };

  const make = (place, data) => {
    const box = page.make("div", {}), folded = page.make("details", { class: "data" }, page.make("summary", {}, "The figures as a table"));
    place.append(legendOf(data), box, folded);
    folded.addEventListener("toggle", () => {
      if (folded.open && folded.children.length === 1) folded.append(tableOf(data));
    });
    const panels = data.panels.map((panel) => makePanel(data, panel, box));
    const draw = () => panels.forEach((one) => one());
    draw();
    return { draw, resize: draw };
  };

  return { make };
})();
