"""Objective-C++ on the simulated Apple GPU: Foundation and Metal, as far as launching a kernel takes them.

`metalsim.objc` asks for it when the first ``.mm`` file comes. `extension` writes for `torch.utils.cpp_extension.load`
how it is built; `toolchain` finds what that takes; `bridge` builds Foundation and Metal (``runtime/``, ``include/``)
once and connects them with the device and with `metalsim.shader`, which runs the kernels.
"""
