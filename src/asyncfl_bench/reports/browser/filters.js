// Filters of one table: a choice for each of these columns. A row is shown if it has every chosen text. tables.js comes before it.
const filtered = at("table-rules"), names = [...filtered.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
const all = [...filtered.tBodies[0].rows], count = element("span", { id: "count", className: "hint", role: "status" });
const choices = ["world", "rule", "tier"].map((name) => {
  const column = names.indexOf(name), text = (row) => row.cells[column].textContent.trim();
  const values = [...new Set(all.map(text))].filter((value) => value).map((value) => new Option(value, value));
  const choice = element("select", { id: `filter-${name}`, onchange: show }, new Option("all", ""), ...values);
  return { choice, label: element("label", {}, name, choice), fits: (row) => !choice.value || text(row) === choice.value };
});
function show() {
  all.forEach((row) => { row.hidden = !choices.every((one) => one.fits(row)); });
  count.textContent = `${all.filter((row) => !row.hidden).length} of ${all.length} rows`;
}
const controls = element("div", { id: "controls", role: "group", ariaLabel: "Which rows are shown" });
controls.append(...choices.map((one) => one.label), count);
filtered.closest("figure").before(controls);
show();
