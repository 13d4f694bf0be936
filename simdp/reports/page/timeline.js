/* Who did what, when: rows of ranks; thousands of them as a density that opens into rows. */
page.timelines = (() => {
  const ROW = 7; // pixels from which on a rank has a row of its own
  const MOST_LABELS = 300;
  const SPEED = 0.25;

  const arrays = { Uint32: Uint32Array, Int32: Int32Array };

  /* What simdp.reports.page.spans.pack packed. */
  const unpack = async ({ type, length, bytes }) => {
    const packed = Uint8Array.from(atob(bytes), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const planes = new Uint8Array(await new Response(stream).arrayBuffer());
    const made = new arrays[type](length);
    for (let at = 0; at < length; at++) {
      made[at] = planes[at] | (planes[length + at] << 8) | (planes[2 * length + at] << 16) | (planes[3 * length + at] << 24);
    }
    return made;
  };

  /* Starts and ends of all spans, in units of the axis; where each group's spans begin. */
  const spansOf = async (data, perSecond) => {
    const keys = ["ranks", "group", "counts", "kind", "gap", "length"];
    const [ranks, group, counts, kind, gap, length] = await Promise.all(keys.map((key) => unpack(data[key])));
    const start = new Float64Array(kind.length), end = new Float64Array(kind.length);
    const first = new Uint32Array(counts.length + 1);
    const tick = data.tick * perSecond;
    let at = 0;
    counts.forEach((count, number) => {
      let lane = -1, now = 0;
      for (const last = at + count; at < last; at++) {
        if (data.kinds[kind[at]][0] !== lane) [lane, now] = [data.kinds[kind[at]][0], 0];
        now += gap[at];
        start[at] = now * tick;
        now += length[at];
        end[at] = now * tick;
      }
      first[number + 1] = at;
    });
    return { ranks: [...ranks], group, first, kind, start, end };
  };

  const unitOf = (seconds) =>
    [["s", 1], ["ms", 1e3], ["us", 1e6]].find(([, scale]) => seconds * scale >= 1) || ["ns", 1e9];

  /* A pattern of an activity, as in the house's pictures. */
  const fillOf = (name) => {
    const look = page.house.fills[name] || { color: "#888888", hatch: "" };
    if (!look.hatch) return look.color;
    const tile = page.make("canvas", { width: 8, height: 8 });
    const pen = tile.getContext("2d");
    pen.fillStyle = look.color;
    pen.fillRect(0, 0, 8, 8);
    pen.strokeStyle = pen.fillStyle = look.hatch_color;
    pen.lineWidth = 1;
    const lines = { "/": [[-2, 10, 10, -2], [-2, 2, 2, -2], [6, 10, 10, 6]], "\\": [[-2, -2, 10, 10], [6, -2, 10, 2], [-2, 6, 2, 10]],
      "|": [[4, -1, 4, 9]], "-": [[-1, 4, 9, 4]], "+": [[4, -1, 4, 9], [-1, 4, 9, 4]], x: [[-2, 10, 10, -2], [-2, -2, 10, 10]] };
    for (const [a, b, c, d] of lines[look.hatch[0]] || []) {
      pen.beginPath();
      pen.moveTo(a, b);
      pen.lineTo(c, d);
      pen.stroke();
    }
    if (look.hatch[0] === ".") pen.fillRect(2, 2, 2, 2);
    return { image: tile, repeat: "repeat" };
  };

  const Bars = echarts.graphic.extendShape({
    shape: { rects: [] },
    buildPath: (pen, { rects }) => {
      for (let at = 0; at < rects.length; at += 4) pen.rect(rects[at], rects[at + 1], rects[at + 2], rects[at + 3]);
    },
  });
  echarts.graphic.registerShape("simdp-bars", Bars);

  const make = (place, data) => {
    const [unit, perSecond] = unitOf(data.view[1] - data.view[0]);
    const toAxis = (instant) => (instant - data.begin) * perSecond;
    const view = { from: toAxis(data.view[0]), to: toAxis(data.view[1]), rows: null, lanes: data.lanes.map(() => true) };
    let spans = null, shown = [], frame = null, fills = [], whole = 0, chart = null;
    let names = null; // of rows that are groups of ranks; null where each rank has a row

    /* Lanes that are asked for, from the top of a row: their places, or -1. */
    const laneRows = () => {
      let count = 0;
      const places = view.lanes.map((wanted) => (wanted ? count++ : -1));
      return [places, Math.max(count, 1)];
    };

    const visible = (api, params) => {
      const { x, y, width, height } = params.coordSys;
      const size = api.size([0, 1])[1];
      const top = api.coord([0, 0])[1] - size / 2;
      const from = Math.max(0, Math.floor((y - top) / size)), to = Math.min(shown.length, Math.ceil((y + height - top) / size));
      const left = api.coord([0, 0])[0], scale = api.size([1, 0])[0];
      return { x, y, width, height, size, top, from, to, left, scale };
    };

    /* Rectangles of every activity, and labels; neighbours less than a pixel apart are one. */
    const rowsFrame = (v) => {
      const made = data.activities.map(() => []), labels = [];
      const [places, count] = laneRows();
      const height = (v.size * 0.86) / count;
      for (let row = v.from; row < v.to; row++) {
        const group = spans.group[shown[row]];
        const top = v.top + row * v.size + v.size * 0.07;
        let before = null, beforeKind = -1;
        for (let at = spans.first[group]; at < spans.first[group + 1]; at++) {
          const [lane, activity] = data.kinds[spans.kind[at]];
          if (places[lane] < 0) continue;
          const x = v.left + spans.start[at] * v.scale, right = v.left + spans.end[at] * v.scale;
          if (right < v.x || x > v.x + v.width) continue;
          const rects = made[activity], a = Math.max(x, v.x - 2), b = Math.min(Math.max(right, x + 0.5), v.x + v.width + 2);
          if (before === rects && beforeKind === lane && b - a < 1.5 && a - (rects.at(-4) + rects.at(-2)) < 0.5) {
            rects[rects.length - 2] = b - rects.at(-4);
          } else {
            rects.push(a, top + places[lane] * height, Math.max(b - a - (b - a > 4 ? 0.7 : 0), 0.4), height - (height > 5 ? 1 : 0));
          }
          [before, beforeKind] = [rects, lane];
          if (b - a > 24 && height > 9) labels.push([b - a, a, top + (places[lane] + 0.5) * height, at]);
        }
      }
      labels.sort((one, other) => other[0] - one[0]);
      return { rects: made, labels: labels.slice(0, MOST_LABELS), height };
    };

    /* One image: a cell's colour is the mean of what its ranks do in its time. */
    const densityFrame = (v) => {
      const columns = Math.max(1, Math.ceil(v.width / 2)), bins = Math.max(1, Math.min(Math.ceil(v.height / 2), v.to - v.from));
      const sums = new Float32Array(columns * bins * 4);
      const [places, count] = laneRows();
      const colors = data.activities.map((name) => page.rgb((page.house.fills[name] || { color: "#888888" }).color));
      for (let bin = 0; bin < bins; bin++) {
        const ranks = new Map();
        const low = v.from + Math.floor((bin * (v.to - v.from)) / bins), high = v.from + Math.floor(((bin + 1) * (v.to - v.from)) / bins);
        for (let row = low; row < Math.max(high, low + 1); row++) {
          const group = spans.group[shown[row]];
          ranks.set(group, (ranks.get(group) || 0) + 1);
        }
        const all = [...ranks.values()].reduce((sum, one) => sum + one, 0) * count;
        for (const [group, many] of ranks) addDensity(sums, v, columns, bin, group, many / all, places, colors);
      }
      return { image: imageOf(sums, columns, bins), at: [v.x, v.top + v.from * v.size, v.width, (v.to - v.from) * v.size] };
    };

    const addDensity = (sums, v, columns, bin, group, weight, places, colors) => {
      for (let at = spans.first[group]; at < spans.first[group + 1]; at++) {
        const [lane, activity] = data.kinds[spans.kind[at]];
        if (places[lane] < 0) continue;
        const a = ((v.left + spans.start[at] * v.scale - v.x) / v.width) * columns;
        const b = ((v.left + spans.end[at] * v.scale - v.x) / v.width) * columns;
        if (b <= 0 || a >= columns) continue;
        const color = colors[activity];
        for (let column = Math.max(0, Math.floor(a)); column < Math.min(columns, b); column++) {
          const part = weight * (Math.min(b, column + 1) - Math.max(a, column));
          const place = 4 * (bin * columns + column);
          for (let one = 0; one < 3; one++) sums[place + one] += part * color[one];
          sums[place + 3] += part;
        }
      }
    };

    const imageOf = (sums, columns, bins) => {
      const canvas = page.make("canvas", { width: columns, height: bins });
      const pen = canvas.getContext("2d"), image = pen.createImageData(columns, bins);
      for (let at = 0; at < sums.length; at += 4) {
        const part = sums[at + 3];
        for (let one = 0; one < 3; one++) image.data[at + one] = part ? sums[at + one] / part : 0;
        image.data[at + 3] = 255 * Math.min(1, part);
      }
      pen.putImageData(image, 0, 0);
      return canvas;
    };

    const labelOf = ([width, left, middle, at]) => {
      const [, activity, name] = data.kinds[spans.kind[at]];
      const text = data.names[name];
      if (!text || data.activities[activity] === "wait") return null;
      return { type: "text", silent: true, x: left + width / 2, y: middle,
        style: { text, fontSize: 10, width: width - 4, overflow: "truncate", ellipsis: "…", align: "center", verticalAlign: "middle",
          fill: (page.house.fills[data.activities[activity]] || {}).text_color || "#222222" } };
    };

    const renderItem = (params, api) => {
      const v = visible(api, params);
      const isDense = v.size < ROW;
      place.dataset.shows = isDense ? "density" : "rows";
      if (isDense) {
        const { image, at: [x, y, width, height] } = densityFrame(v);
        return { type: "group", children: [{ type: "image", silent: true, style: { image, x, y, width, height } }] };
      }
      frame = rowsFrame(v);
      const bars = frame.rects.map((rects, activity) => rects.length && { type: "simdp-bars", silent: true, shape: { rects }, style: { fill: fills[activity] } });
      return { type: "group", children: [...bars, ...frame.labels.map(labelOf)].filter(Boolean) };
    };

    const rankName = (rank) => (data.slow[rank] === undefined ? String(rank) : `▲ ${rank}${data.slow[rank]}`);
    const rowName = (row) => (names ? names[row] : rankName(spans.ranks[shown[row]]));

    /* A row for each group of ranks that do the same, as at first; or one for every rank. */
    const group = (wanted) => {
      names = wanted ? data.rows.map(({ name, count }) => (count > 2 ? `${name} (${count})` : name)) : null;
      const places = new Map(spans.ranks.map((rank, at) => [rank, at]));
      shown = wanted ? data.rows.map(({ rank }) => places.get(rank)) : spans.ranks.map((_, at) => at);
      view.rows = null;
    };

    const labelWidth = () => (page.isNarrow() ? 42 : 66) + (names ? (page.isNarrow() ? 40 : 100) : 0);

    const option = () => {
      const ink = page.ink("ink"), many = shown.length;
      const sliders = { textStyle: { color: ink }, borderColor: page.ink("muted"), fillerColor: "#8888884d", showDetail: false, throttle: 40, filterMode: "none" };
      const inside = { type: "inside", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false, filterMode: "none", throttle: 40,
        moveOnMouseMove: matchMedia("(pointer: fine)").matches, disabled: !matchMedia("(pointer: fine)").matches };
      return {
        animation: false,
        textStyle: { fontFamily: "system-ui, DejaVu Sans, sans-serif", color: ink },
        grid: { left: labelWidth() + 6, right: many > 1 ? 44 : 16, top: 8, bottom: 78 },
        xAxis: { type: "value", min: 0, max: whole, name: `Time [${unit}]`, nameLocation: "middle", nameGap: 26, axisLabel: { color: ink, formatter: page.number, hideOverlap: true, showMinLabel: false, showMaxLabel: false },
          nameTextStyle: { color: ink }, splitLine: { lineStyle: { color: page.ink("faint") } } },
        yAxis: { type: "category", inverse: true, data: shown.map((_, row) => rowName(row)), name: "", axisTick: { show: false },
          axisLabel: { color: ink, width: labelWidth(), overflow: "truncate", interval: (at) => at % labelEvery() === 0, hideOverlap: true }, axisLine: { lineStyle: { color: page.ink("muted") } } },
        dataZoom: [
          { id: "x", type: "slider", xAxisIndex: 0, bottom: 8, height: 24, startValue: view.from, endValue: view.to, ...sliders, showDataShadow: false },
          { id: "y", type: "slider", yAxisIndex: 0, right: 6, width: 20, startValue: view.rows ? view.rows[0] : 0, endValue: view.rows ? view.rows[1] : many - 1, show: many > 1, ...sliders, showDataShadow: false },
          { id: "inside-x", xAxisIndex: 0, startValue: view.from, endValue: view.to, ...inside },
          { id: "inside-y", yAxisIndex: 0, startValue: view.rows ? view.rows[0] : 0, endValue: view.rows ? view.rows[1] : many - 1, ...inside, zoomOnMouseWheel: "shift" },
        ],
        series: [{ type: "custom", renderItem, data: [[0, 0]], clip: true, encode: { x: -1, y: -1 }, silent: true }],
      };
    };

    /* Every how many rows one is named, so that names stand apart. */
    const labelEvery = () => {
      const [low, high] = rowsNow(), room = Math.max(1, (box.clientHeight - 86) / 16);
      const least = (high - low + 1) / room;
      return [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096].find((step) => step >= least) || 8192;
    };

    const draw = () => {
      if (!spans) return;
      fills = data.activities.map(fillOf);
      box.style.height = `${Math.max(180, Math.min(620, 96 + shown.length * 15 * laneRows()[1] + 10))}px`;
      chart.resize();
      chart.setOption(option(), { notMerge: true });
      drawLegend();
    };

    const zoomTo = (from, to) => {
      const width = Math.min(Math.max(to - from, whole * 1e-6), whole);
      view.from = Math.max(0, Math.min(from, whole - width));
      view.to = view.from + width;
      apply();
    };

    const rowsTo = (from, to) => {
      const count = Math.min(Math.max(to - from, 0), shown.length - 1);
      const first = Math.round(Math.max(0, Math.min(from, shown.length - 1 - count)));
      view.rows = [first, Math.round(first + count)];
      apply();
    };

    const apply = () => {
      const [low, high] = view.rows || [0, shown.length - 1];
      const time = { startValue: view.from, endValue: view.to }, rows = { startValue: low, endValue: high };
      chart.setOption({ dataZoom: [{ id: "x", ...time }, { id: "y", ...rows }, { id: "inside-x", ...time }, { id: "inside-y", ...rows }] });
    };

    const readView = () => {
      const [x, y] = chart.getOption().dataZoom;
      view.from = x.startValue;
      view.to = x.endValue;
      view.rows = [y.startValue, y.endValue];
    };

    const zoom = (factor) => {
      const middle = (view.from + view.to) / 2, half = ((view.to - view.from) / 2) * factor;
      zoomTo(middle - half, middle + half);
    };
    const move = (part) => zoomTo(view.from + part * (view.to - view.from), view.to + part * (view.to - view.from));
    const rowsNow = () => view.rows || [0, shown.length - 1];
    const moveRows = (part) => {
      const [low, high] = rowsNow(), by = Math.sign(part) * Math.max(1, Math.round(Math.abs(part) * (high - low + 1)));
      rowsTo(low + by, high + by);
    };
    const zoomRows = (factor) => {
      const [low, high] = rowsNow(), middle = (low + high) / 2, half = Math.max(((high - low) / 2) * factor, 0.5);
      rowsTo(middle - half, middle + half);
    };
    const reset = () => {
      view.rows = null;
      zoomTo(toAxis(data.view[0]), toAxis(data.view[1]));
    };

    /* "0-7, 12": places of these ranks; all of them for nothing that can be read. */
    const ranksOf = (text) => {
      const wanted = new Set();
      for (const [, low, high] of text.matchAll(/(\d+)(?:\s*[-–]\s*(\d+))?/g)) {
        for (let rank = Number(low); rank <= Math.min(Number(high || low), spans.ranks.at(-1)); rank++) wanted.add(rank);
      }
      const every = spans.ranks.map((_, at) => at);
      const found = wanted.size ? every.filter((at) => wanted.has(spans.ranks[at])) : every;
      return found.length ? found : every;
    };

    const findAt = (x, y) => {
      if (!chart.containPixel({ gridIndex: 0 }, [x, y])) return null;
      const [time, row] = chart.convertFromPixel({ gridIndex: 0 }, [x, y]);
      if (shown[row] === undefined) return null;
      const pixel = chart.convertToPixel({ xAxisIndex: 0 }, time + (view.to - view.from) / 1000);
      const slack = ((view.to - view.from) / 1000) / Math.max(pixel - x, 1e-9);
      const [places, count] = laneRows();
      const middle = chart.convertToPixel({ yAxisIndex: 0 }, row), step = chart.getModel().getComponent("yAxis").axis.getBandWidth();
      const lane = Math.min(count - 1, Math.max(0, Math.floor(((y - middle) / step + 0.43) / (0.86 / count))));
      const group = spans.group[shown[row]];
      for (let at = spans.first[group]; at < spans.first[group + 1]; at++) {
        if (places[data.kinds[spans.kind[at]][0]] !== lane) continue;
        if (spans.start[at] - slack <= time && time <= spans.end[at] + slack) return [row, at];
      }
      return [row, -1];
    };

    const told = ([row, at]) => {
      const who = `rank${names && data.rows[row].count > 1 ? "s" : ""} ${rowName(row)}`;
      if (at < 0) return `${who}\nidle`;
      const [lane, activity, name, step] = data.kinds[spans.kind[at]];
      const [small, scale] = unitOf((spans.end[at] - spans.start[at]) / perSecond);
      return [who, `${data.activities[activity]}${data.names[name] ? `: ${data.names[name]}` : ""}`,
        `${page.number(((spans.end[at] - spans.start[at]) / perSecond) * scale)} ${small}, from ${page.number(spans.start[at])} ${unit}`,
        `${data.lanes[lane]}, step ${step + 1}`].join("\n");
    };

    const tip = document.getElementById("tip");
    const hover = (event) => {
      const found = spans && findAt(event.offsetX, event.offsetY);
      tip.hidden = !found || place.dataset.shows === "density";
      if (tip.hidden) return;
      tip.textContent = told(found);
      const at = box.getBoundingClientRect();
      tip.style.left = `${Math.min(at.left + event.offsetX + 14, innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${Math.min(at.top + event.offsetY + 16, innerHeight - tip.offsetHeight - 8)}px`;
    };

    const keys = { ArrowLeft: () => move(-SPEED), ArrowRight: () => move(SPEED), ArrowUp: () => moveRows(-SPEED), ArrowDown: () => moveRows(SPEED),
      "+": () => zoom(0.5), "-": () => zoom(2), "=": () => zoom(0.5), PageUp: () => zoomRows(0.5), PageDown: () => zoomRows(2), Home: reset };

    const button = (text, label, act) => {
      const made = page.make("button", { type: "button", "aria-label": label, title: label }, text);
      made.addEventListener("click", act);
      return made;
    };

    const stepChoice = () => {
      const choice = page.make("select", {}, page.make("option", { value: "" }, "all"),
        ...data.steps.map(([step], at) => page.make("option", { value: at }, String(step))));
      choice.addEventListener("change", () => {
        if (choice.value === "") return zoomTo(0, whole);
        const [, from, to] = data.steps[choice.value];
        return zoomTo(toAxis(from), toAxis(to));
      });
      choice.value = "";
      choice.selectedIndex = -1;
      return page.make("label", {}, "Step ", choice);
    };

    const rankChoice = () => {
      const field = page.make("input", { type: "text", placeholder: "such as 0-7, 12", size: 12 });
      field.addEventListener("change", () => {
        if (rowChoice) rowChoice.value = "ranks";
        group(false);
        shown = ranksOf(field.value);
        draw();
      });
      return page.make("label", {}, "Ranks ", field);
    };

    const rowChoice = data.rows.length ? page.make("select", {}, page.make("option", { value: "groups" }, "groups of ranks"),
      page.make("option", { value: "ranks" }, "every rank")) : null;
    if (rowChoice) {
      rowChoice.addEventListener("change", () => {
        group(rowChoice.value === "groups");
        draw();
      });
    }

    const laneChoice = () => page.make("fieldset", {}, page.make("legend", {}, "Streams"), ...data.lanes.map((name, lane) => {
      const tick = page.make("input", { type: "checkbox", checked: "" });
      tick.addEventListener("change", () => {
        view.lanes[lane] = tick.checked;
        draw();
      });
      return page.make("label", {}, tick, ` ${name}`);
    }));

    const legend = page.make("ul", { class: "legend", "aria-label": "What colours and patterns mean" });
    const drawLegend = () => {
      const used = new Set(data.kinds.map(([, activity]) => activity));
      legend.replaceChildren(...data.activities.map((name, activity) => {
        if (!used.has(activity)) return null;
        const box = page.make("canvas", { width: 22, height: 12 }), pen = box.getContext("2d"), fill = fills[activity];
        pen.fillStyle = fill.image ? pen.createPattern(fill.image, "repeat") : fill;
        pen.fillRect(0, 0, 22, 12);
        return page.make("li", {}, box, name);
      }).filter(Boolean));
    };

    const box = page.make("div", { class: "chart", tabindex: "0", role: "application",
      "aria-label": "Timeline. Arrow keys move, plus and minus zoom the time, page up and page down zoom the ranks, Home shows all as at first." });
    place.append(page.make("div", { class: "controls" },
      page.make("fieldset", {}, page.make("legend", {}, "Time"), button("◀", "earlier", () => move(-SPEED)), button("+", "zoom in", () => zoom(0.5)),
        button("−", "zoom out", () => zoom(2)), button("▶", "later", () => move(SPEED)), button("reset", "as at first", reset)),
      stepChoice(), ...(rowChoice ? [page.make("label", {}, "Rows ", rowChoice)] : []), rankChoice(), laneChoice()), box, legend);
    box.addEventListener("keydown", (event) => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      keys[event.key]();
    });
    box.addEventListener("mousemove", hover);
    box.addEventListener("mouseleave", () => { tip.hidden = true; });

    chart = echarts.init(box, null, { renderer: "canvas" });
    chart.on("datazoom", readView);
    spansOf(data, perSecond).then((found) => {
      spans = found;
      whole = spans.end.reduce((most, one) => Math.max(most, one), 0);
      group(data.rows.length > 0);
      draw();
      place.dataset.ready = "yes";
    });
    return { draw, resize: draw, chart };
  };

  return { make };
})();
