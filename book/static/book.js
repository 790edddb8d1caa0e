// Search shows a piece of each page that it found, for which it reads that page. From a folder, without a server, a
// browser forbids that: there the titles must do.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// A button that copies code, of cells and of examples; not of outputs, which have no use elsewhere.
const addCopyButton = (block) => {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("pre").innerText);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  block.append(button);
};

document.addEventListener("DOMContentLoaded", () => {
  // a browser gives the clipboard to pages of a folder, of this machine and of https
  if (navigator.clipboard) {
    const code = document.querySelectorAll("article .highlight");
    [...code].filter((block) => !block.closest(".cell_output")).forEach(addCopyButton);
  }
  // the theme gives what unfolds in its contents no name
  document.querySelectorAll("nav.bd-links summary").forEach((summary) => {
    summary.setAttribute("aria-label", "Show what is below");
  });
  // its words are on it, with the keys: a name beside them would be another one than what is read
  document.querySelectorAll(".search-button-field").forEach((button) => {
    button.removeAttribute("aria-label");
  });
  // a drawing that scrolls on a narrow screen is scrolled by keys as well
  document.querySelectorAll(".bd-article p > img[src$='.svg']").forEach((drawing) => {
    drawing.parentElement.tabIndex = 0;
  });
});
