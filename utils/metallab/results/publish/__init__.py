"""How executed pages are published: read, made plain, stored in the repository, and listed in the gallery.

==============  ======================================================================================
`show`          the command: a run's pages are stored, then texts, gallery and README are renewed
`store`         a run's pages in the set of its machine, and which of them are refused
`executed`      the sets of executed pages that are stored
`pages`         an executed notebook without the folders of this machine, its texts and its headings
`plain`         what stays of an executed notebook's outputs
`stored_text`   today's text around a stored page's cells, and where its links lead
`caption`       the caption of an executed page: where and when it ran
`copies`        which machine's copy of a page readers are led to
`gallery`       the page of all pages, with a picture of each
==============  ======================================================================================
"""
