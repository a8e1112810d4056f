// What scrolls sideways can be reached with the keyboard.
addEventListener("load", () => {
  for (const box of document.querySelectorAll("pre, .table-wrapper, .formula")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
});
