"""Metal compute kernels on a CPU: `compile_shader(source)` has the calling convention of torch.mps.compile_shader.

    lib = compile_shader(open("softshrink.metal").read())
    lib.softshrink(out, x, 0.5)                 # tensors in host memory stand for tensors on the GPU
    print(lib.softshrink.check(out, x, 0.5))    # races, reads and writes outside of a buffer, order of threads
    lib.softshrink.accesses(out, x, 0.5).lines  # which thread reads and writes what

It says whether a kernel is right, never how fast a GPU is. LIMITS.md says what acceptance here does not prove.
"""

from metalsim.shader.accesses import Accesses
from metalsim.shader.check import KernelFault, Report
from metalsim.shader.compiler import NoCompiler
from metalsim.shader.library import Kernel, Library, UnknownKernel, compile_shader

__all__ = [
    "Accesses",
    "Kernel",
    "KernelFault",
    "Library",
    "NoCompiler",
    "Report",
    "UnknownKernel",
    "compile_shader",
]
