/* Light and dark: what the system prefers, until the reader says otherwise. */
"use strict";
window.potentia = window.potentia || {};
(function (P) {
  const root = document.documentElement;
  const stored = () => { try { return localStorage.getItem("potentia-theme"); } catch { return null; } };
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

  P.isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  P.css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  const known = stored();
  if (known === "dark" || known === "light") root.dataset.theme = known;
  for (const button of document.querySelectorAll("[data-theme-toggle]")) {
    button.addEventListener("click", () => {
      root.dataset.theme = P.isDark() ? "light" : "dark";
      try { localStorage.setItem("potentia-theme", root.dataset.theme); } catch { /* a file may have no storage */ }
    });
  }

  /* The section in view is marked in the navigation. */
  const links = new Map();
  for (const link of document.querySelectorAll("header.top nav a[href^='#']")) links.set(link.hash.slice(1), link);
  if (links.size && "IntersectionObserver" in window) {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        for (const link of links.values()) link.removeAttribute("aria-current");
        const link = links.get(entry.target.id);
        if (!link) continue;
        link.setAttribute("aria-current", "true");
        const bar = link.parentElement;
        bar.scrollTo({ left: link.offsetLeft - bar.clientWidth / 2 + link.clientWidth / 2 });
      }
    }, { rootMargin: "-15% 0px -75% 0px" });
    for (const section of document.querySelectorAll("main > section[id]")) seen.observe(section);
  }

  /* Small things that every module needs. */
  P.make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "text") node.textContent = value;
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  };
  P.read = (node) => (node ? JSON.parse(node.textContent) : null);
  P.unpack = async (packed) => {
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  /* The value of a data element: in it, packed in it, or at the address it names; read once, when it is needed. */
  P.load = (node) => {
    if (!node.potentia) {
      if (node.dataset.from) node.potentia = fetch(node.dataset.from).then((answer) => answer.json());
      else if ("packed" in node.dataset) node.potentia = P.unpack(node.textContent).then(JSON.parse);
      else node.potentia = Promise.resolve(P.read(node));
    }
    return node.potentia;
  };
  P.show = (value, digits = 3) => {
    if (value === null || value === undefined || (typeof value === "number" && !Number.isFinite(value))) return "–";
    if (typeof value !== "number") return String(value);
    const size = Math.abs(value);
    const digitsOf = () => (size >= 1e6 || size < 10 ** -digits ? value.toExponential(2) : value.toFixed(digits));
    const text = Number.isInteger(value) ? value.toLocaleString("en") : digitsOf();
    return text.replace(/^-/, "−");
  };
  P.showP = (p) => (p === null ? "–" : p < 0.001 ? (p === 0 ? "< 1e-300" : p.toExponential(0)) : p.toFixed(3));
  P.protocol = (name) => {
    const [base, shots] = name.split(":");
    const known = { direct: "before fine-tuning", train_before_test: "after fine-tuning", adjust: "adjusted" };
    return base === "few_shot" && shots ? `${shots}-shot` : known[name] || name.replaceAll("_", "-");
  };
  P.clock = (seconds) => {
    if (seconds === null || seconds === undefined) return "";
    const whole = Math.round(seconds);
    if (whole < 60) return `${whole} s`;
    const minutes = Math.floor(whole / 60) % 60;
    const hours = Math.floor(whole / 3600);
    const two = (n) => String(n).padStart(2, "0");
    return hours ? `${hours}:${two(minutes)} h` : `${minutes}:${two(whole % 60)} min`;
  };
})(window.potentia);
