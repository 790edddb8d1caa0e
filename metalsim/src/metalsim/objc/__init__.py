"""Objective-C++ on the simulated Apple GPU: ``.mm`` host code of a Metal kernel compiles here and runs.

`extension` teaches `torch.utils.cpp_extension.load` to build ``.mm`` files; `toolchain` finds what that takes; `bridge`
builds Foundation and Metal (``runtime/``, ``include/``) once and connects them with the device and with
`metalsim.shader`, which runs the kernels.
"""
