/* Tables that sort, and files that a reader can take away. */
"use strict";
(function (P) {
  const field = (cell) => {
    if (cell === null || cell === undefined) return "";
    if (typeof cell === "number") return String(cell);
    const safe = /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : String(cell); /* no spreadsheet runs a name as a formula */
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  P.csv = (columns, rows) => [columns, ...rows].map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";

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

  /* A click on a heading sorts; numbers by size, gaps last. */
  P.table = (box, { columns, rows, digits = 3, note = "" }) => {
    const body = P.make("tbody");
    const numeric = columns.map((_, k) => rows.some((row) => typeof row[k] === "number"));
    let sorted = rows;
    let shown = 0;
    const line = (row) => P.make("tr", {}, ...row.map((cell, k) => P.make("td", { class: numeric[k] ? "num" : null, text: P.show(cell, digits) })));
    const more = () => { body.append(...sorted.slice(shown, shown + P.ROWS).map(line)); shown = Math.min(sorted.length, shown + P.ROWS); };
    const fill = () => { shown = 0; body.replaceChildren(); more(); };
    const heads = columns.map((name, k) => {
      const button = P.make("button", { type: "button", text: name || "name" });
      const head = P.make("th", { scope: "col", class: numeric[k] ? "num" : null }, button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        sorted = P.sorted(rows, (row) => row[k], down);
        fill();
      });
      return head;
    });
    fill();
    const table = P.make("table", {}, P.make("thead", {}, P.make("tr", {}, ...heads)), body);
    box.replaceChildren(table, ...(note ? [P.make("p", { class: "caption", text: note })] : []));
    P.onScrollEnd(box, () => { if (shown < sorted.length) more(); });
  };
  /* Long tables grow while one scrolls: nobody waits for rows that nobody sees. */
  P.ROWS = 200;
  P.onScrollEnd = (box, then) => {
    box.addEventListener("scroll", () => { if (box.scrollTop + box.clientHeight > box.scrollHeight - 600) then(); }, { passive: true });
    window.addEventListener("beforeprint", () => { for (let k = 0; k < 1000; k += 1) then(); });
  };
  P.sorted = (rows, key, down) => [...rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === null || x === undefined) return y === null || y === undefined ? 0 : 1;
    if (y === null || y === undefined) return -1;
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return down ? -order : order;
  });

  /* The findings' tables are built when their box is opened. */
  for (const box of document.querySelectorAll("details.more")) {
    box.addEventListener("toggle", () => {
      if (!box.open) return;
      for (const part of box.querySelectorAll("[data-table]:not([data-built])")) {
        part.dataset.built = "true";
        P.load(part.querySelector("script")).then((table) => P.table(part.querySelector(".scroll"), table));
      }
    });
  }
  document.addEventListener("click", async (event) => {
    const table = event.target.closest("[data-download-table]");
    if (table) {
      const data = await P.load(table.closest("[data-table]").querySelector("script"));
      P.save(`${P.fileName(data.title)}.csv`, P.csv(data.columns, data.rows));
    }
    const text = event.target.closest("[data-save-text]");
    if (text) P.save(text.dataset.saveText, text.closest("details").querySelector("pre").textContent, text.dataset.type);
  });

  /* The ladder of the answer shows its first ten models, and all on demand. */
  P.ladder = (part) => {
    for (const button of part.querySelectorAll("[data-show-rest]")) {
      const many = button.textContent;
      button.addEventListener("click", () => {
        const open = button.getAttribute("aria-expanded") !== "true";
        for (const row of button.parentElement.querySelectorAll(".rest")) row.hidden = !open;
        button.setAttribute("aria-expanded", String(open));
        button.textContent = open ? "Show the first ten" : many;
      });
    }
  };
  P.ladder(document);
})(window.potentia);
