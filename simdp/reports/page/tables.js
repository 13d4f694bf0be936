/* Tables whose columns sort, by click and by keyboard. */
page.tables = (() => {
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  };

  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === typeof b) return a.localeCompare(b, "en", { numeric: true });
    return typeof a === "number" ? -1 : 1;
  };

  const sort = (table, column) => {
    const heads = [...table.tHead.rows[0].cells];
    const rising = heads[column].getAttribute("aria-sort") !== "ascending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", rising ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [valueOf(row, column), row]);
    rows.sort((a, b) => compare(a[0], b[0]) * (rising ? 1 : -1));
    body.append(...rows.map(([, row]) => row));
  };

  const make = (table) => {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = page.make("button", { type: "button" }, head.textContent);
      button.addEventListener("click", () => sort(table, column));
      head.replaceChildren(button);
    });
  };

  /* A table of data, for who cannot see a chart of them. */
  const ofData = (heads, rows) => {
    const cells = (tag, row) => row.map((text) => page.make(tag, tag === "th" ? { scope: "col" } : {}, text));
    const head = page.make("thead", {}, page.make("tr", {}, ...cells("th", heads)));
    const body = page.make("tbody", {}, ...rows.map((row) => page.make("tr", {}, ...cells("td", row))));
    return page.make("div", { class: "wide", tabindex: "0" }, page.make("table", {}, head, body));
  };

  return { make, ofData };
})();
