// The table of all rows is sorted by the column that is clicked: first rising, then falling.
for (const button of document.querySelectorAll("#table thead button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement;
    const column = head.cellIndex;
    const falling = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const body = document.querySelector("#table tbody");
    const key = (row) => {
      const cell = row.cells[column];
      return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    };
    const compare = (one, other) => {
      const [a, b] = [key(one), key(other)];
      if (a === "–" || b === "–") return (a === "–") - (b === "–"); // what does not apply stays below
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return falling ? -order : order;
    };
    body.append(...[...body.rows].sort(compare));
  });
}
