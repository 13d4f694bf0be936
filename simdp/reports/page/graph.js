/* Nodes in a circle, links between them coloured by their load. */
page.graphs = (() => {
  const SCALE = ["#56B4E9", "#E69F00", "#D55E00"];

  const colorOf = (load) => {
    const at = Math.min(load, 1) * (SCALE.length - 1), low = Math.min(Math.floor(at), SCALE.length - 2);
    const [a, b] = [page.rgb(SCALE[low]), page.rgb(SCALE[low + 1])];
    return `rgb(${a.map((part, one) => Math.round(part + (b[one] - part) * (at - low))).join(",")})`;
  };

  const isSwitch = (name) => !/^(rank|card|node|device)/.test(name);

  /* Ends that are no switch stand in a circle, in order; switches within it. */
  const placesOf = (nodes) => {
    const outer = nodes.filter((name) => !isSwitch(name)), inner = nodes.filter(isSwitch);
    const on = (names, radius) => names.map((name, at) => {
      const angle = (2 * Math.PI * at) / names.length - Math.PI / 2;
      return [name, [radius * Math.cos(angle) * 1.6, radius * Math.sin(angle)]];
    });
    return new Map([...on(outer, 100), ...on(inner, inner.length === 1 ? 0 : 40)]);
  };

  /* Names stand outside the circle. */
  const sideOf = ([x, y]) => {
    if (Math.abs(x) < 20) return y <= 0 ? "top" : "bottom";
    return x < 0 ? "left" : "right";
  };

  const option = ({ nodes, links }) => {
    const places = placesOf(nodes);
    return {
      animation: false,
      textStyle: { fontFamily: "system-ui, DejaVu Sans, sans-serif", color: page.ink("ink") },
      aria: { enabled: false },
      tooltip: { confine: true, backgroundColor: page.ink("ground"), borderColor: page.ink("muted"), textStyle: { color: page.ink("ink") },
        formatter: ({ dataType, data }) => echarts.format.encodeHTML(dataType === "edge" ? data.caption : data.name) },
      visualMap: { type: "continuous", min: 0, max: 1, dimension: 0, inRange: { color: SCALE }, seriesIndex: -1, calculable: false, orient: "horizontal", left: "center", bottom: 0,
        text: ["busy all the time", "never"], textStyle: { color: page.ink("ink") }, formatter: (part) => `${Math.round(100 * part)} %` },
      series: [{
        type: "graph", layout: "none", left: page.isNarrow() ? 75 : 150, right: page.isNarrow() ? 75 : 150, top: 34, bottom: 74, roam: false, silent: false,
        edgeSymbol: ["none", "arrow"], edgeSymbolSize: 9, symbolSize: 14,
        label: { show: true, color: page.ink("ink"), fontSize: page.isNarrow() ? 10 : 12, width: page.isNarrow() ? 68 : 140, overflow: "break" },
        edgeLabel: { show: links.length <= 24, formatter: ({ data }) => `${(100 * data.value).toFixed(0)} %`, color: page.ink("ink"), fontSize: 10 },
        itemStyle: { color: page.ink("ground"), borderColor: page.ink("ink"), borderWidth: 1.5 },
        data: nodes.map((name) => ({ name, x: places.get(name)[0], y: places.get(name)[1], label: { position: sideOf(places.get(name)) }, symbol: isSwitch(name) ? "rect" : "circle" })),
        links: links.map(([source, target, load, caption]) => ({ source, target, caption, value: load,
          lineStyle: { color: colorOf(load), opacity: 1, width: 1.5 + 5 * load, curveness: 0.12 }, })),
      }],
    };
  };

  const make = (place, data) => {
    const box = page.make("div", { class: "chart", role: "img", "aria-label": place.dataset.title });
    place.append(box);
    const chart = echarts.init(box, null, { renderer: "canvas" });
    const draw = () => chart.setOption(option(data), { notMerge: true });
    draw();
    return { draw, resize: () => { chart.resize(); draw(); }, chart };
  };

  return { make };
})();
