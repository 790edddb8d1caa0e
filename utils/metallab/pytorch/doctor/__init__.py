"""Six answers about a model of your own: does it run on MPS, is it right, is it fast, where does the time go, does it
fit, which number format.

::

    from metallab.pytorch import doctor

    report = doctor.examine("my_project.model:example", minutes=3)
    report                       # in a notebook the page, elsewhere its text
    report.save("build/doctor")  # doctor.html and doctor.json

``example()`` returns ``(model, inputs)`` or ``(model, inputs, loss)``: an `nn.Module`, a tuple of what it is called
with (or a dict of named inputs, or one tensor), and a function of its output that returns one number.

Each answer is computed in a process of its own with a limit of its own: one that crashes, hangs or fills the memory is
missing with its reason, and the others come all the same.
"""

from metallab.pytorch.doctor.answer import Answer, NotAModel
from metallab.pytorch.doctor.report import Report, command, examine

__all__ = ["Answer", "NotAModel", "Report", "command", "examine"]
