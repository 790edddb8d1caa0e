"""``make verify-mac``: what this project says of Macs and could not try, tried on one, in a report to send back.

====================  ==================================================================================
`trial`               what a trial is and what it finds
`catalogue`           all trials, by group; each group is a module
`runner`, `child`     each in a process and a folder of its own
`privacy`             nothing personal goes into the report
`report`              one Markdown file to read, with the same as JSON at its end
`cli`                 the command line
====================  ==================================================================================

Without a Mac the simulated GPU takes its place. Everything in the report then says so: it shows that a trial's code
works, and nothing about a Mac. ``docs/first_hour_on_a_mac.md`` says what to do with it.
"""
