"use strict";
(() => {
  const tip = document.getElementById("tip");
  const chart = document.querySelector(".chart");
  const now = chart.querySelector(".now");
  const rows = [...document.querySelectorAll(".row")];
  let lit = [];

  function light(number) {
    lit.forEach((edge) => edge.classList.remove("on"));
    lit = number === undefined ? [] : [...document.querySelectorAll(`.f${number},.t${number}`)];
    lit.forEach((edge) => edge.classList.add("on"));
    const x = number === undefined ? -9 : +chart.dataset.left + (+number + 0.5) * chart.dataset.step;
    now.setAttribute("x1", x);
    now.setAttribute("x2", x);
  }

  function place(event) {
    const right = innerWidth - tip.offsetWidth - 8;
    const below = event.clientY + 18;
    const fits = below + tip.offsetHeight < innerHeight - 8;
    tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, right))}px`;
    tip.style.top = `${fits ? below : Math.max(8, event.clientY - tip.offsetHeight - 12)}px`;
  }

  document.addEventListener("mouseover", (event) => {
    const about = event.target.closest("[data-tip]");
    tip.hidden = !about;
    light(about?.dataset.i);
    if (about) {
      tip.textContent = about.dataset.tip;
      place(event);
    }
  });
  document.addEventListener("mousemove", (event) => tip.hidden || place(event));

  function go(number) {
    const row = document.getElementById(`n${number}`);
    document.querySelector(".row.at")?.classList.remove("at");
    row.classList.add("at");
    row.scrollIntoView({ block: "center" });
  }

  document.addEventListener("click", (event) => {
    const about = event.target.closest("svg [data-i], a[data-i]");
    if (about) {
      event.preventDefault();
      go(about.dataset.i);
    }
  });

  const find = document.getElementById("find");
  // A row is found by what it is, not by what it reads.
  const texts = new Map(
    rows.map((row) => [row, row.dataset.tip.replace(/\nreads .*$/, "").toLowerCase()]),
  );
  let matches = [];
  let next = 0;
  find.addEventListener("input", () => {
    const wanted = find.value.trim().toLowerCase();
    matches = wanted ? rows.filter((row) => texts.get(row).includes(wanted)) : [];
    rows.forEach((row) => row.classList.toggle("dim", wanted !== "" && !matches.includes(row)));
    document.getElementById("found").textContent = wanted ? `${matches.length} of ${rows.length}` : "";
    next = 0;
  });
  find.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && matches.length) go(matches[next++ % matches.length].dataset.i);
  });
})();
