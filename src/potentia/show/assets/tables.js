/* Tables are in the page; here they sort, are filtered and taken away as files. */
"use strict";
(function (P) {
  const field = (cell) => {
    const safe = /^[=+\-@\t\r]/.test(cell) && Number.isNaN(Number(cell)) ? `'${cell}` : cell; /* no spreadsheet runs a name as a formula */
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  P.csv = (rows) => rows.map((row) => row.map((cell) => field(String(cell ?? ""))).join(",")).join("\r\n") + "\r\n";
  P.saveUrl = (name, url) => {
    const link = P.make("a", { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
  };
  P.save = (name, text, type = "text/csv") => {
    const url = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
    P.saveUrl(name, url);
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  };
  P.fileName = (title) => title.replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 80) || "table";

  const value = (cell) => {
    const text = cell.dataset.v ?? cell.textContent.trim();
    const plain = text.replaceAll(",", "");
    return text === "" || text === "–" || cell.classList.contains("missing") || cell.classList.contains("failed") ? null
      : Number.isNaN(Number(plain)) ? text : Number(plain);
  };
  /* A click on a heading sorts; numbers by size, gaps last. */
  const sort = (table, head) => {
    const heads = [...head.parentElement.children];
    const k = heads.indexOf(head);
    const before = head.getAttribute("aria-sort");
    const down = before ? before !== "descending" : "down" in head.dataset || head.classList.contains("num");
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows].map((row) => [value(row.cells[k]), row]);
    rows.sort(([x], [y]) => {
      if (x === null || y === null) return (x === null) - (y === null);
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
      return down ? -order : order;
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
  };
  P.sortable = (table) => {
    for (const head of table.tHead.rows[0].cells) {
      const button = P.make("button", { type: "button" }, ...head.childNodes);
      if (!button.textContent.trim()) button.textContent = "name";
      head.replaceChildren(button);
      button.addEventListener("click", () => sort(table, head));
    }
  };
  document.querySelectorAll(".scroll.table > table").forEach(P.sortable);

  /* A table made here, of plain values. */
  P.table = (columns, rows, digits = 3) => {
    const numeric = columns.map((_, k) => rows.some((row) => typeof row[k] === "number"));
    const table = P.make("table", {},
      P.make("thead", {}, P.make("tr", {}, ...columns.map((name, k) => P.make("th", { scope: "col", class: numeric[k] ? "num" : null, text: name })))),
      P.make("tbody", {}, ...rows.map((row) => P.make("tr", {}, ...row.map((cell, k) =>
        P.make("td", { class: numeric[k] ? "num" : null, "data-v": typeof cell === "number" ? cell : null, text: P.show(cell, digits) }))))));
    P.sortable(table);
    return P.make("div", { class: "scroll table", tabindex: "0", role: "region", "aria-label": columns.join(", ") }, table);
  };
  P.rows = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.dataset.v ?? cell.textContent.trim()));

  document.addEventListener("click", (event) => {
    const { csv, matrixCsv, saveText, type } = event.target.dataset || {};
    if (csv) P.save(`${P.fileName(csv)}.csv`, P.csv(P.rows(event.target.parentElement.parentElement.querySelector("table"))));
    if (saveText) P.save(saveText, event.target.closest("details").querySelector("pre").textContent, type);
    if (!matrixCsv) return;
    const lines = [["model", "task", "protocol", "score", "stderr", "low", "high", "kind"]];
    for (const table of event.target.closest(".matrix").querySelectorAll("table.scores")) {
      if (table.closest(".view").dataset.gain) continue;
      const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
      for (const row of table.tBodies[0].rows) for (const cell of row.querySelectorAll("td.score[data-v]")) {
        const { v, e, low, high } = cell.dataset;
        lines.push([row.dataset.name, names[cell.cellIndex], table.dataset.protocol, v, e, low, high, low ? "predicted" : "measured"]);
      }
    }
    P.save(`${matrixCsv}.csv`, P.csv(lines));
  });

  for (const box of document.querySelectorAll(".matrix")) {
    const controls = [...box.querySelectorAll("[data-control]")];
    const filter = () => {
      for (const row of box.querySelectorAll("tbody tr")) {
        row.hidden = !controls.every(({ dataset, value: asked }) => !asked || (dataset.control === "name"
          ? row.dataset.name.toLowerCase().includes(asked.trim().toLowerCase()) : row.dataset[dataset.control] === asked));
      }
    };
    for (const control of controls) control.addEventListener("input", filter);
  }

  /* A section opens when it is asked for by its address, and everything with a drawing opens for the printer. */
  const reveal = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)).split("=")[0]);
    const box = target && target.querySelector(":scope > details.section");
    if (box) { box.open = true; target.scrollIntoView(); }
  };
  window.addEventListener("hashchange", reveal);
  document.addEventListener("click", (event) => { if (event.target.closest("a[href^='#']")) setTimeout(reveal); });
  reveal();
  /* All sections are printed where the button or the address (report.html?print=all) asks for it. */
  const page = document.documentElement;
  const addressAsksForAll = new URLSearchParams(location.search).get("print") === "all";
  const openForPrinter = () => {
    const boxes = page.dataset.print === "all" ? "details.section, details.more" : "#apart > details.section, #scores > details.section, #how > details.section";
    for (const box of document.querySelectorAll(boxes)) box.open = true;
  };
  if (addressAsksForAll) { page.dataset.print = "all"; openForPrinter(); }
  window.addEventListener("beforeprint", openForPrinter);
  window.addEventListener("afterprint", () => { if (!addressAsksForAll) delete page.dataset.print; });
  for (const button of document.querySelectorAll("[data-print-all]")) {
    button.addEventListener("click", () => { page.dataset.print = "all"; window.print(); });
  }
})(window.potentia);
