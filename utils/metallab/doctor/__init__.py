"""Answers about a model of your own: does it run on MPS, is it right, is it fast, and more.

::

    from metallab import doctor

    report = doctor.examine("my_project.model:example", minutes=3)
    report                       # in a notebook the page, elsewhere its text
    report.save("build/doctor")  # doctor.html and doctor.json

``example()`` returns ``(model, inputs)`` or ``(model, inputs, loss)``: an `nn.Module`, a tuple of what it is called
with (or a dict of named inputs, or one tensor), and a function of its output that returns one number.

Each answer is computed in a process of its own with a limit of its own: one that crashes, hangs or fills the memory is
missing with its reason, and the others come all the same. The module
`questions` has the table of all questions, and says what a new one takes.

The modules, in the order in which a question passes through them:

============= =======================================================================================
`command`     ``metallab doctor``
`questions`   the table of questions
`examination` asks each in a process
`worker`      what happens there: make the model, answer, keep to the limits
`support`     does it run on MPS
`correctness` is it right
`speed`       is it fast
`profile`     where does the time go
`footprint`   does it fit
`formats`     which number format
`results`     what they have found, in numbers
`answer`      a result with its question and status
`report`      all answers
`evidence`    the tables of a result
`wording`     the sentences; no other module has one, and none reads one
`audit`       ``metallab doctor --machine``: no model, but the machine
============= =======================================================================================
"""

from metallab.doctor.answer import Answer
from metallab.doctor.command import command
from metallab.doctor.examination import examine
from metallab.doctor.report import OtherSchema, Report, load_report
from metallab.pytorch.errors import NotAModel

__all__ = ["Answer", "NotAModel", "OtherSchema", "Report", "command", "examine", "load_report"]
