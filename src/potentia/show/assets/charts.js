/* Pictures to take away, and the small curves of lanes. All other drawings are in the page already. */
"use strict";
(function (P) {
  const SVG = "http://www.w3.org/2000/svg";

  /* The drawing as a file: its colours are the page's, so they go with it. */
  const alone = (svg) => {
    const copy = svg.cloneNode(true);
    const kept = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "font-size", "font-weight", "font-family"];
    const [from, to] = [svg.querySelectorAll("*"), copy.querySelectorAll("*")];
    from.forEach((node, k) => {
      const style = getComputedStyle(node);
      for (const name of kept) to[k].style.setProperty(name, style.getPropertyValue(name));
    });
    copy.setAttribute("xmlns", SVG);
    copy.style.background = P.css("--raised");
    return new XMLSerializer().serializeToString(copy);
  };
  const png = (svg, text) => new Promise((resolve) => {
    const image = new Image();
    image.addEventListener("load", () => {
      const canvas = P.make("canvas", { width: 2 * svg.width.baseVal.value, height: 2 * svg.height.baseVal.value });
      const paper = canvas.getContext("2d");
      paper.fillStyle = P.css("--raised");
      paper.fillRect(0, 0, canvas.width, canvas.height);
      paper.drawImage(image, 0, 0, canvas.width, canvas.height);
      resolve(canvas.toDataURL("image/png"));
    });
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  });
  document.addEventListener("click", async (event) => {
    const format = event.target.dataset && event.target.dataset.picture;
    if (!format) return;
    const figure = event.target.closest("figure");
    const svg = figure.querySelector("svg");
    const name = figure.id.replace(/^fig-/, "");
    if (format === "svg") P.save(`${name}.svg`, alone(svg), "image/svg+xml");
    else P.saveUrl(`${name}.png`, await png(svg, alone(svg)));
  });

  /* Curves of fine-tunings over their epochs. A large drawing has axes, and error bars on the chosen curve; a small one
     has the highest and the lowest value at its side. */
  const svgNode = (tag, attributes, text) => {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  /* Round values that enclose a range, so that no interval ends on the edge of the drawing. */
  const roundTicks = (low, high, count) => {
    const rough = (high - low || Math.abs(high) || 1) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
    const [first, last] = [Math.floor(low / step + 1e-6), Math.ceil(high / step - 1e-6)];
    const digits = Math.max(0, -Math.floor(Math.log10(step)));
    const ticks = [];
    for (let tick = first; tick <= Math.max(last, first + 1); tick += 1) ticks.push([tick * step, (tick * step).toFixed(digits).replace("-", "−")]);
    return ticks;
  };
  P.curves = (lanes, values, [width, height], quantity) => {
    const isLarge = width > 300;
    const halfWidth = (lane, index) => {
      const error = values === "value" && lane.stderr ? lane.stderr[index] : null;
      return isLarge && lane.selected && Number.isFinite(error) ? 1.96 * error : 0;
    };
    const points = lanes.flatMap((lane) => lane[values].map((value, index) => ({ epoch: lane.epoch[index], value, half: halfWidth(lane, index) }))).filter(({ value }) => value !== null);
    const label = points.length ? `${quantity} of ${lanes.length} fine-tunings on ${lanes[0].task}` : `no ${quantity} on ${lanes[0].task} yet`;
    const svg = svgNode("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "chart" });
    if (!points.length) return svg;
    let low = Math.min(...points.map(({ value, half }) => value - half));
    let high = Math.max(...points.map(({ value, half }) => value + half));
    const ticks = isLarge ? roundTicks(low, high, 4) : [];
    if (isLarge) [low, high] = [ticks[0][0], ticks.at(-1)[0]];
    const last = Math.max(1, ...points.map(({ epoch }) => epoch));
    const [left, right, top, bottom] = isLarge ? [58, width - 8, 8, height - 34] : [4, width - 48, 6, height - 16];
    const x = (epoch) => left + ((right - left) * epoch) / last;
    const y = (value) => bottom - (bottom - top) * (high > low ? (value - low) / (high - low) : 0.5);
    if (isLarge) {
      svg.append(svgNode("text", { transform: `translate(12 ${(top + bottom) / 2}) rotate(-90)`, class: "small", "text-anchor": "middle" }, quantity));
      for (const [tick, text] of ticks) {
        svg.append(svgNode("line", { x1: left, x2: right, y1: y(tick), y2: y(tick), class: "grid" }),
          svgNode("text", { x: left - 6, y: y(tick) + 3, class: "small", "text-anchor": "end" }, text));
      }
      const every = Math.max(1, Math.ceil(last / 8));
      for (let epoch = 0; epoch <= last; epoch += every) svg.append(svgNode("text", { x: x(epoch), y: bottom + 14, class: "small", "text-anchor": "middle" }, String(epoch)));
      svg.append(svgNode("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }),
        svgNode("text", { x: (left + right) / 2, y: height - 4, class: "small", "text-anchor": "middle" }, "epoch"));
    } else {
      svg.append(svgNode("text", { x: right + 4, y: 9, class: "small" }, high.toFixed(3)));
      if (high > low) svg.append(svgNode("text", { x: right + 4, y: bottom, class: "small" }, low.toFixed(3)));
      svg.append(svgNode("text", { x: 4, y: height - 3, class: "small" }, "0"), svgNode("text", { x: right, y: height - 3, class: "small", "text-anchor": "end" }, `epoch ${last}`));
    }
    lanes.forEach((lane, number) => {
      const color = number % 8;
      const measured = lane.epoch.map((epoch, index) => ({ at: x(epoch), value: lane[values][index], half: halfWidth(lane, index) })).filter(({ value }) => value !== null);
      if (!measured.length) return;
      for (const { at, value, half } of measured) {
        if (half) svg.append(svgNode("line", { x1: at, x2: at, y1: y(value - half), y2: y(value + half), class: `error s${color}` }));
      }
      const line = measured.length === 1 ? svgNode("circle", { cx: measured[0].at, cy: y(measured[0].value), r: 3, class: `f${color}` }) : svgNode("path", {
        d: measured.map(({ at, value }, index) => `${index ? "L" : "M"}${at.toFixed(1)} ${y(value).toFixed(1)}`).join(""), class: `s${color}`,
        style: `stroke-width: ${lane.selected ? 3 : 1.6}`, "stroke-dasharray": ["failed", "dropped"].includes(lane.status) ? "2 3" : "none",
      });
      line.append(svgNode("title", {}, P.laneName(lane)));
      svg.append(line);
    });
    return svg;
  };
  P.laneName = (lane) => [`lr ${lane.learning_rate}`, lane.style && lane.style !== "plain" ? lane.style : "", lane.seed ? `seed ${lane.seed}` : ""].filter(Boolean).join(", ");
  P.whenSeen = (box, then) => {
    if (!("IntersectionObserver" in window)) return then();
    const watcher = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) { watcher.disconnect(); then(); }
    }, { rootMargin: "250px" });
    watcher.observe(box);
  };
})(window.potentia);
