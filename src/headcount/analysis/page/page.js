"use strict";
// Figures in the reader's colours, tables that sort and filter. No request ever leaves the page.
(() => {
  const root = document.documentElement;
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // -- figures: drawn when they come near the window, so that a long page opens at once --

  const drawn = new Set();

  function draw(id) {
    const spec = specs[id];
    const narrow = document.getElementById(id).clientWidth < 560;
    const axis = { zeroline: false, gridcolor: colour("--rule"), zerolinecolor: colour("--soft"), linecolor: colour("--soft"), automargin: true };
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--ink"), family: "system-ui, sans-serif", size: narrow ? 11 : 13 },
      margin: { l: 60, r: 20, t: 10, b: 50 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      hoverlabel: { align: "left" },
      height: narrow ? 440 : 420,
      ...spec.layout,
      xaxis: { ...axis, ...spec.layout.xaxis },
      yaxis: { ...axis, ...spec.layout.yaxis },
    };
    // A black series would vanish on a dark page.
    const ink = dark.matches && !root.dataset.print ? "#ffffff" : "#000000";
    const data = JSON.parse(JSON.stringify(spec.data).replaceAll("#000000", ink));
    Plotly.react(id, data, layout, { responsive: true, displayModeBar: false });
    drawn.add(id);
  }

  const near = new IntersectionObserver(
    (entries) => entries.filter((e) => e.isIntersecting).forEach((e) => { draw(e.target.id); near.unobserve(e.target); }),
    { rootMargin: "800px" },
  );
  Object.keys(specs).forEach((id) => near.observe(document.getElementById(id)));
  dark.addEventListener("change", () => drawn.forEach(draw));
  addEventListener("beforeprint", () => { root.dataset.print = ""; Object.keys(specs).forEach(draw); });
  addEventListener("afterprint", () => { delete root.dataset.print; drawn.forEach(draw); });

  // What hovering tells, for keyboards and screen readers.
  for (const details of document.querySelectorAll("details.text")) {
    details.addEventListener("toggle", () => {
      if (!details.open || details.querySelector("ul")) return;
      const list = document.createElement("ul");
      for (const trace of specs[details.dataset.plot].data) {
        const texts = trace.hoverinfo === "skip" ? [] : trace.hovertext || trace.text || [];
        for (const text of texts.flat().filter(Boolean)) {
          const item = document.createElement("li");
          item.textContent = text.replaceAll("<br>", "; ").replace(/<[^>]*>/g, "");
          list.append(item);
        }
      }
      details.append(list);
    });
  }

  // -- tables --

  const value = (cell) => cell.dataset.v ?? cell.textContent.trim();
  const number = (text) => (text === "" || text === "nan" ? NaN : Number(text.replaceAll(",", "")));

  function sort(table, column, descending) {
    const body = table.tBodies[0];
    const keyed = [...body.rows].map((row) => ({ row, text: value(row.cells[column]) }));
    const numeric = keyed.every(({ text }) => text === "" || text === "nan" || !Number.isNaN(number(text)));
    for (const entry of keyed) entry.number = number(entry.text);
    keyed.sort((a, b) => {
      if (!numeric) return a.text.localeCompare(b.text, "en", { numeric: true }) * (descending ? -1 : 1);
      // What is not known stands last either way.
      if (Number.isNaN(a.number) || Number.isNaN(b.number)) return Number.isNaN(a.number) - Number.isNaN(b.number);
      return (a.number - b.number) * (descending ? -1 : 1);
    });
    body.append(...keyed.map(({ row }) => row));
    for (const [i, head] of [...table.tHead.rows[0].cells].entries()) {
      if (i === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    for (const [i, head] of [...table.tHead.rows[0].cells].entries()) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => sort(table, i, head.getAttribute("aria-sort") === "ascending"));
    }
  }

  for (const input of document.querySelectorAll("input[data-table]")) {
    const rows = [...document.getElementById(input.dataset.table).tBodies[0].rows];
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const output = input.closest(".filter").querySelector("output");
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, i) => {
        row.hidden = !words.every((word) => texts[i].includes(word));
        shown += !row.hidden;
      });
      output.textContent = words.length ? `${shown} of ${rows.length}` : "";
    });
  }
})();
