// What Metal does not take: a C++ exception, which is a RuntimeError when it reaches Python.

#pragma once

#include <stdexcept>
#include <string>

namespace metalsim {

struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What a Mac does where this raises. Metal checks some rules always, others only in its validation layer.
inline const char* const kEndsProcess = "a Mac ends the process here";
inline const char* const kLayerOnly = "on a Mac MTL_DEBUG_LAYER=1 tells; without it anything may happen";
inline const char* const kDoesNotRun = "on a Mac MTL_DEBUG_LAYER=1 tells; without it the kernel does not run";
inline const char* const kCrashes = "a Mac crashes";

[[noreturn]] inline void refuse(const std::string& method, const std::string& what, const std::string& on_a_mac) {
  throw Refused(method + ": " + what + " (" + on_a_mac + ")");
}

// A rule that Metal checks always, in its own words.
[[noreturn]] inline void fail_assertion(const std::string& method, const std::string& words) {
  refuse(method, "failed assertion `" + words + "'", kEndsProcess);
}

} // namespace metalsim
