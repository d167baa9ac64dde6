"use strict";
// Sorts tables and saves them as CSV.
const at = (id) => document.getElementById(id);
function element(tag, settings = {}, ...children) {
  const made = Object.assign(document.createElement(tag), settings);
  made.append(...children);
  return made;
}
function save(name, kind, text) {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: kind })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
const csv = (lines) => lines.map((line) => line.map((cell) => {
  const text = String(cell ?? "");
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}).join(",") + "\n").join("");
const cells = (row) => [...row.cells].map((cell) => cell.classList.contains("number") ? cell.textContent.replaceAll("−", "-") : cell.textContent);
function quantity(text) {
  const found = text.trim().replace("−", "-").replace(/^[^\d+\-.]*(?=[+\-.]?\d)/, "").match(/^[+-]?(\d[\d,]*\.?\d*|\.\d+)(e[+-]?\d+)?/i);
  return found ? parseFloat(found[0].replaceAll(",", "")) : NaN;
}
function sort(button) {
  const head = button.parentElement, table = head.closest("table"), column = head.cellIndex;
  const down = head.getAttribute("aria-sort") === "ascending", body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => ({ row, text: row.cells[column].textContent.trim(), number: quantity(row.cells[column].textContent) }));
  const numeric = head.classList.contains("number");  // what is no number, and what is missing, stays at the end
  const rank = (one) => ["", "-", "–", "nan"].includes(one.text.toLowerCase()) ? 2 : numeric && isNaN(one.number) ? 1 : 0;
  keyed.sort((a, b) => rank(a) - rank(b) || (down ? -1 : 1) * (numeric && !rank(a)
    ? a.number - b.number : a.text.localeCompare(b.text, "en", { numeric: true })));
  table.querySelectorAll("th").forEach((one) => one.setAttribute("aria-sort", "none"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...keyed.map((one) => one.row));
}
document.querySelectorAll("th button").forEach((one) => one.addEventListener("click", () => sort(one)));
document.querySelectorAll("button[data-table]").forEach((one) => one.addEventListener("click", () =>
  save(`${one.dataset.table}.csv`, "text/csv", csv([...at(`table-${one.dataset.table}`).rows].filter((row) => !row.hidden).map(cells)))));
