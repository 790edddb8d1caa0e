// Search shows a piece of each page that it found, for which it reads that page. From a folder, without a server, a
// browser forbids that: there the titles must do.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
