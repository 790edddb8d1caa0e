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
});
