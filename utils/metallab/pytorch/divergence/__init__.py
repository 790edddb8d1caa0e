"""Find the operator that computes wrongly on a device, in a model, with a program for a bug report.

::

    report = divergence.find(model, inputs, on=lab)  # forward, loss and backward; with optimizer=..., a step, too
    report                                           # what is wrong, where, and under which conditions
    report.program                                   # at most 20 lines that show it without the model
    report.draw()                                    # how the error grows from layer to layer

**How.** Each operator of the forward and the backward pass is computed again on the CPU in float64 from the numbers
that the *device* gave it. So errors do not add up, and the first operator that differs is wrong. Everything that it
returns or writes is compared: values, positions by the values that they point at, dtypes, and the memory of its
arguments, which must not change where the operator writes nothing.

**When a value is wrong.** Its error is larger than `metallab.checks` allows its dtype, relative to the root mean square
of the result, and larger than rounding explains: 8 times the error of the CPU in the same dtype, or of changing each
argument in its last bit. Infinities and NaN must be where the CPU has them.

**Without gradients.** PyTorch takes other operators where it keeps nothing for a backward pass: for attention, for an
LSTM. So the model is run in each of these ways, too. A call of a kind that was compared in one run, the same operator
with the same settings and arguments of the same shapes, dtypes and layouts, is passed over in the next.

**The whole.** Where no call is wrong and none draws random numbers, what the model returns and what each layer computes
are compared with the CPU as well, in the run with gradients. They may differ though each operator agrees, because an
operator is compared by the numbers that the device gave it: memory that nobody wrote to, a branch on the device, random
numbers of NumPy. The report then says *output differs*.

**Again.** A wrong call is made again with the same numbers. If it is right then, it is *intermittent*, and there is
nothing to minimize: macOS aborts GPU jobs that take long, and PyTorch does not notice.

**Later.** A call that is right once may be wrong later, as people report of sums and masks (`threads`). If nothing is
wrong, small calls are made again in bursts, with other numbers. What was compared once is told as compared once.

**Random numbers** differ on every device, so they are not compared: random operators are listed in ``Report.random``.
Dropout has to keep its share and scale what it keeps; other random numbers have to lie in their range, what has
probability 0 must not be drawn, and a permutation has each number once. Not compared is also what PyTorch cannot
compute on the CPU in float64, views, and memory that is not written: ``empty``, or the part behind the end of a shorter
sequence in what CTC keeps for its gradient.

The modules, in the order in which a search goes through them:

=============== ======================================================================================
`find`          the search: run the model, minimize the first wrong call, compute the errors of layers
`layers`        the forward pass, the backward pass and a step on a copy; the error of each layer
`new_memory`    writes 0 or NaN into memory that a model asks for
`outputs`       what the model returns, which may differ though each operator agrees
`comparer`      sees each operator, and stops at the first that is wrong
`runs`          how a model is run: its mode, with gradients or without
`compared`      the kinds of calls that earlier runs have compared
`calls`         a call of an operator, which can be copied to the CPU and made again
`compare`       a call's results and arguments against those of the CPU in float64
`unwritten`     which part of a result an operator writes: the rest is not compared
`differences`   how a result is wrong, or why it was not compared, as values
`draws`         random numbers that cannot have been drawn
`repeat`        makes calls again that were right
`threads`       public threads about operators that are wrong now and then
`minimize`      makes a wrong call smaller, and finds its conditions by counter-examples
`layouts`       a tensor's shape, order and offset in memory, without its numbers
`program`       a call as source code
`conditions`    what a fault needs, and the fix that follows from it, as values
`report`        what was found, and its picture
`wording`       the sentences; no other module has one, and none reads one
=============== ======================================================================================
"""

from metallab.pytorch.divergence.find import Search, compare_whole, find
from metallab.pytorch.divergence.layers import TrainingRun, backward, mean_square
from metallab.pytorch.divergence.report import DivergentCall, LayerError, Outcome, Report
from metallab.pytorch.divergence.runs import WITHOUT_GRADIENTS, Gradients, RunMode

__all__ = [
    "WITHOUT_GRADIENTS",
    "DivergentCall",
    "Gradients",
    "LayerError",
    "Outcome",
    "Report",
    "RunMode",
    "Search",
    "TrainingRun",
    "backward",
    "compare_whole",
    "find",
    "mean_square",
]
