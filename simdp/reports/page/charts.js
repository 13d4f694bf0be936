/* Lines, points, bars and areas of a section's data, by ECharts. */
page.charts = (() => {
  const MOST_ROWS = 2000;

  const fontSize = () => (page.isNarrow() ? 11 : 12);

  /* What lies across begins where its data do; what goes up begins at 0. */
  const axisOf = (axis, names, isAcross = false) => {
    const made = {
      type: axis.scale,
      name: axis.label,
      nameLocation: "middle",
      nameTextStyle: { color: page.ink("ink"), fontSize: fontSize() },
      axisLine: { show: true, lineStyle: { color: page.ink("muted") } },
      axisLabel: { color: page.ink("ink"), fontSize: fontSize(), hideOverlap: true },
      splitLine: { show: axis.scale !== "category", lineStyle: { color: page.ink("faint") } },
      minorSplitLine: { show: false },
    };
    const texts = axis.ticks && new Map(axis.ticks);
    const ticks = texts ? [...texts.keys()] : [...new Set(names)];
    const places = { axisTick: { customValues: ticks }, axisLabel: { ...made.axisLabel, customValues: ticks, formatter: (value) => texts?.get(value) ?? page.short(value) } };
    if (axis.scale === "log2") return { ...made, ...places, type: "log", logBase: 2, min: Math.min(...ticks) / 1.1, max: Math.max(...ticks) * 1.1 };
    if (axis.scale === "category") return { ...made, data: names, axisTick: { show: false } };
    if (texts) return { ...made, ...places, scale: true };
    return { ...made, scale: axis.is_near || (isAcross && !axis.from_zero), axisLabel: { ...made.axisLabel, formatter: page.short } };
  };

  const namesOf = (series) => [...new Set(series.flatMap((one) => one.x))];

  const isBar = (one) => one.look === "bar";
  const isArea = (one) => one.look === "area" || one.look === "steps";

  const fillOf = (one, color) => {
    const decal = page.decal(one.hatch, page.isDark() ? "#00000066" : "#ffffff88");
    return { color, ...(decal ? { decal } : {}) };
  };

  /* How wide the names of points are, which stand in a column at the right. */
  const columnOf = (spec, width) => {
    const longest = Math.max(0, ...spec.series.flatMap((one) => one.labels.map((name) => name.length)));
    return longest && !page.isNarrow() ? Math.min(0.6 * fontSize() * longest + 24, 0.45 * width) : 0;
  };

  /* Names of points in a column, a line from each to its point; on narrow screens their first words alone. */
  const namesBeside = (one, number, spec, width, heights) => {
    const label = { show: true, position: "right", fontSize: fontSize(), color: page.ink("ink") };
    if (page.isNarrow()) return { label: { ...label, formatter: (params) => one.labels[params.dataIndex].split(":")[0] } };
    return {
      label: { ...label, formatter: (params) => one.labels[params.dataIndex] },
      labelLine: { show: true, lineStyle: { color: page.ink("muted"), width: 0.7 } },
      labelLayout: (params) => ({ x: width - columnOf(spec, width) + 6, y: heights.get(`${number}.${params.dataIndex}`), align: "left", verticalAlign: "middle" }),
    };
  };

  /* Heights of the names: those of their points, but for a line's distance between two. */
  const heightsOf = (spec, chart) => {
    const places = spec.series.flatMap((one, number) => one.labels.map((_, at) => ({
      key: `${number}.${at}`, y: chart.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, [one.x[at], one.y[at]])[1] })));
    places.sort((a, b) => a.y - b.y);
    const step = fontSize() + 4;
    places.forEach((place, at) => { if (at) place.y = Math.max(place.y, places[at - 1].y + step); });
    const over = places.length ? places.at(-1).y - (chart.getHeight() - step) : 0;
    for (let at = places.length - 1; over > 0 && at >= 0; at--) {
      const most = at === places.length - 1 ? chart.getHeight() - step : places[at + 1].y - step;
      places[at].y = Math.min(places[at].y, most);
    }
    return new Map(places.map((place) => [place.key, place.y]));
  };

  const seriesOf = (one, number, spec, width, heights) => {
    const color = one.color ? (isBar(one) || isArea(one) ? one.color : page.line(one.color)) : page.series(number);
    const pairs = one.x.map((x, at) => (spec.sideways ? [one.y[at], x] : [x, one.y[at]]));
    const made = { name: one.name, data: pairs, stack: one.stack || undefined, animation: false };
    if (isBar(one)) return { ...made, type: "bar", barMaxWidth: 28, itemStyle: { ...fillOf(one, color), borderColor: page.ink("muted"), borderWidth: 0.5 } };
    if (one.look === "points") {
      return { ...made, type: "scatter", symbolSize: 10, symbol: page.symbols[number % 7],
        ...(one.labels.length ? namesBeside(one, number, spec, width, heights) : {}),
        itemStyle: { color: page.ink("ground"), borderColor: color, borderWidth: 2 } };
    }
    const line = { ...made, type: "line", symbol: page.symbols[number % 7], symbolSize: 7, connectNulls: false,
      showSymbol: one.x.length <= 60 && !one.dashed && !isArea(one), sampling: isArea(one) ? undefined : "lttb",
      itemStyle: { color }, lineStyle: { color, width: 2, type: one.dashed ? "dashed" : "solid" } };
    if (!isArea(one)) return line;
    return { ...line, step: one.look === "steps" ? "end" : false, itemStyle: fillOf(one, color),
      areaStyle: { opacity: 1, ...fillOf(one, color) }, lineStyle: { width: 0 } };
  };

  /* The band around a line: its upper ends, and back along the lower ones. */
  const bandOf = (one, number) => {
    const color = one.color ? page.line(one.color) : page.series(number);
    const ends = [...one.low, ...one.high].filter((value) => value !== null);
    const data = [Math.min(...ends), Math.max(...ends)].map((value) => [one.x[0], value]); // the axis reaches both
    return {
      name: one.name, type: "custom", silent: true, animation: false, z: 1, data,
      itemStyle: { color },
      renderItem: (params, api) => {
        if (params.dataIndex > 0) return null;
        const there = one.x.map((_, at) => at).filter((at) => one.low[at] !== null && one.high[at] !== null);
        const up = there.map((at) => api.coord([one.x[at], one.high[at]]));
        const down = there.map((at) => api.coord([one.x[at], one.low[at]])).reverse();
        const points = there.length === 1
          ? [[up[0][0] - 5, up[0][1]], [up[0][0] + 5, up[0][1]], [up[0][0] + 5, down[0][1]], [up[0][0] - 5, down[0][1]]]
          : [...up, ...down];
        return { type: "polygon", shape: { points }, style: { fill: color, opacity: 0.22, stroke: color, lineWidth: 0.5 } };
      },
    };
  };

  /* The intervals of points that stand alone, a line each. */
  const whiskersOf = (one, number) => {
    const color = one.color ? page.line(one.color) : page.series(number);
    const there = one.x.map((x, at) => [x, one.low[at], one.high[at]]).filter((row) => row[1] !== null && row[2] !== null);
    return {
      name: one.name, type: "custom", silent: true, animation: false, z: 1, data: there, itemStyle: { color },
      encode: { x: 0, y: [1, 2] },
      renderItem: (params, api) => {
        const [from, to] = [1, 2].map((at) => api.coord([api.value(0), api.value(at)]));
        return { type: "line", shape: { x1: from[0], y1: from[1], x2: to[0], y2: to[1] },
          style: { stroke: color, lineWidth: 2, opacity: 0.5 } };
      },
    };
  };

  const marksOf = (spec) => ({
    silent: true, symbol: "none", animation: false,
    lineStyle: { color: page.ink("warning"), type: "dashed", width: 2 },
    label: { color: page.ink("warning"), position: "insideEndTop", formatter: "{b}", fontSize: fontSize() },
    data: spec.marks.map((mark) => ({ name: mark.text, [mark.axis === "y" ? "yAxis" : "xAxis"]: mark.value })),
  });

  const option = (spec, width, heights) => {
    const names = namesOf(spec.series);
    const series = spec.series.map((one, number) => seriesOf(one, number, spec, width, heights));
    const bands = spec.series.map((one, number) => (one.low.length ? (one.look === "points" ? whiskersOf : bandOf)(one, number) : null)).filter(Boolean);
    if (spec.marks.length && series.length) series[0].markLine = marksOf(spec);
    const across = { ...axisOf(spec.x, names, true), nameGap: 30 };
    const up = { ...axisOf(spec.y, names), nameGap: page.isNarrow() ? 44 : 56 };
    if (spec.series.some(isArea)) across.max = "dataMax";
    const lying = spec.sideways
      ? { xAxis: { ...up, nameGap: 30 }, yAxis: { ...across, inverse: true, nameLocation: "end", name: "" } }
      : { xAxis: across, yAxis: up };
    if (spec.sideways) lying.yAxis.axisLabel = { ...lying.yAxis.axisLabel, width: page.isNarrow() ? 110 : 260, overflow: "truncate" };
    return {
      animation: false,
      textStyle: { fontFamily: "system-ui, DejaVu Sans, sans-serif", color: page.ink("ink") },
      grid: { left: spec.sideways ? 24 : page.isNarrow() ? 56 : 76, right: 24 + columnOf(spec, width), top: series.length > 1 ? 52 : 20, bottom: 52, containLabel: spec.sideways },
      legend: { show: series.length > 1, type: "scroll", top: 4, icon: spec.series.every((one) => isBar(one) || isArea(one)) ? "rect" : undefined, textStyle: { color: page.ink("ink") }, pageTextStyle: { color: page.ink("ink") } },
      tooltip: { trigger: spec.series.some((one) => one.look === "points") ? "item" : "axis", confine: true,
        backgroundColor: page.ink("ground"), borderColor: page.ink("muted"), textStyle: { color: page.ink("ink") },
        valueFormatter: (value) => `${page.number(Array.isArray(value) ? value[1] : value)} ${spec.y.unit}` },
      aria: { enabled: false },
      ...lying,
      series: [...bands, ...series],
      dataZoom: spec.x.scale === "category" || spec.sideways ? [] : [{ type: "inside", zoomOnMouseWheel: "ctrl" }],
    };
  };

  const heightOf = (spec) => {
    if (!spec.sideways) return "";
    const bars = namesOf(spec.series).length;
    return `${Math.max(12, Math.min(60, 7 + bars * 1.7))}rem`;
  };

  const rowsOf = (spec) => {
    const banded = spec.series.some((one) => one.low.length);
    const named = spec.series.some((one) => one.labels.length);
    const heads = ["series", ...(named ? ["name"] : []), spec.x.label, spec.y.label, ...(banded ? ["from", "to"] : [])];
    const rows = spec.series.flatMap((one) => one.x.map((x, at) => [
      one.name, ...(named ? [one.labels[at] ?? ""] : []), typeof x === "number" ? page.number(x) : x, page.number(one.y[at]),
      ...(banded ? [one.low[at], one.high[at]].map((value) => page.number(value)) : []),
    ]));
    return [heads, rows.slice(0, MOST_ROWS)];
  };

  /* The data below a chart, made when somebody opens them. */
  const addData = (place, spec) => {
    const folded = page.make("details", { class: "data" }, page.make("summary", {}, "The figures as a table"));
    folded.addEventListener("toggle", () => {
      if (folded.open && folded.children.length === 1) folded.append(page.tables.ofData(...rowsOf(spec)));
    });
    place.append(folded);
  };

  const make = (place, spec) => {
    const box = page.make("div", { class: "chart", role: "img" });
    box.style.height = heightOf(spec);
    place.append(box);
    const chart = echarts.init(box, null, { renderer: "canvas" });
    const draw = () => {
      chart.setOption(option(spec, box.clientWidth, new Map()), { notMerge: true });
      if (spec.series.some((one) => one.labels.length)) chart.setOption(option(spec, box.clientWidth, heightsOf(spec, chart)), { notMerge: true });
      box.setAttribute("aria-label", `${place.dataset.title}: ${spec.series.map((one) => one.name).join(", ")}; ${spec.y.label} over ${spec.x.label}.`);
    };
    draw();
    addData(place, spec);
    return { draw, resize: () => { chart.resize(); draw(); }, chart };
  };

  return { make, addData };
})();
